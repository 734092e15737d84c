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
from tilewright.ir.expr import Expr, as_int, const, is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.axes import parallel
from tilewright.ops.dims import dims, same_dim
from tilewright.ops.shape import ShapeAttrs, SliceAttrs
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.transform.graph.rewrite import eliminate_dead
from tilewright.transform.regions.captures import builder_for


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a value that has a range of indices along one dimension, and all indices of the others."""

    axis: int
    begin: Expr
    size: Expr
    step: int


class _Whole:
    """The mark that a value is needed as a whole; a `Cut` in its place says which part of the value is needed."""


WHOLE = _Whole()
Need = Cut | _Whole
"""The part of a value that a reader needs."""


def compute_read_rows(graph: Graph) -> Graph:
    """The graph in which rows that nothing reads are not computed."""
    retained: set[Value] = set()
    while True:
        demand = _Demand(graph, retained)
        useless = {n.outputs[0] for n in demand.roots if not demand.saves(n)}
        if not useless:
            break
        retained |= useless
    return _narrow(graph, demand) if demand.roots else graph


def cut_of(node: Node) -> Cut | None:
    """The part that a slice node takes of its operand, if it cuts one dimension only and takes little of it; None
    otherwise."""
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
    """For each value the least part that contains what its readers need. Slices whose results are in `retained` stay
    where they are."""

    def __init__(self, graph: Graph, retained: set[Value]) -> None:
        self.needs: dict[Value, Need] = dict.fromkeys(graph.outputs, WHOLE)
        self.producers = {v: n for n in graph.nodes for v in n.outputs}
        self.roots: list[Node] = []
        for node in reversed(graph.nodes):
            for value, need in zip(node.inputs, self.of_node(node, retained), strict=True):
                if value is not None:
                    self.needs[value] = need if self.needs.get(value, need) == need else WHOLE

    def of_node(self, node: Node, retained: set[Value]) -> tuple[Need, ...]:
        """For each operand of `node`, the part that the node reads to compute what is needed of its result; all of the
        operand if that is not known."""
        cut = cut_of(node) if node.outputs[0] not in retained else None
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
            node = None if value is None else self.producers.get(value)
            if value is None or node is None or value in seen or not isinstance(self.needs[value], Cut):
                continue
            seen.add(value)
            if ops.get(node.op).kind == "contraction" or node.op == "lowered.attention":
                return True
            todo += node.inputs
        return False


def operands(node: Node, cut: Cut) -> tuple[Need, ...] | None:
    """For each operand the part from which a node computes the part `cut` of its result; None if there are no such
    parts along single dimensions."""
    links = parallel(node)[cut.axis] if node.inputs else None
    if links is None or (ops.get(node.op).kind == "contraction" and cut.axis == node.output.type.rank - 1):
        return None  # a product whose columns are left out would not have the weights that are packed
    needs = tuple(WHOLE if link is None else replace(cut, axis=link) for link in links)
    return needs if ops.get(node.op).kind == "pointwise" or _makes(node, needs, cut) else None


def _makes(node: Node, needs: tuple[Need, ...], cut: Cut) -> bool:
    """Whether a node computes the part `cut` of its result from the parts `needs` of its operands, by its type rule:
    attributes may state sizes."""
    types = [
        None if v is None else replace(v.type, shape=_cut_shape(v, n)) if isinstance(n, Cut) else v.type
        for v, n in zip(node.inputs, needs, strict=True)
    ]
    try:
        (out,) = ops.infer(node.op, types, _attrs(node, cut))
    except ShapeError:
        return False
    return len(out.shape) == node.output.type.rank and all(map(same_dim, out.shape, _cut_shape(node.output, cut)))


def _cut_shape(value: Value, cut: Cut) -> tuple[Expr, ...]:
    return tuple(cut.size if k == cut.axis else n for k, n in enumerate(value.shape))


def _narrow(graph: Graph, demand: _Demand) -> Graph:
    """The graph that computes only the parts in `demand`."""
    builder = builder_for(graph)
    created: dict[Value, Value] = {}
    sliced: dict[tuple[Value, Cut], Value] = {}
    roots = {n.outputs[0] for n in demand.roots}

    def part(value: Value, cut: Cut) -> Value:
        """The part `cut` of a value: the computed value if only the part was computed, else a slice of the whole."""
        if value in created:
            return created[value]
        if (value, cut) not in sliced:
            sliced[value, cut] = ops.emit1(builder, "slice", value, attrs=_slice(value, cut))
        return sliced[value, cut]

    for node in graph.nodes:
        need = demand.needs.get(node.outputs[0], WHOLE)
        if node.outputs[0] in roots:
            (x,) = node.inputs
            assert x is not None
            if x in created:
                node = Node("identity", (created[x],), node.outputs, ops.attributes("identity", {}))
            builder.nodes.append(node)
        elif isinstance(need, Cut):
            result = operands(node, need)
            assert result is not None
            inputs = [
                part(v, n) if v is not None and isinstance(n, Cut) else v
                for v, n in zip(node.inputs, result, strict=True)
            ]
            created[node.output] = ops.emit1(builder, node.op, *inputs, attrs=_attrs(node, need))
        else:
            builder.nodes.append(node)
    return eliminate_dead(replace(graph, nodes=tuple(builder.nodes)))


def _slice(value: Value, cut: Cut) -> SliceAttrs:
    rank = value.type.rank
    begin = tuple(cut.begin if k == cut.axis else const(0) for k in range(rank))
    size = tuple(cut.size if k == cut.axis else value.shape[k] for k in range(rank))
    return SliceAttrs(begin, size, tuple(cut.step if k == cut.axis else 1 for k in range(rank)))


def _attrs(node: Node, cut: Cut) -> Attrs:
    """The attributes with which a node computes only the part `cut` of its result."""
    if node.op != "reshape":
        return node.attrs
    return replace(node.of(ShapeAttrs), shape=_cut_shape(node.output, cut))
