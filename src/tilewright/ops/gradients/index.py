"""Gradients of gathers and scatters: an element that was read several times gets the sum of the gradients."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import product
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of, dims
from tilewright.ops.gradients.mechanical import mechanical
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.index import AxisAttrs, GatherNdAttrs

Result = Sequence[Value | None]


@gradient("gather")
def gather(b: Backward) -> Result:
    """The result's gradient added into the rows of `x` from which elements were gathered."""
    x, indices = b.x(0), b.x(1)
    axis = axis_of(b.of(AxisAttrs).axis, x.type.rank)
    rank, count = x.type.rank, indices.type.rank
    front = [*range(axis, axis + count), *range(axis), *range(axis + count, rank - 1 + count)]
    rows = b.reshape(b.transpose(b.g, front), dims([product(indices.shape), *x.shape[:axis], *x.shape[axis + 1 :]]))
    places = b.reshape(indices, dims([product(indices.shape), 1]))
    target = b.zeros((x.shape[axis], *x.shape[:axis], *x.shape[axis + 1 :]), b.g)
    result = b.emit("scatter_nd", target, places, rows, reduction="add")
    return [b.transpose(result, [*range(1, axis + 1), 0, *range(axis + 1, rank)]), None]


@gradient("gather_elements")
def gather_elements(b: Backward) -> Result:
    x = b.x(0)
    zeros = b.zeros(x.shape, b.g)
    return [b.emit("scatter_elements", zeros, b.x(1), b.g, axis=b.of(AxisAttrs).axis, reduction="add"), None]


@gradient("gather_nd")
def gather_nd(b: Backward) -> Result:
    if b.of(GatherNdAttrs).batch_dims:
        return mechanical(b)
    return [b.emit("scatter_nd", b.zeros(b.x(0).shape, b.g), b.x(1), b.g, reduction="add"), None]


@gradient("topk")
def topk(b: Backward) -> Result:
    if b.output_gradients[0] is None:
        return [None]
    x = b.x()
    attrs = dict(b.node.attrs.items())
    zeros = b.zeros(x.shape, b.g)
    return [b.emit("scatter_elements", zeros, b.node.outputs[1], b.g, axis=attrs["axis"], reduction="add")]
