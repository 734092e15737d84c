"""Rules for gathers and one-hot encodings."""

from __future__ import annotations

from typing import Any

from tilewright.arith import prove
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.dtype import i64
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Value
from tilewright.ops.dims import at_least, axis_of
from tilewright.support.errors import ShapeError, UnsupportedError


@rule("Gather")
def gather(n: Call) -> Value:
    """One known index is a slice; any other indices gather."""
    x = n.value(0)
    axis = axis_of(n.integer("axis", 0), x.type.rank)
    indices = n.known(1)
    extent = as_int(x.shape[axis])
    if indices is not None and indices.dtype != object and n.dtype(1).is_int and indices.size:
        low, high = int(indices.min()), int(indices.max())
        if extent is not None and not -extent <= low <= high < extent:
            raise ShapeError(
                "an index is outside the dimension",
                expected=f"from {-extent} to {extent - 1}",
                got=low if low < -extent else high,
            )
        if extent is None and high >= 0:
            at_least(x.shape[axis], const(high + 1), "an index may be outside the dimension")
        if indices.size == 1 and (low >= 0 or prove(x.shape[axis] >= -low)):
            part = n.slice(x, axis, low if low >= 0 else x.shape[axis] + low, 1)
            ones = [1] * indices.ndim
            return n.emit("reshape", part, shape=_dims((*x.shape[:axis], *ones, *x.shape[axis + 1 :])))
    return n.emit("gather", x, n.value(1), axis=axis)


def _dims(values: Any) -> Any:
    from tilewright.ops.dims import dims

    return dims(values)


@rule("GatherElements")
def gather_elements(n: Call) -> Value:
    return n.emit("gather_elements", n.value(0), n.value(1), axis=axis_of(n.integer("axis", 0), n.rank(0)))


@rule("GatherND")
def gather_nd(n: Call) -> Value:
    return n.emit("gather_nd", n.value(0), n.value(1), batch_dims=n.integer("batch_dims", 0))


@rule("OneHot")
def one_hot(n: Call) -> Value:
    if n.is_data(1):
        depth: Any = n.extent(n.cast(n.value(1), i64))
    else:
        depth = n.number(1, "the depth of OneHot")
        if depth is None or int(depth) < 1:
            raise UnsupportedError("OneHot needs a positive depth", got=depth)
        depth = int(depth)
    indices = n.value(0) if n.dtype(0).is_int else n.cast(n.value(0), i64)
    axis = axis_of(n.integer("axis", -1), n.rank(0) + 1)
    return n.emit("one_hot", indices, n.value(2), axis=axis, depth=depth)
