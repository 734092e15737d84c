"""Recognise attention: softmax(Q K^T * scale + mask) V with the transposes around it becomes one operator.

    k' = transpose(k, [0, 2, 3, 1])
    s = softmax(matmul(transpose(q, [0, 2, 1, 3]), k') * scale + mask)      ->      y = attention(q, k, v, mask)
    y = transpose(matmul(s, transpose(v, [0, 2, 1, 3])), [0, 2, 1, 3])

These forms, which exporters write, are recognised: the scale on the scores or on both factors, as a number or a weight;
masks added or selected; K transposed in one or two steps, over batch and heads together or separately; q, k and v as
slices of one projection; rows without keys turned to zeros ("safe softmax"), or whatever is NaN. An intermediate value
with another reader is still computed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf, isinf
from typing import Any

from tilewright import ops
from tilewright.ir.dtype import DType, boolean
from tilewright.ir.expr import Expr, as_int, const, is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.dims import dim
from tilewright.ops.lowered.attention import ORDERS
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.norm import SoftmaxAttrs
from tilewright.ops.shape import ConcatAttrs, ConstantAttrs, SliceAttrs, TransposeAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.heads import equal, repeated_heads, transposed
from tilewright.transform.graph.matching import Op, op
from tilewright.transform.graph.multihead import sequence_first, stacked
from tilewright.transform.graph.rewrite import Match, Rewriter, eliminate_dead

SWAP = (0, 2, 1, 3)
"""The permutation that exchanges dimensions 1 and 2 (rows and heads); it is its own inverse."""
ROWS_LAST = (1, 2, 0, 3)
"""The permutation of dimensions (rows, batch, heads, depth) to (batch, heads, rows, depth)."""
RESULTS: dict[tuple[int, ...], str] = {SWAP: "s", (2, 0, 1, 3): "t"}
"""For each transposition after attention, the letter of the order in which attention then writes its result."""
ZERO = const(0)
NAN = op("isnan", "p", private=True)
GUARDED = op("select", NAN, "c", "p")
SAFE = op("select", op("and", NAN, op("eq", "scores", -inf, name="low", private=True), private=True), 0.0, "p")
FLAT = op("reshape", transposed((0, 2, 1), op("reshape", "x", name="inner")))


Factor = tuple[Value, bool]
"""A value of one element by which scores are multiplied, or divided if the second is true."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A 4-dimensional operand of attention in an order of `ORDERS`: its heads from `first` on are used, each `repeats`
    times. `past` is a cache whose sequence comes before that of the operand."""

    value: Value
    order: str
    first: int = 0
    repeats: int = 1
    past: Value | None = None
    past_first: Expr = ZERO

    @property
    def length(self) -> Expr:
        """The length of the sequence, including that of the cache."""
        new = self.value.shape[ORDERS[self.order][1]]
        return new if self.past is None else new + self.past.shape[2]


@dataclass(slots=True)
class Scores:
    """The parts of the expression that a softmax is applied to: the product's factors, their scale, the mask."""

    q: Value
    k: Value
    transposed: bool
    number: float = 1.0
    factors: tuple[Factor, ...] = ()
    mask: Value | None = None
    hidden: bool = False
    """Whether true elements of the mask hide keys; otherwise false ones do."""
    fill: float = 0.0
    substitute: Value | None = None
    keeps_nan: bool = False
    """Whether the guard against NaN replaces only rows without any visible key; other NaNs stay."""


def recognise_attention(graph: Graph, learned: Collection[Value] | None = None, *, all_floats: bool = False) -> Graph:
    """The graph in which each subgraph that computes attention is one operator.

    Args:
        learned: the values that gradients flow through, of a graph that is to be differentiated. There a subgraph stays
            as it is if its mask is one of them, or if attention would have operands besides q, k, v and mask.
        all_floats: also recognise attention in 16 bits, which rounds scores and probabilities to 16 bits: as one
            operator it is computed in f32 and rounded once.
    """
    return _Recogniser(graph, learned, all_floats).recognised()


class _Recogniser(Rewriter):
    def __init__(self, graph: Graph, learned: Collection[Value] | None, all_floats: bool) -> None:
        super().__init__(graph)
        self.learned = learned
        self.min_bits = 16 if all_floats else 32
        self.replaced: dict[Value, list[Node]] = {}
        self.with_cache = learned is None
        """Whether attention may read a cache and the new rows as two operands. It may not in a graph that is to be
        differentiated, nor if only one of keys and values has a cache."""
        self.with_repeats = True
        """Whether attention may read repeated heads without a copy. It may not if only one of keys and values has
        repeated heads."""

    def recognised(self) -> Graph:
        for node in self.graph.nodes:
            # A model of 16-bit floats rounds between the products, which its results show.
            if node.op == "softmax" and self.is_of_type(node.output.dtype):
                self.softmax(node)
        if not self.replaced:
            return self.graph
        nodes: list[Node] = []
        for node in self.graph.nodes:
            nodes += self.replaced.get(node.outputs[0], [node]) if len(node.outputs) == 1 else [node]
        return eliminate_dead(replace(self.graph, nodes=tuple(nodes)))

    def is_of_type(self, t: DType) -> bool:
        return t.is_float and t.bits >= self.min_bits

    # the pattern

    def softmax(self, node: Node) -> None:
        inputs, p = node.inputs[0], node.output
        assert inputs is not None
        if node.of(SoftmaxAttrs).axis % p.type.rank != p.type.rank - 1 or p.type.rank not in (3, 4):
            return
        p, guard, substitute = self.guarded(p)
        safe, test = (None, None) if guard else self.safe(p, inputs)
        result = self.scores(inputs, test)
        if result is None:
            return
        result.substitute, result.keeps_nan = substitute, safe is not None
        p, guard = (p, guard) if safe is None else (safe, True)
        product = self.only_reader(p)
        if (
            product is None
            or product.op != "matmul"
            or product.inputs[0] != p
            or _transposes(product) != (False, False)
        ):
            return
        v = product.inputs[1]
        assert v is not None
        if self.learned is not None and (
            result.mask in self.learned or result.factors or result.substitute is not None
        ):
            return
        if v == p or not _same_lead(result.q, result.k, v):
            return
        self.rewrite(*self.narrow(result, v, product), guard=guard)

    def narrow(self, result: Scores, v: Value, product: Node) -> tuple[Scores, Value, Node]:
        """Scores, values `v` and product with operands of 16 bits, where these are widened before and the result is
        narrowed after: attention computes in f32 and rounds once, whatever its operands are."""
        casts = [self.producer(x, "cast") for x in (result.q, result.k, v)]
        sources = [None if cast is None else cast.inputs[0] for cast in casts]
        after = self.only_reader(product.output)
        types = {None if x is None else x.dtype for x in sources}
        if self.learned is not None or len(types) != 1 or after is None or after.op != "cast":
            return result, v, product
        q, k, value = sources
        if q is None or k is None or value is None or not q.dtype.is_float or q.dtype.bits != 16:
            return result, v, product
        mask = result.mask
        if mask is not None and mask.dtype.is_float:
            cast = self.producer(mask, "cast")
            mask = None if cast is None else cast.inputs[0]
            if mask is None or mask.dtype is not q.dtype:
                return result, v, product
        if result.factors or result.substitute is not None or after.output.dtype is not q.dtype:
            return result, v, product
        return replace(result, q=q, k=k, mask=mask), value, after

    def guarded(self, p: Value) -> tuple[Value, bool, Value | None]:
        """Look through the guard `select(isnan(p), c, p)` around probabilities `p`. Returns (the guard's result, or p
        if there is none; whether there is one; c unless it is the number zero)."""
        m = self.selected(GUARDED, p)
        if m is not None and self.number(m["c"]) == 0.0:
            return m.node.output, True, None
        if m is not None and all(is_const(d, 1) for d in m["c"].shape) and self.producer(m["c"], "constant") is None:
            return m.node.output, True, m["c"]
        return p, False, None

    def selected(self, pattern: Op, p: Value, **bound: Value) -> Match | None:
        """The match of a pattern with a `select` that guards `p`, if exactly two nodes read p: the select and its
        test."""
        users = {id(u): u for u in self.readers.get(p, [])}
        if len(users) != 2 or p in self.outputs:
            return None
        results = (self.first_match(pattern, u.outputs[0], p=p, **bound) for u in users.values())
        return next((m for m in results if m is not None), None)

    def safe(self, p: Value, scores: Value) -> tuple[Value, Node] | tuple[None, None]:
        """Look through `select(and(isnan(p), eq(scores, -inf)), 0, p)`. Returns the result and the node that compares
        the scores.

        The guard sets rows without any visible key to zero. A row that is NaN for another reason has an element that is
        not -inf, so its sum stays NaN.
        """
        m = self.selected(SAFE, p, scores=scores)
        return (None, None) if m is None else (m.node.output, m.producer("low"))

    def scores(self, value: Value, other: Node | None = None) -> Scores | None:
        """The product and its scale and mask that compute a softmax's operand; None if it has another form. `other` is
        a node that may read the value too."""
        node = self.producer(value)
        users = [u for u in self.readers.get(value, []) if u is not other]
        if node is None or len(users) != 1 or value in self.outputs:
            return None
        match node.op:
            case "matmul":
                return self.product(node)
            case "mul" | "div":
                return self.scaled(node)
            case "add":
                for k in (0, 1):
                    data, mask = node.inputs[k], node.inputs[1 - k]
                    assert data is not None and mask is not None
                    result = self.scores(data)
                    if result is not None and result.mask is None and data.type == node.output.type:
                        result.mask = mask
                        return result
            case "select":
                return self.chosen(node, 1) or self.chosen(node, 2)
        return None

    def chosen(self, node: Node, place: int) -> Scores | None:
        """The scores in a `select` whose operand number `place` has them and whose other operand is a number, with the
        select's condition as their mask; None for other nodes."""
        mask, data, fill = node.inputs[0], node.inputs[place], node.inputs[3 - place]
        assert mask is not None and data is not None
        result, filling = self.scores(data), self.number(fill)
        if result is None or result.mask is not None or filling is None or mask.dtype is not boolean:
            return None
        if data.type != node.output.type:
            return None
        result.mask, result.fill, result.hidden = mask, filling, place == 2
        return result

    def product(self, node: Node) -> Scores | None:
        q, k = node.operands(2)
        swap_a, swap_b = _transposes(node)
        if swap_a or q.type.rank != k.type.rank or q.dtype is not k.dtype:
            return None
        result = Scores(q, k, swap_b)
        for side in ("q", "k"):
            inner = self.producer(getattr(result, side), "mul", "div")
            split = None if inner is None or self.only_reader(inner.output) is None else self.factor(inner)
            if split is not None:
                data, number, factors = split
                setattr(result, side, data)
                result.number *= number
                result.factors += factors
        return result

    def scaled(self, node: Node) -> Scores | None:
        split = self.factor(node)
        if split is None:
            return None
        data, number, factors = split
        result = self.scores(data)
        if result is None or result.mask is not None:
            return None
        result.number *= number
        result.factors += factors
        return result

    def factor(self, node: Node) -> tuple[Value, float, tuple[Factor, ...]] | None:
        """A product of data and one number as (data, the constant number or 1, the factors that are not constant)."""
        pairs = ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0]))
        for data, factor in pairs if node.op == "mul" else pairs[:1]:
            assert data is not None and factor is not None
            if data.type != node.output.type:
                continue
            number = self.number(factor)
            if number is not None and (node.op == "mul" or number != 0.0):
                return data, number if node.op == "mul" else 1.0 / number, ()
            if number is None and all(is_const(d, 1) for d in factor.shape) and factor.type.rank <= data.type.rank:
                return data, 1.0, ((factor, node.op == "div"),)
        return None

    # operands

    def operand(self, value: Value, new: GraphBuilder) -> Operand:
        """The operand of attention that computes a [batch, heads, sequence, depth] value, in the order in which it lies
        in memory."""
        repeated = self.repeated(value)
        if repeated is not None:
            single, repeats = repeated
            result = self.operand(single, new)
            return replace(result, repeats=result.repeats * repeats)
        cached = self.cached(value, new)
        if cached is not None:
            return cached
        source = sequence_first(value, self)
        if source is not None:
            return self.part_of_stack(value, source, new)
        node = self.producer(value, "transpose", "identity")
        if node is not None and node.op == "identity":
            assert node.inputs[0] is not None
            return self.operand(node.inputs[0], new)
        if node is None or node.op != "transpose" or node.of(TransposeAttrs).perm not in (SWAP, ROWS_LAST):
            return Operand(value, "h")
        (source,) = node.inputs
        assert source is not None
        return self.part(source, new) if node.of(TransposeAttrs).perm == SWAP else Operand(source, "t")

    def part_of_stack(self, value: Value, source: Value, new: GraphBuilder) -> Operand:
        """The operand for a [batch, heads, sequence, depth] value made from `source` [sequence, batch, heads * depth],
        which may be a part of a larger projection whose result contains queries, keys and values."""
        batch, heads, rows, depth = value.shape
        result, count = stacked(source, self), as_int(heads)
        if result is not None and count is not None:
            whole, index = result
            wide = dim(whole.shape[2] // depth)
            return Operand(ops.emit1(new, "reshape", whole, shape=(rows, batch, wide, depth)), "t", index * count)
        return Operand(ops.emit1(new, "reshape", source, shape=(rows, batch, heads, depth)), "t")

    def repeated(self, value: Value) -> tuple[Value, int] | None:
        """(x, n) if the value has the heads of x, each n times in a row; None otherwise."""
        return repeated_heads(self, value) if self.with_repeats else None

    def cached(self, value: Value, new: GraphBuilder) -> Operand | None:
        """The operand for keys or values that are appended to a cache, if no other node reads the concatenation; None
        otherwise."""
        node = self.producer(value, "concat")
        if not self.with_cache or node is None or node.of(ConcatAttrs).axis != 2 or len(node.inputs) != 2:
            return None
        past, added = node.operands(2)
        if value.type.rank != 4 or self.only_reader(value) is None:
            return None
        inner = self.operand(added, new)
        if inner.past is not None:
            return None
        layer = self.producer(past, "reshape")
        part = None if layer is None else self.producer(layer.inputs[0], "slice")
        if part is not None and (stack := self.stacked(part, past)) is not None:
            whole, index = stack
            flat = ops.emit1(new, "reshape", whole, shape=(dim(whole.shape[0] * past.shape[0]), *past.shape[1:]))
            return replace(inner, past=flat, past_first=dim(past.shape[0] * index))
        return replace(inner, past=past)

    def stacked(self, part: Node, past: Value) -> tuple[Value, int] | None:
        """(x, i) if the slice `part` takes element i of x, which has one dimension more than `past`, so that `past =
        x[i]`; None otherwise."""
        (whole,) = part.inputs
        assert whole is not None
        begin = part.of(SliceAttrs).begin
        index = as_int(begin[0])
        whole_rest = all(equal(a, b) for a, b in zip(whole.shape[1:], past.shape, strict=False))
        if whole.type.rank != 5 or index is None or not is_const(part.output.shape[0], 1) or not whole_rest:
            return None
        return (whole, index) if all(as_int(b) == 0 for b in begin[1:]) else None

    def part(self, value: Value, new: GraphBuilder) -> Operand:
        """The operand for a [batch, sequence, heads, depth] value, which may be some heads of a larger value."""
        reshape = self.producer(value, "reshape")
        part = None if reshape is None else self.producer(reshape.inputs[0], "slice")
        if part is None:
            return Operand(value, "s")
        whole, (batch, length, heads, depth) = part.inputs[0], value.shape
        assert whole is not None
        cut, size = part.of(SliceAttrs), as_int(depth)
        begin, step = cut.begin, cut.step
        start, total = as_int(begin[-1]), as_int(whole.shape[-1])
        if whole.type.rank != 3 or size is None or start is None or total is None or start % size or total % size:
            return Operand(value, "s")
        fits = equal(whole.shape[0], batch) and equal(whole.shape[1], length)
        if not fits or any(s != 1 for s in step) or any(as_int(b) != 0 for b in begin[:-1]):
            return Operand(value, "s")
        if as_int(part.output.shape[-1]) != (as_int(heads) or 0) * size:
            return Operand(value, "s")
        shape = (batch, length, const(total // size), depth)
        return Operand(ops.emit1(new, "reshape", whole, shape=shape), "s", start // size)

    def keys(self, result: Scores, new: GraphBuilder) -> Operand:
        """The operand for the keys. The second factor of the product is [batch, heads, depth, sequence], or [batch,
        heads, sequence, depth] if the product transposes it (`transposed`)."""
        if result.transposed:
            return self.operand(result.k, new)
        value = result.k
        node = self.producer(value, "transpose")
        if node is not None and node.inputs[0] is not None:
            perm = node.of(TransposeAttrs).perm
            if perm == (0, 2, 3, 1):
                return self.part(node.inputs[0], new)
            if perm == (1, 2, 3, 0):
                return Operand(node.inputs[0], "t")
            if perm == (0, 1, 3, 2):
                return self.operand(node.inputs[0], new)
        flat = self.flat_transpose(value)
        if flat is not None:
            return self.operand(flat, new)
        return Operand(ops.emit1(new, "transpose", value, perm=(0, 1, 3, 2)), "h")

    def flat_transpose(self, value: Value) -> Value | None:
        """x of `reshape(transpose(reshape(x, [B*H, S, D]), [0, 2, 1]), [B, H, D, S])`."""
        m = self.first_match(FLAT, value)
        if m is None or m["x"].type.rank != 4:
            return None
        batch, heads, rows, depth = m["x"].shape
        wanted = (batch, heads, depth, rows, rows, depth)
        results = (*value.shape, *m["inner"].shape[1:])  # the two in the middle are those that change places
        return m["x"] if all(equal(a, b) for a, b in zip(results, wanted, strict=True)) else None

    # the new nodes

    def rewrite(self, result: Scores, v: Value, product: Node, *, guard: bool) -> None:
        new = replace(self.builder, nodes=[])  # whose names are no other attention's
        flat = result.q.type.rank == 3
        if flat:  # heads and batch are one dimension
            parts = [self.flat_operand(result.q, new), self.flat_keys(result, new), self.flat_operand(v, new)]
            last, order = product, "s"
        else:
            parts = [self.operand(result.q, new), self.keys(result, new), self.operand(v, new)]
            _, keys, values = parts
            if self.with_cache and (keys.past is None) is not (values.past is None):
                self.with_cache = False
                self.rewrite(result, v, product, guard=guard)
                self.with_cache = self.learned is None
                return
            if parts[0].repeats != 1 or keys.repeats != values.repeats:
                self.with_repeats = False
                self.rewrite(result, v, product, guard=guard)
                self.with_repeats = True
                return
            user = self.only_reader(product.output)
            moved = None if user is None or user.op != "transpose" else RESULTS.get(user.of(TransposeAttrs).perm)
            last, order = (user, moved) if moved is not None and user is not None else (product, "h")
        shape = [tuple(p.value.shape[k] for k in ORDERS[p.order]) for p in parts]
        heads = 1 if flat else as_int(result.q.shape[1])
        depths = [as_int(s[3]) for s in shape]
        if heads is None or None in depths or any(as_int(s[2]) is None for s in shape):
            return
        if result.mask is not None and not self.mask_fits(result, flat):
            return
        attrs = {
            "order": "".join(p.order for p in parts) + order,
            "heads": heads,
            "groups": heads // parts[1].repeats,
            "first": tuple(p.first for p in parts),
            "scale": result.number,
            "causal": False,
            "fill": result.fill,
            "guard": guard,
            "keeps_nan": result.keeps_nan,
        }
        if parts[1].past is not None:
            attrs["past_first"] = parts[1].past_first
        mask = result.mask
        if mask is not None and result.hidden:
            inverted = self.producer(mask, "not")
            mask = ops.emit1(new, "not", mask) if inverted is None else inverted.inputs[0]
        if flat and mask is not None and mask.type.rank == 3:
            mask = ops.emit1(new, "reshape", mask, shape=(mask.shape[0], const(1), *mask.shape[1:]))
        inputs: list[Value | None] = [*(p.value for p in parts), mask, self.scale(result, new), result.substitute]
        inputs += [p.past for p in parts[1:]]
        packed = None if mask is None else self.producer(mask, "same_sequence")
        if packed is not None:
            inputs = [*inputs[:3], None, *inputs[4:], packed.inputs[0]]
        while inputs[-1] is None:
            inputs.pop()
        self.finish(new, inputs, attrs, last, flat)

    def finish(
        self, new: GraphBuilder, inputs: Sequence[Value | None], attrs: dict[str, Any], last: Node, flat: bool
    ) -> None:
        if flat:
            y = ops.emit1(new, "lowered.attention", *inputs, **attrs)
            shape = ops.attributes("reshape", {"shape": last.output.shape})
            new.nodes.append(Node("reshape", (y,), last.outputs, shape))
        else:
            typed = ops.attributes("lowered.attention", attrs)
            types = ops.infer("lowered.attention", [None if i is None else i.type for i in inputs], typed)
            if types != (last.output.type,):
                return
            new.node("lowered.attention", tuple(inputs), types, typed, ())
            new_node = new.nodes.pop()
            new.nodes.append(replace(new_node, outputs=last.outputs))
        self.replaced[last.output] = new.nodes

    def scale(self, candidate: Scores, new: GraphBuilder) -> Value | None:
        """The product of all factors that are not constants, as one value; None if there are none."""
        if not candidate.factors:
            return None
        single = [(ops.emit1(new, "reshape", f, shape=(const(1),)), inverse) for f, inverse in candidate.factors]
        result, *rest = (ops.emit1(new, "reciprocal", f) if inverse else f for f, inverse in single)
        for other in rest:
            result = ops.emit1(new, "mul", result, other)
        return result

    def mask_fits(self, result: Scores, flat: bool) -> bool:
        mask = result.mask
        assert mask is not None
        single = self.producer(mask, "constant")
        if single is not None and single.of(ConstantAttrs).value.array.size == 1:
            return False  # a number: nothing that a mask would be
        if mask.dtype.is_float and mask.dtype is not result.q.dtype:
            return False
        return not (isinf(result.fill) and result.fill > 0) and (not flat or mask.type.rank <= 3)

    def flat_operand(self, value: Value, new: GraphBuilder) -> Operand:
        b, s, d = value.shape
        return Operand(ops.emit1(new, "reshape", value, shape=(b, s, const(1), d)), "s")

    def flat_keys(self, result: Scores, new: GraphBuilder) -> Operand:
        if result.transposed:
            return self.flat_operand(result.k, new)
        node = self.producer(result.k, "transpose")
        if node is not None and node.of(TransposeAttrs).perm == (0, 2, 1) and node.inputs[0] is not None:
            return self.flat_operand(node.inputs[0], new)
        return self.flat_operand(ops.emit1(new, "transpose", result.k, perm=(0, 2, 1)), new)


def _transposes(node: Node) -> tuple[bool, bool]:
    attrs = node.of(MatmulAttrs)
    return attrs.transpose_a, attrs.transpose_b


def _same_lead(*values: Value) -> bool:
    """Whether the values have equal batch and head dimensions, without broadcasting."""
    first, *rest = (v.shape[:-2] for v in values)
    return all(len(r) == len(first) and all(equal(a, b) for a, b in zip(first, r, strict=True)) for r in rest)
