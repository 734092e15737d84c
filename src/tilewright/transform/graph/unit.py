"""Softmax over one element, and products of depth one, as arithmetic: attention with one key needs no more. Batches of
one stay dimensions of a product. Dimensions of a volume in which windows are one element are one dimension.

    y = softmax(x), x: [.., 1]            ->   y = x - x + 1          NaN where x is NaN or infinite, else 1
    y, i = topk(x), one element of one    ->   y = x, i = 0
    y = matmul(a, b), a: [.., m, 1]       ->   y = a * b
    s = matmul(q, k), k: [.., d, 1]       ->   s = reduce_sum(q * k^T)        if a softmax over one element reads it
    y = matmul(a', b') with 1s in front   ->   y = matmul(a, b)               a', b' are a, b without these 1s
    y = conv(x, w), w: [k, c, 3, 1, 1]    ->   y = conv(x', w')               x': [n, c, d, h*w], w': [k, c, 3, 1]
    y = conv(x, w), x: [n, c, 1, 1]       ->   y = matmul(x', w')             (`transform/graph/unit_maps.py`)

Panels of products would be filled with one key and 31 zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import Ints
from tilewright.ir.expr import Expr, is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.norm import SoftmaxAttrs
from tilewright.ops.topk import TopkAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.rewrite import eliminate_dead
from tilewright.transform.graph.unit_maps import without_map
from tilewright.transform.regions.captures import builder_for

VOLUME = 3
"""Spatial dimensions of a volume."""
FULL_BITS = 32
"""Narrower floats are rounded after a product's sum; a sum of rounded products would differ."""


@dataclass(frozen=True, slots=True)
class _Flat:
    """The value with `dim` and the next dimension as one."""

    value: Value
    dim: int


def simplify_units(graph: Graph) -> Graph:
    """The graph without softmax over one element and products of depth one, where there are any."""
    builder = builder_for(graph)
    flat: dict[Value, _Flat] = {}
    dropped: dict[Value, Value] = {}
    scores, made = _unit_scores(graph), {v: n for n in graph.nodes for v in n.outputs}
    for node in graph.nodes:
        if _is_unit_topk(node):
            ops.emit1(builder, "identity", node.inputs[0])
            builder.nodes.append(replace(builder.nodes.pop(), outputs=node.outputs[:1]))
            zeros = np.zeros((), node.outputs[1].dtype.numpy)
            ops.emit1(builder, "broadcast", ops.emit1(builder, "constant", value=zeros), shape=node.outputs[1].shape)
            builder.nodes.append(replace(builder.nodes.pop(), outputs=node.outputs[1:]))
            continue
        written = (
            _written(node, node in scores, builder)
            or _with_leading(node, made, builder)
            or without_map(node, dropped, builder)
            or _with_joined(node, flat, builder)
        )
        if written is None:
            builder.nodes.append(node)
        else:  # the last node made takes the old one's place
            builder.nodes.append(replace(builder.nodes.pop(), outputs=node.outputs))
    return eliminate_dead(replace(graph, nodes=tuple(builder.nodes))) if builder.nodes != list(graph.nodes) else graph


def _written(node: Node, is_score: bool, builder: GraphBuilder) -> Value | None:
    """The value that replaces a node, emitted; None if it stays."""
    if _is_unit_softmax(node):
        x = node.inputs[0]
        one = ops.emit1(builder, "constant", value=np.ones((), node.output.dtype.numpy))
        return ops.emit1(builder, "add", ops.emit1(builder, "sub", x, x), one)
    if node.op != "matmul" or len(node.inputs) != 2 or not node.output.dtype.is_float:
        return None
    a, b = node.inputs
    assert a is not None and b is not None
    attrs = node.of(MatmulAttrs)
    if min(a.type.rank, b.type.rank) < 2 or attrs.transpose_a or a.dtype.bits < FULL_BITS:
        return None
    if is_const(a.shape[-1], 1):
        y = ops.emit1(builder, "mul", a, _turned(builder, b) if attrs.transpose_b else b)
        return y if y.type == node.output.type else None
    if not is_score:
        return None
    keys = b if attrs.transpose_b else _turned(builder, b)
    product = ops.emit1(builder, "mul", a, keys)
    return ops.emit1(builder, "reduce_sum", product, axes=(product.type.rank - 1,), keepdims=True)


def _with_leading(node: Node, made: Mapping[Value, Node], builder: GraphBuilder) -> Value | None:
    """A product of operands that lost leading ones by reshapes, where another one puts these back: `jnp.matmul` leaves
    such dimensions out, and attention is looked for with its batch."""
    product = made.get(node.inputs[0]) if node.op == "reshape" and node.inputs[0] is not None else None
    if product is None or product.op != "matmul" or len(product.inputs) != 2:
        return None
    added = node.output.type.rank - product.output.type.rank
    if added <= 0 or not _leads(node.output, product.output, added):
        return None
    operands = []
    for operand in product.inputs:
        reshaped = made.get(operand) if operand is not None else None
        source = reshaped.inputs[0] if reshaped is not None and reshaped.op == "reshape" else None
        if source is None or operand is None or not _leads(source, operand, added):
            return None
        operands.append(source)
    return ops.emit1(builder, "matmul", *operands, attrs=product.attrs)


def _with_joined(node: Node, flat: dict[Value, _Flat], builder: GraphBuilder) -> Value | None:
    """A convolution of a volume as one of a map, where windows are one element in two dimensions that follow each other
    and go on by one: a plan for maps does it, in registers of many pixels, however short the lines are. What is
    pointwise after it is done to the map, so that it stays in the convolution's kernel."""
    if node.op == "conv":
        made = _conv_of_map(node, builder)
    elif ops.is_pointwise(node):
        made = _pointwise_of_map(node, flat, builder)
    else:
        return None
    if made is None:
        return None
    flat[node.output] = made
    return ops.emit1(builder, "reshape", made.value, shape=node.output.shape)


def _conv_of_map(node: Node, builder: GraphBuilder) -> _Flat | None:
    x, weight = node.inputs
    assert x is not None and weight is not None
    attrs, rank = node.of(ConvAttrs), x.type.rank - 2

    def is_unit(d: int) -> bool:
        return is_const(weight.shape[2 + d], 1) and (attrs.strides[d], attrs.pads[d], attrs.pads[rank + d]) == (1, 0, 0)

    if rank < VOLUME:
        return None
    first = next((d for d in range(rank - 1) if is_unit(d) and is_unit(d + 1)), None)
    if first is None:
        return None

    def kept(values: Ints) -> Ints:
        return tuple(v for d, v in enumerate(values) if d % rank != first)

    of_map = replace(attrs, strides=kept(attrs.strides), dilations=kept(attrs.dilations), pads=kept(attrs.pads))
    operands = [ops.emit1(builder, "reshape", v, shape=_joined(v, 2 + first)) for v in (x, weight)]
    return _Flat(ops.emit1(builder, "conv", *operands, attrs=of_map), 2 + first)


def _pointwise_of_map(node: Node, flat: Mapping[Value, _Flat], builder: GraphBuilder) -> _Flat | None:
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
            operands.append(ops.emit1(builder, "reshape", v, shape=_joined(v, at)))
        else:
            return None
    return _Flat(ops.emit1(builder, node.op, *operands, attrs=node.attrs), dim)


def _is_alike(v: Value, at: int, output: Value, dim: int) -> bool:
    """Whether an operand is read along both dimensions or along none of them."""
    pair = v.shape[at : at + 2]
    return pair == output.shape[dim : dim + 2] or all(is_const(d, 1) for d in pair)


def _joined(value: Value, dim: int) -> tuple[Expr, ...]:
    """A shape with a dimension and the next one as one."""
    return (*value.shape[:dim], value.shape[dim] * value.shape[dim + 1], *value.shape[dim + 2 :])


def _leads(whole: Value, part: Value, added: int) -> bool:
    """Whether a shape is another one after so many ones."""
    return whole.shape[added:] == part.shape and all(is_const(d, 1) for d in whole.shape[:added])


def _turned(builder: GraphBuilder, x: Value) -> Value:
    """A row as a column, or a column as a row: the same memory."""
    return ops.emit1(builder, "reshape", x, shape=(*x.shape[:-2], x.shape[-1], x.shape[-2]))


def _is_unit_softmax(node: Node) -> bool:
    if node.op != "softmax" or node.inputs[0] is None:
        return False
    return is_const(node.output.shape[node.of(SoftmaxAttrs).axis], 1)


def _is_unit_topk(node: Node) -> bool:
    """Whether a node sorts single elements."""
    if node.op != "topk" or node.inputs[0] is None:
        return False
    x = node.inputs[0]
    return x.type == node.outputs[0].type and is_const(x.shape[node.of(TopkAttrs).axis], 1)


def _unit_scores(graph: Graph) -> set[Node]:
    """The products whose results reach a softmax over one element, scaled and masked or not."""
    made = {v: n for n in graph.nodes for v in n.outputs}
    members: set[Node] = set()
    left = [n.inputs[0] for n in graph.nodes if _is_unit_softmax(n)]
    while left:
        value = left.pop()
        node = None if value is None else made.get(value)
        if node is None or node in members:
            continue
        if node.op == "matmul":
            members.add(node)
        elif node.op in ("mul", "div", "add", "select"):
            left += [v for v in node.inputs if v is not None and v.type == node.output.type]
    return members


__all__ = ["simplify_units"]
