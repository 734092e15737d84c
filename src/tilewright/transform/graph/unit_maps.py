"""Convolutions of maps of one pixel as products, with what is pointwise after them: gates of squeeze and excitation.

    y = conv(x, w), x: [n, c, 1, 1], w: [k, c, 1, 1]   ->   y' = matmul(x', w', transpose_b), x': [n, c], w': [k, c]
    z = add(y, b), b: [k, 1, 1]                        ->   z' = add(y', b'), b': [k]

A convolution multiplies the pixels of one image after another; images are the rows of a product.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.ir.expr import is_const
from tilewright.ir.graph import GraphBuilder, Node, Value
from tilewright.ops.conv import ConvAttrs


def without_map(node: Node, dropped: dict[Value, Value], builder: GraphBuilder) -> Value | None:
    """The value that replaces a node with maps of one pixel, emitted; None if it stays. `dropped`: such results
    without the dimensions of their maps, to which this one is added."""
    if node.op == "conv":
        made = _product(node, dropped, builder)
    elif ops.is_pointwise(node) and len(node.outputs) == 1:
        made = _pointwise(node, dropped, builder)
    else:
        return None
    if made is None:
        return None
    dropped[node.output] = made
    return ops.emit1(builder, "reshape", made, shape=node.output.shape)


def _product(node: Node, dropped: dict[Value, Value], builder: GraphBuilder) -> Value | None:
    x, weight = node.inputs
    assert x is not None and weight is not None
    attrs, maps = node.of(ConvAttrs), (x, weight, node.output)
    if attrs.groups != 1 or any(attrs.pads) or not x.dtype.is_float:
        return None
    if not all(is_const(d, 1) for v in maps for d in v.shape[2:]):
        return None
    rows = dropped.get(x) or ops.emit1(builder, "reshape", x, shape=x.shape[:2])
    columns = ops.emit1(builder, "reshape", weight, shape=weight.shape[:2])
    return ops.emit1(builder, "matmul", rows, columns, transpose_b=True)


def _pointwise(node: Node, dropped: dict[Value, Value], builder: GraphBuilder) -> Value | None:
    first = next((v for v in node.inputs if v in dropped), None)
    if first is None:
        return None
    sides = first.type.rank - 2
    if node.output.type.rank != first.type.rank or not all(is_const(d, 1) for d in node.output.shape[2:]):
        return None
    operands = []
    for v in node.inputs:
        if v is None or v in dropped or v.type.rank <= sides:  # as many ones, or none
            operands.append(dropped.get(v, v) if v is not None else None)
            continue
        operands.append(ops.emit1(builder, "reshape", v, shape=v.shape[: v.type.rank - sides]))
    return ops.emit1(builder, node.op, *operands, attrs=node.attrs)


__all__ = ["without_map"]
