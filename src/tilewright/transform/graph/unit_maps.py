"""Convolutions of one-pixel maps as matrix products, with the pointwise work after them, as in squeeze-and-excitation.

    y = conv(x, w), x: [n, c, 1, 1], w: [k, c, 1, 1]   ->   y' = matmul(x', w', transpose_b), x': [n, c], w': [k, c]
    z = add(y, b), b: [k, 1, 1]                        ->   z' = add(y', b'), b': [k]

A convolution processes one image after another; in the product all images are rows.
"""

from __future__ import annotations

from tilewright.ir.expr import is_const
from tilewright.ir.graph import Value
from tilewright.ops.conv import ConvAttrs
from tilewright.transform.graph.rewrite import Match


def product_of_map(m: Match, maps: dict[Value, Value]) -> Value | None:
    """Emit a convolution of floats as a product, if its maps and window are one pixel and it has one group and no
    padding; None for other nodes. Adds the result, without map dimensions, to `maps`."""
    x, weight = m.node.operands(2)
    attrs = m.node.of(ConvAttrs)
    if attrs.groups != 1 or any(attrs.pads) or not x.dtype.is_float:
        return None
    if not all(is_const(d, 1) for v in (x, weight, m.node.output) for d in v.shape[2:]):
        return None
    rows = maps.get(x) or m.emit("reshape", x, shape=x.shape[:2])
    columns = m.emit("reshape", weight, shape=weight.shape[:2])
    return _as_map(m, maps, m.emit("matmul", rows, columns, transpose_b=True))


def without_map(m: Match, maps: dict[Value, Value]) -> Value | None:
    """Emit a pointwise node once more without the spatial dimensions, which are all 1, of its operands, whose forms
    without them are in `maps`; returns its result as a map. None for other nodes."""
    node = m.node
    first = next((v for v in node.inputs if v in maps), None)
    if first is None or len(node.outputs) != 1:
        return None
    sides = first.type.rank - 2
    if node.output.type.rank != first.type.rank or not all(is_const(d, 1) for d in node.output.shape[2:]):
        return None
    operands = []
    for v in node.inputs:
        if v is None or v in maps or v.type.rank <= sides:  # as many ones, or none
            operands.append(maps.get(v, v) if v is not None else None)
        else:
            operands.append(m.emit("reshape", v, shape=v.shape[: v.type.rank - sides]))
    return _as_map(m, maps, m.emit(node.op, *operands, attrs=node.attrs))


def _as_map(m: Match, maps: dict[Value, Value], result: Value) -> Value:
    maps[m.node.output] = result
    return m.emit("reshape", result, shape=m.node.output.shape)


__all__ = ["product_of_map", "without_map"]
