"""Replace softmax over one element and products of depth one by arithmetic, as in attention with one key. Batches of
one stay dimensions of a product. Two dimensions of a volume along which windows have one element become one dimension.

    y = softmax(x), x: [.., 1]            ->   y = x - x + 1          NaN where x is NaN or infinite, else 1
    y, i = topk(x), one element of one    ->   y = x, i = 0
    y = matmul(a, b), a: [.., m, 1]       ->   y = a * b
    s = matmul(q, k), k: [.., d, 1]       ->   s = reduce_sum(q * k^T)        if a softmax over one element reads it
    y = matmul(a', b') with 1s in front   ->   y = matmul(a, b)               a', b' are a, b without these 1s
    y = conv(x, w), w: [k, c, 3, 1, 1]    ->   y = conv(x', w')               x': [n, c, d, h*w], w': [k, c, 3, 1]
    y = conv(x, w), x: [n, c, 1, 1]       ->   y = matmul(x', w')             (`transform/graph/unit_maps.py`)

The panels of a product would hold one key and 31 columns of zeros.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import Ints
from tilewright.ir.expr import Expr, is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.norm import SoftmaxAttrs
from tilewright.ops.topk import TopkAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.matching import any_op, op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite
from tilewright.transform.graph.unit_maps import product_of_map, without_map

VOLUME = 3
"""The number of spatial dimensions of a volume."""
FULL_BITS = 32
"""The least bits of floats that are rewritten. A product of narrower ones is rounded once, after its sum, unlike a sum
of rounded products."""


@dataclass(frozen=True, slots=True)
class _Flat:
    """A value that a reshape changes only by joining its dimension `dim` and the next one into one."""

    value: Value
    dim: int


def simplify_units(graph: Graph) -> Graph:
    """The graph without softmax over one element and products of depth one."""
    scores = _unit_scores(graph)
    maps: dict[Value, Value] = {}
    flat: dict[Value, _Flat] = {}
    leading = op("reshape", op("matmul", op("reshape", "a"), op("reshape", "b"), name="product"))
    return rewrite(
        graph,
        [
            Rule(op("softmax", "x", where=_is_unit_softmax), _one),
            Rule(op("topk", "x", where=_is_unit_topk), _first),
            Rule(op("matmul", "a", "b", where=_is_product), lambda m: _of_depth_one(m) or _score(m, scores)),
            Rule(leading, _with_leading),
            Rule(op("conv"), lambda m: product_of_map(m, maps) or _conv_of_map(m, flat)),
            Rule(any_op(where=ops.is_pointwise), lambda m: without_map(m, maps) or _pointwise_of_map(m, flat)),
        ],
    )


def _one(m: Match) -> Value:
    x = m["x"]
    one = m.emit("constant", value=np.ones((), x.dtype.numpy))
    return m.emit("add", m.emit("sub", x, x), one)


def _first(m: Match) -> tuple[Value, Value]:
    _, places = m.node.outputs
    zero = m.emit("constant", value=np.zeros((), places.dtype.numpy))
    return m.emit("identity", m["x"]), m.emit("broadcast", zero, shape=places.shape)


def _is_product(node: Node) -> bool:
    """Whether a node is a product of matrices of at least `FULL_BITS` bits, whose first operand is not transposed."""
    ranks = [v.type.rank for v in node.inputs if v is not None]
    if len(ranks) != 2 or len(node.inputs) != 2 or min(ranks) < 2 or node.of(MatmulAttrs).transpose_a:
        return False
    return node.output.dtype.is_float and all(v is not None and v.dtype.bits >= FULL_BITS for v in node.inputs[:1])


def _of_depth_one(m: Match) -> Value | None:
    a, b = m["a"], m["b"]
    if not is_const(a.shape[-1], 1):
        return None
    y = m.emit("mul", a, _transposed(m, b) if m.node.of(MatmulAttrs).transpose_b else b)
    return y if y.type == m.node.output.type else None


def _score(m: Match, scores: Collection[Value]) -> Value | None:
    a, b = m["a"], m["b"]
    if m.node.output not in scores or is_const(a.shape[-1], 1):
        return None
    product = m.emit("mul", a, b if m.node.of(MatmulAttrs).transpose_b else _transposed(m, b))
    return m.emit("reduce_sum", product, axes=(product.type.rank - 1,), keepdims=True)


def _with_leading(m: Match) -> Value | None:
    """Emit a product with its leading dimensions of 1, if reshapes remove them from its operands and restore them in
    its result: `jnp.matmul` leaves such dimensions out, but the pattern of attention needs the batch."""
    product = m.producer("product")
    added = m.node.output.type.rank - product.output.type.rank
    if len(product.inputs) != 2 or added <= 0 or not _leads(m.node.output, product.output, added):
        return None
    sources = (m["a"], m["b"])
    if not all(_leads(whole, part, added) for whole, part in zip(sources, product.operands(2), strict=True)):
        return None
    return m.emit("matmul", *sources, attrs=product.attrs)


def _conv_of_map(m: Match, flat: dict[Value, _Flat]) -> Value | None:
    """Emit a convolution of a volume as one of a map, if its window has one element and stride 1 in two adjacent
    dimensions. Plans for maps fill registers with many pixels, however short the lines are. Pointwise work on the
    result is done on the map too (`_pointwise_of_map`), so that it stays in the convolution's kernel."""
    x, weight = m.node.operands(2)
    attrs, rank = m.node.of(ConvAttrs), x.type.rank - 2

    def is_unit(d: int) -> bool:
        return is_const(weight.shape[2 + d], 1) and (attrs.strides[d], attrs.pads[d], attrs.pads[rank + d]) == (1, 0, 0)

    if rank < VOLUME:
        return None
    first = next((d for d in range(rank - 1) if is_unit(d) and is_unit(d + 1)), None)
    if first is None:
        return None

    def others(values: Ints) -> Ints:
        return tuple(v for d, v in enumerate(values) if d % rank != first)

    of_map = replace(attrs, strides=others(attrs.strides), dilations=others(attrs.dilations), pads=others(attrs.pads))
    operands = [m.emit("reshape", v, shape=_joined(v, 2 + first)) for v in (x, weight)]
    return _as_volume(m, flat, _Flat(m.emit("conv", *operands, attrs=of_map), 2 + first))


def _pointwise_of_map(m: Match, flat: dict[Value, _Flat]) -> Value | None:
    node = m.node
    dim = next((flat[v].dim for v in node.inputs if v is not None and v in flat), None)
    if dim is None:
        return None
    operands = []
    for v in node.inputs:
        at = -2 if v is None else dim + v.type.rank - node.output.type.rank
        if v is None or at <= -2:  # an operand along later dimensions alone
            operands.append(v)
        elif v in flat and flat[v].dim == at == dim:
            operands.append(flat[v].value)
        elif at >= 0 and _is_alike(v, at, node.output, dim):
            operands.append(m.emit("reshape", v, shape=_joined(v, at)))
        else:
            return None
    return _as_volume(m, flat, _Flat(m.emit(node.op, *operands, attrs=node.attrs), dim))


def _as_volume(m: Match, flat: dict[Value, _Flat], result: _Flat) -> Value:
    flat[m.node.output] = result
    return m.emit("reshape", result.value, shape=m.node.output.shape)


def _is_alike(v: Value, at: int, output: Value, dim: int) -> bool:
    """Whether `v` is broadcast along both of the dimensions `dim` and `dim + 1` of `output`, or along neither; `at` is
    the first of the two in `v`."""
    pair = v.shape[at : at + 2]
    return pair == output.shape[dim : dim + 2] or all(is_const(d, 1) for d in pair)


def _joined(value: Value, dim: int) -> tuple[Expr, ...]:
    """The shape of a value with dimension `dim` and the next one joined."""
    return (*value.shape[:dim], value.shape[dim] * value.shape[dim + 1], *value.shape[dim + 2 :])


def _leads(whole: Value, part: Value, added: int) -> bool:
    """Whether the shape of `whole` is that of `part` with `added` dimensions of 1 in front."""
    return whole.shape[added:] == part.shape and all(is_const(d, 1) for d in whole.shape[:added])


def _transposed(m: Match, x: Value) -> Value:
    """Emit a reshape of a row to a column or of a column to a row, without a copy."""
    return m.emit("reshape", x, shape=(*x.shape[:-2], x.shape[-1], x.shape[-2]))


def _is_unit_softmax(node: Node) -> bool:
    if node.op != "softmax" or node.inputs[0] is None:
        return False
    return is_const(node.output.shape[node.of(SoftmaxAttrs).axis], 1)


def _is_unit_topk(node: Node) -> bool:
    """Whether a node is a topk over an axis of one element."""
    if node.op != "topk" or node.inputs[0] is None:
        return False
    x = node.inputs[0]
    return x.type == node.outputs[0].type and is_const(x.shape[node.of(TopkAttrs).axis], 1)


def _unit_scores(graph: Graph) -> frozenset[Value]:
    """The results of products that reach a softmax over one element, scaled and masked or not."""
    producers = graph.producers()
    members: set[Value] = set()
    left = [n.inputs[0] for n in graph.nodes if _is_unit_softmax(n)]
    while left:
        value = left.pop()
        node = None if value is None else producers.get(value)
        if node is None or value is None or value in members:
            continue
        if node.op == "matmul":
            members.add(value)
        elif node.op in ("mul", "div", "add", "select"):
            left += [v for v in node.inputs if v is not None and v.type == node.output.type]
    return frozenset(members)


__all__ = ["simplify_units"]
