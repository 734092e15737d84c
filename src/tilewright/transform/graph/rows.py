"""Compute the rows that are read: a slice moves up through whatever works row by row.

    y = layer_norm(x + matmul(gelu(matmul(x, w1)), w2))          r = slice(x)  row 0
    z = slice(y)  row 0                                    ->    z = layer_norm(r + matmul(gelu(matmul(r, w1)), w2))

A classifier reads the first row of its last layer, a generator the last one: the others need not be computed. What each
reader of a value needs of it is found from the outputs to the inputs; where all readers need the same part along one
dimension, no more is made. Slices move where a product or an attention, of which less is left, is on their way.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import ops
from tilewright.arith import prove_equal
from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Expr, as_int, const, is_const, product
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.dims import dims
from tilewright.ops.lowered.attention import ORDERS, AttentionAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.norm import NormAttrs, SoftmaxAttrs
from tilewright.ops.shape import ConcatAttrs, ShapeAttrs, SliceAttrs, TransposeAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.rewrite import eliminate_dead
from tilewright.transform.regions.captures import builder_for


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a value along one dimension."""

    axis: int
    begin: Expr
    size: Expr
    step: int


class _Whole:
    """All of a value."""


WHOLE = _Whole()
Need = Cut | _Whole
"""The part of a value that a reader needs."""


def compute_read_rows(graph: Graph) -> Graph:
    """The graph in which rows that nothing reads are not computed."""
    kept: set[Value] = set()
    while True:
        demand = _Demand(graph, kept)
        useless = {n.outputs[0] for n in demand.roots if not demand.saves(n)}
        if not useless:
            break
        kept |= useless
    return _narrow(graph, demand) if demand.roots else graph


def cut_of(node: Node) -> Cut | None:
    """The part that a slice takes, where it is a small one along one dimension."""
    if node.op != "slice" or node.inputs[0] is None:
        return None
    attrs, shape = node.of(SliceAttrs), node.inputs[0].shape
    begins, sizes = dims(attrs.begin), dims(attrs.size)
    parts = zip(shape, begins, sizes, attrs.step, strict=True)
    cut = [k for k, (n, b, s, t) in enumerate(parts) if not (is_const(b, 0) and t == 1 and prove_equal(n, s))]
    if len(cut) != 1:
        return None
    (axis,) = cut
    size, whole = as_int(sizes[axis]), as_int(shape[axis])
    if size is None or size == 0 or (whole is not None and 2 * size > whole):
        return None
    return Cut(axis, begins[axis], sizes[axis], attrs.step[axis])


class _Demand:
    """The part of each value that its readers need together. Slices whose results are in `kept` stay."""

    def __init__(self, graph: Graph, kept: set[Value]) -> None:
        self.needs: dict[Value, Need] = dict.fromkeys(graph.outputs, WHOLE)
        self.made = {v: n for n in graph.nodes for v in n.outputs}
        self.roots: list[Node] = []
        for node in reversed(graph.nodes):
            for value, need in zip(node.inputs, self.of_node(node, kept), strict=True):
                if value is not None:
                    self.needs[value] = need if self.needs.get(value, need) == need else WHOLE

    def of_node(self, node: Node, kept: set[Value]) -> tuple[Need, ...]:
        """The parts of its operands that a node needs."""
        cut = cut_of(node) if node.outputs[0] not in kept else None
        if cut is not None:
            self.roots.append(node)
            return (cut,)
        needed = self.needs.get(node.outputs[0], WHOLE)
        result = operands(node, needed) if isinstance(needed, Cut) and len(node.outputs) == 1 else None
        if result is None:
            self.needs.update(dict.fromkeys(node.outputs, WHOLE))
            return (WHOLE,) * len(node.inputs)
        return result

    def saves(self, root: Node) -> bool:
        """Whether a slice lets a product or an attention compute less."""
        todo, seen = [root.inputs[0]], set[Value]()
        while todo:
            value = todo.pop()
            node = None if value is None else self.made.get(value)
            if value is None or node is None or value in seen or not isinstance(self.needs[value], Cut):
                continue
            seen.add(value)
            if ops.get(node.op).kind == "contraction" or node.op == "lowered.attention":
                return True
            todo += node.inputs
        return False


def operands(node: Node, cut: Cut) -> tuple[Need, ...] | None:
    """The parts of a node's operands that make a part of its result; None if they are none of one dimension."""
    if ops.get(node.op).kind == "pointwise" and node.inputs:
        return tuple(_aligned(v, node.output, cut) for v in node.inputs)
    rule = RULES.get(node.op)
    return None if rule is None else rule(node, cut)


def _aligned(value: Value | None, out: Value, cut: Cut) -> Need:
    """The part of an operand that broadcasts to a result."""
    axis = cut.axis - (out.type.rank - (0 if value is None else value.type.rank))
    if value is None or axis < 0 or not prove_equal(value.shape[axis], out.shape[cut.axis]):
        return WHOLE
    return replace(cut, axis=axis)


def _norm(node: Node, cut: Cut) -> tuple[Need, ...] | None:
    axis = node.of(NormAttrs).axis % node.output.type.rank
    return tuple(_aligned(v, node.output, cut) for v in node.inputs) if cut.axis < axis else None


def _softmax(node: Node, cut: Cut) -> tuple[Need, ...] | None:
    return (cut,) if node.of(SoftmaxAttrs).axis % node.output.type.rank != cut.axis else None


def _matmul(node: Node, cut: Cut) -> tuple[Need, ...] | None:
    attrs, (a, b) = node.of(MatmulAttrs), node.inputs[:2]
    assert a is not None and b is not None
    rank = node.output.type.rank
    if len(node.inputs) != 2 or min(a.type.rank, b.type.rank) < 2 or cut.axis == rank - 1:
        return None
    if cut.axis == rank - 2:
        return replace(cut, axis=a.type.rank - (1 if attrs.transpose_a else 2)), WHOLE
    return _aligned(a, node.output, cut), _aligned(b, node.output, cut)


def _reshape(node: Node, cut: Cut) -> tuple[Need, ...] | None:
    """The dimension that is the same before and after it."""
    (x,) = node.inputs
    assert x is not None
    before = product(node.output.shape[: cut.axis])
    for axis, extent in enumerate(x.shape):
        if prove_equal(extent, node.output.shape[cut.axis]) and prove_equal(product(x.shape[:axis]), before):
            return (replace(cut, axis=axis),)
    return None


def _transpose(node: Node, cut: Cut) -> tuple[Need, ...] | None:
    return (replace(cut, axis=node.of(TransposeAttrs).perm[cut.axis]),)


def _concat(node: Node, cut: Cut) -> tuple[Need, ...] | None:
    return (cut,) * len(node.inputs) if node.of(ConcatAttrs).axis % node.output.type.rank != cut.axis else None


def _attention(node: Node, cut: Cut) -> tuple[Need, ...] | None:
    """Rows of queries; masks that differ by row."""
    attrs = node.of(AttentionAttrs)
    starts = (*node.inputs[8:], None)[0]
    if attrs.causal or starts is not None or ORDERS[attrs.order[3]].index(1) != cut.axis:
        return None
    needs: list[Need] = [WHOLE] * len(node.inputs)
    needs[0] = replace(cut, axis=ORDERS[attrs.order[0]].index(1))
    mask = (*node.inputs[3:], None)[0]
    if mask is not None and mask.type.rank > 1 and not is_const(mask.shape[-2], 1):
        needs[3] = replace(cut, axis=mask.type.rank - 2)
    return tuple(needs)


RULES = {
    "layer_norm": _norm,
    "rms_norm": _norm,
    "softmax": _softmax,
    "matmul": _matmul,
    "reshape": _reshape,
    "transpose": _transpose,
    "concat": _concat,
    "lowered.attention": _attention,
}
"""The parts of their operands that operators need which are not pointwise."""


def _narrow(graph: Graph, demand: _Demand) -> Graph:
    """The graph with the parts that are needed."""
    builder = builder_for(graph)
    made: dict[Value, Value] = {}
    sliced: dict[tuple[Value, Cut], Value] = {}
    roots = {n.outputs[0] for n in demand.roots}

    def part(value: Value, cut: Cut) -> Value:
        """A part of a value: what is made of it, or a slice of all of it."""
        if value in made:
            return made[value]
        if (value, cut) not in sliced:
            sliced[value, cut] = ops.emit1(builder, "slice", value, attrs=_slice(value, cut))
        return sliced[value, cut]

    for node in graph.nodes:
        need = demand.needs.get(node.outputs[0], WHOLE)
        if node.outputs[0] in roots:
            (x,) = node.inputs
            assert x is not None
            if x in made:
                node = Node("identity", (made[x],), node.outputs, ops.attributes("identity", {}))
            builder.nodes.append(node)
        elif isinstance(need, Cut):
            result = operands(node, need)
            assert result is not None
            inputs = [
                part(v, n) if v is not None and isinstance(n, Cut) else v
                for v, n in zip(node.inputs, result, strict=True)
            ]
            made[node.output] = ops.emit1(builder, node.op, *inputs, attrs=_attrs(node, need))
        else:
            builder.nodes.append(node)
    return eliminate_dead(replace(graph, nodes=tuple(builder.nodes)))


def _slice(value: Value, cut: Cut) -> SliceAttrs:
    rank = value.type.rank
    begin = tuple(cut.begin if k == cut.axis else const(0) for k in range(rank))
    size = tuple(cut.size if k == cut.axis else value.shape[k] for k in range(rank))
    return SliceAttrs(begin, size, tuple(cut.step if k == cut.axis else 1 for k in range(rank)))


def _attrs(node: Node, cut: Cut) -> Attrs:
    """The attributes of a node for a part of its result."""
    if node.op != "reshape":
        return node.attrs
    shape = tuple(cut.size if k == cut.axis else n for k, n in enumerate(node.output.shape))
    return replace(node.of(ShapeAttrs), shape=shape)
