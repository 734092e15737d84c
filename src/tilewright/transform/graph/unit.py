"""Softmax over one element, and products of depth one, as arithmetic: attention with one key needs no more. Batches of
one stay dimensions of a product.

    y = softmax(x), x: [.., 1]            ->   y = x - x + 1          NaN where x is NaN or infinite, else 1
    y = matmul(a, b), a: [.., m, 1]       ->   y = a * b
    s = matmul(q, k), k: [.., d, 1]       ->   s = reduce_sum(q * k^T)        if a softmax over one element reads it
    y = matmul(a', b') with 1s in front   ->   y = matmul(a, b)               a', b' are a, b without these 1s

Panels of products would be filled with one key and 31 zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilewright import ops
from tilewright.ir.expr import is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.norm import SoftmaxAttrs
from tilewright.transform.regions.captures import names_of

FULL_BITS = 32
"""Narrower floats are rounded behind a product's sum; a sum of rounded products would differ."""


def simplify_units(graph: Graph) -> Graph:
    """The graph without softmax over one element and products of depth one, where there are any."""
    builder = GraphBuilder(graph.name, taken=names_of(graph))
    scores, made = _unit_scores(graph), {v: n for n in graph.nodes for v in n.outputs}
    for node in graph.nodes:
        written = _written(node, node in scores, builder) or _with_leading(node, made, builder)
        if written is None:
            builder.nodes.append(node)
        else:  # the last node made takes the old one's place
            builder.nodes.append(replace(builder.nodes.pop(), outputs=node.outputs))
    return replace(graph, nodes=tuple(builder.nodes)) if builder.nodes != list(graph.nodes) else graph


def _written(node: Node, is_score: bool, builder: GraphBuilder) -> Value | None:
    """What stands for a node, emitted; None if it stays."""
    if _is_unit_softmax(node):
        x = node.inputs[0]
        one = ops.emit1(builder, "constant", value=np.ones((), node.output.dtype.numpy))
        return ops.emit1(builder, "add", ops.emit1(builder, "sub", x, x), one)
    if node.op != "matmul" or len(node.inputs) != 2 or not node.output.dtype.is_float:
        return None
    a, b = node.inputs
    assert a is not None and b is not None
    attrs = node.of(MatmulAttrs)
    if min(a.type.rank, b.type.rank) < 2 or attrs.transpose_a or node.output.dtype.bits < FULL_BITS:
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


def _leads(whole: Value, part: Value, added: int) -> bool:
    """Whether a shape is another one behind so many ones."""
    return whole.shape[added:] == part.shape and all(is_const(d, 1) for d in whole.shape[:added])


def _turned(builder: GraphBuilder, x: Value) -> Value:
    """A row as a column, or a column as a row: the same memory."""
    return ops.emit1(builder, "reshape", x, shape=(*x.shape[:-2], x.shape[-1], x.shape[-2]))


def _is_unit_softmax(node: Node) -> bool:
    if node.op != "softmax" or node.inputs[0] is None:
        return False
    return is_const(node.output.shape[node.of(SoftmaxAttrs).axis], 1)


def _unit_scores(graph: Graph) -> set[Node]:
    """The products whose results reach a softmax over one element, scaled and masked or not."""
    made = {v: n for n in graph.nodes for v in n.outputs}
    found: set[Node] = set()
    left = [n.inputs[0] for n in graph.nodes if _is_unit_softmax(n)]
    while left:
        value = left.pop()
        node = None if value is None else made.get(value)
        if node is None or node in found:
            continue
        if node.op == "matmul":
            found.add(node)
        elif node.op in ("mul", "div", "add", "select"):
            left += [v for v in node.inputs if v is not None and v.type == node.output.type]
    return found


__all__ = ["simplify_units"]
