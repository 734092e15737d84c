"""Rules for gathers and one-hot encodings."""

from __future__ import annotations

from typing import Any

from tilewright.arith import prove
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.rules.scan import check_places
from tilewright.ir.dtype import i64
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of, dims
from tilewright.support.errors import ShapeError


@rule("Gather")
def gather(n: Call) -> Value:
    """Gather; with a single known index it is a slice."""
    x = n.value(0)
    axis = axis_of(n.integer("axis", 0), x.type.rank)
    indices = n.known(1)
    n.check_indices(1, x.shape[axis])
    if indices is not None and indices.dtype != object and n.dtype(1).is_int and indices.size == 1:
        low = int(indices.reshape(-1)[0])
        if low >= 0 or prove(x.shape[axis] >= -low):
            part = n.slice(x, axis, low if low >= 0 else x.shape[axis] + low, 1)
            ones = [1] * indices.ndim
            return n.emit("reshape", part, shape=dims((*x.shape[:axis], *ones, *x.shape[axis + 1 :])))
    return n.emit("gather", x, n.value(1), axis=axis)


@rule("GatherElements")
def gather_elements(n: Call) -> Value:
    axis = axis_of(n.integer("axis", 0), n.rank(0))
    n.check_indices(1, n.shape(0)[axis])
    return n.emit("gather_elements", n.value(0), n.value(1), axis=axis)


@rule("GatherND")
def gather_nd(n: Call) -> Value:
    batch = n.integer("batch_dims", 0)
    check_places(n, batch)
    return n.emit("gather_nd", n.value(0), n.value(1), batch_dims=batch)


@rule("OneHot")
def one_hot(n: Call) -> Value:
    if n.is_data(1):
        depth: Any = n.extent(n.within(n.value(1), 1, None, "the depth is not positive"))
    else:
        depth = n.number(1, "the depth of OneHot")
        if depth is None or int(depth) < 1:
            raise ShapeError("the depth is not positive", got=depth)
        depth = int(depth)
    indices = n.value(0) if n.dtype(0).is_int else n.cast(n.value(0), i64)
    axis = axis_of(n.integer("axis", -1), n.rank(0) + 1)
    return n.emit("one_hot", indices, n.value(2), axis=axis, depth=depth)
