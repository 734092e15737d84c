"""Let few queries attend to the source of keys and values instead of to its projections: products associate.

    k = x Wk + bk,  v = x Wv + bv                    for each head h: q'_h = q_h Wk_h^T
    y = attention(q, k, v)                     ->    z = attention(q', x, x), all heads' rows as queries of one head
                                                     y_h = z_h Wv_h + bv_h

Projecting n keys and values of width c takes 4 n c^2 operations. One query on the source itself takes 4 c^2 for its own
products, and 4 n c per head for scores and sums. Attention pooling, class tokens, latents and policies with memory have
few queries. The keys' bias adds the same number to all scores of a query, which a softmax does not see; the
probabilities of a query add up to one, so that the values' bias is added once.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import ops
from tilewright.arith import prove_equal
from tilewright.ir.expr import Expr, as_int, const, is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.dims import dim
from tilewright.ops.lowered.attention import ORDERS, AttentionAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.plans.framework.cost import number
from tilewright.support.classes import dataclass
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite

WORTH = 0.7
"""The largest share of the operations of the usual order at which the rewrite still pays: products of few rows are
bound by reading their weights, and attention over wide keys cannot share them among heads."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A projected operand [batch, sequence, heads, depth]: `source` [.., width] times `weight` [width, heads * depth],
    which may be stored transposed, plus `bias`."""

    source: Value
    weight: Value
    transposed: bool
    bias: Value | None

    @property
    def width(self) -> Expr:
        return self.weight.shape[1 if self.transposed else 0]


def attend_to_sources(graph: Graph) -> Graph:
    """The graph in which attention with few queries reads the source of keys and values instead of their
    projections."""
    return rewrite(graph, [Rule(op("lowered.attention"), lambda m: _Projected(m).run())])


class _Projected:
    """Rewrites one attention node, so that its queries attend to the source of the keys and values. It emits nothing
    before all conditions are checked."""

    def __init__(self, m: Match) -> None:
        self.node, self.facts, self.new = m.node, m.rewriter, m
        self.attrs = m.node.of(AttentionAttrs)

    def run(self) -> Value | None:
        """Emit the rewritten attention and return its result; None if the attention stays."""
        attrs, (q, k, v, *rest) = self.attrs, self.node.inputs
        mask, scale = (*rest, None, None)[:2]
        assert q is not None and k is not None and v is not None
        if attrs.causal or attrs.dot is not None or attrs.groups != attrs.heads or any(attrs.first):
            return None
        if any(i is not None for i in rest[2:]) or q.dtype.bits < 32:
            return None
        keys, values = self.projection(k, attrs.order[1]), self.projection(v, attrs.order[2])
        if keys is None or values is None:
            return None
        # Where a mask puts one number in the place of scores, the others may not be shifted.
        if keys.bias is not None and mask is not None and not mask.dtype.is_float:
            return None
        if (values.bias is not None and attrs.guard) or not self.pays(q, k, v, keys, values):
            return None
        return self.emit(q, mask, scale, keys, values)

    def projection(self, value: Value, order: str) -> Projection | None:
        """The projection that computes `value`, keys or values in the layout `order`, if this attention is its only
        reader; None otherwise."""
        if order == "h":
            transposed = self.only(value, "transpose")
            if transposed is None or transposed.attrs != ops.attributes("transpose", {"perm": ORDERS["h"]}):
                return None
            (inner,) = transposed.inputs
            assert inner is not None
            return self.projection(inner, "s")
        split = self.only(value, "reshape") if order == "s" else None
        flat = None if split is None else split.inputs[0]
        if flat is None or not is_const(flat.shape[-1], (as_int(value.shape[2]) or 0) * (as_int(value.shape[3]) or 0)):
            return None
        bias = None
        added = self.only(flat, "add")
        if added is not None:
            for place in (0, 1):
                data, other = added.inputs[place], added.inputs[1 - place]
                assert data is not None and other is not None
                if self.only(data, "matmul") is not None and other in self.facts.fixed and _is_row(other):
                    flat, bias = data, other
                    break
            else:
                return None
        product = self.only(flat, "matmul")
        if product is None or product.of(MatmulAttrs).transpose_a:
            return None
        source, weight = product.operands(2)
        rows_match = prove_equal(_rows(source), value.shape[0] * value.shape[1])
        if weight not in self.facts.fixed or weight.type.rank != 2 or not rows_match:
            return None
        return Projection(source, weight, product.of(MatmulAttrs).transpose_b, bias)

    def only(self, value: Value, op: str) -> Node | None:
        """The node with operator `op` that computes a value, if the value has one reader; None otherwise."""
        return None if self.facts.only_reader(value) is None else self.facts.producer(value, op)

    def pays(self, q: Value, k: Value, v: Value, keys: Projection, values: Projection) -> bool:
        """Whether attention of the queries `q` on the unprojected `keys` and `values` needs at most `WORTH` times the
        multiplications of attention on the projected ones, `k` and `v`. False if the number of queries is unknown."""
        order, heads = self.attrs.order, float(self.attrs.heads)
        _, queries, _, depth = (q.shape[d] for d in ORDERS[order[0]])
        _, length, _, out_depth = (v.shape[d] for d in ORDERS[order[2]])
        n = as_int(queries)
        if n is None:
            return False
        m, d, e = (number(x) for x in (length, depth, out_depth))
        c, w = number(keys.width), number(values.width)
        usual = m * heads * (c * d + w * e) + n * m * heads * (d + e)
        ours = n * heads * (c * d + w * e) + n * m * heads * (c + w)
        return ours <= WORTH * usual

    def emit(self, q: Value, mask: Value | None, scale: Value | None, keys: Projection, values: Projection) -> Value:
        new, attrs, heads = self.new, self.attrs, self.attrs.heads
        batch, queries, _, depth = (q.shape[d] for d in ORDERS[attrs.order[0]])
        length = (self.node.inputs[1] or q).shape[ORDERS[attrs.order[1]][1]]
        out_depth = self.node.output.shape[3]
        rows = self.of_heads(q, attrs.order[0])
        wide = self.per_head(rows, self.factors(keys, depth, inward=True), batch, queries)
        query = new.emit("reshape", wide, shape=(batch, const(1), dim(queries * heads), wide.shape[-1]))
        sources = [
            new.emit("reshape", p.source, shape=(batch, length, const(1), p.source.shape[-1])) for p in (keys, values)
        ]
        hidden = None if mask is None else self.merged(mask, batch, queries, length)
        inputs: list[Value | None] = [query, *sources, hidden, scale]
        while inputs[-1] is None:
            inputs.pop()
        of_one_head = replace(attrs, order="hssh", heads=1, groups=1)
        summed = new.emit("lowered.attention", *inputs, attrs=of_one_head)
        z = new.emit("reshape", summed, shape=(batch, const(heads), queries, summed.shape[-1]))
        z = new.emit("transpose", z, perm=(1, 0, 2, 3))
        y = self.per_head(z, self.factors(values, out_depth, inward=False), batch, queries)
        if values.bias is not None:
            bias = new.emit("reshape", values.bias, shape=(const(1), const(heads), const(1), out_depth))
            y = new.emit("add", y, bias)
        order = attrs.order[3]
        if order != "h":
            # from [batch, heads, queries, depth]
            perm = {"s": (0, 2, 1, 3), "t": (2, 0, 1, 3)}[order]
            y = new.emit("transpose", y, perm=perm)
        return y

    def of_heads(self, q: Value, order: str) -> Value:
        """Emit the queries `q`, which are in the layout `order`, as [heads, batch, queries, depth], and return them."""
        perm = {"s": (2, 0, 1, 3), "h": (1, 0, 2, 3), "t": (2, 1, 0, 3)}[order]
        return self.new.emit("transpose", q, perm=perm)

    def factors(self, p: Projection, depth: Expr, *, inward: bool) -> Value:
        """Emit the columns of a projection's weight for each head: [heads, width, depth], or with `inward` [heads,
        depth, width]."""
        new, heads = self.new, const(self.attrs.heads)
        shape = (heads, depth, p.width) if p.transposed else (p.width, heads, depth)
        perm = ((0, 1, 2) if inward else (0, 2, 1)) if p.transposed else (1, 2, 0) if inward else (1, 0, 2)
        split = new.emit("reshape", p.weight, shape=shape)
        return split if perm == (0, 1, 2) else new.emit("transpose", split, perm=perm)

    def per_head(self, rows: Value, weight: Value, batch: Expr, queries: Expr) -> Value:
        """Emit the product of `rows` [heads, batch, queries, a] and `weight` [heads, a, b] as [batch, heads, queries,
        b], in which the weights are read once for all entries of the batch."""
        new = self.new
        flat = new.emit("reshape", rows, shape=(rows.shape[0], dim(batch * queries), rows.shape[3]))
        y = new.emit("matmul", flat, weight)
        y = new.emit("reshape", y, shape=(rows.shape[0], batch, queries, y.shape[-1]))
        return new.emit("transpose", y, perm=(1, 0, 2, 3))

    def merged(self, mask: Value, batch: Expr, queries: Expr, length: Expr) -> Value:
        """Emit `mask`, for `queries` queries of each head of `batch` sequences and `length` keys, for the rows of all
        heads as queries of one head; returns it as [batch or 1, 1, heads * queries or 1, keys or 1]."""
        new, heads = self.new, const(self.attrs.heads)
        shape = (*[const(1)] * (4 - mask.type.rank), *mask.shape)
        if mask.type.rank != 4:
            mask = new.emit("reshape", mask, shape=shape)
        if is_const(shape[1], 1) and is_const(shape[2], 1):
            return mask
        full = (shape[0], heads, queries, shape[3])
        mask = new.emit("broadcast", mask, shape=full)
        return new.emit("reshape", mask, shape=(shape[0], const(1), dim(heads * queries), shape[3]))


def _is_row(value: Value) -> bool:
    """Whether all dimensions of a value but the last are 1."""
    return all(is_const(d, 1) for d in value.shape[:-1]) and value.type.rank > 0


def _rows(value: Value) -> Expr:
    rows: Expr = const(1)
    for d in value.shape[:-1]:
        rows = rows * d
    return rows
