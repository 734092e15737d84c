"""Resizing one axis, as the frontends emit it."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.attributes import Dim
from tilewright.ir.dtype import f32, f64
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Value
from tilewright.ops.registry import infer
from tilewright.ops.resize import ResizeAttrs, integer_upsampling


def resize_axis(n: Emitter, x: Value, **given: Any) -> Value:
    """`resize` with the attributes given (see `ops/resize.py`), by tables of taps where there are some."""
    attrs = ResizeAttrs.of(given, "resize")
    axis, extent, size = attrs.axis, _number(x.shape[attrs.axis]), _number(attrs.size)
    if attrs.coordinates == "tf_crop_and_resize" or integer_upsampling(attrs) is not None:
        return n.emit("resize", x, **given)
    infer("resize", [x.type], attrs)
    work = f32 if x.dtype.is_float and x.dtype is not f64 else f64
    index, weights = n.emit_all("resize_taps", extent=extent, dtype=work, **given | {"size": size})
    if attrs.mode == "nearest":
        return n.emit("gather", x, n.reshape(index, (size,)), axis=axis)
    return n.emit("resample", x, index, weights, axis=axis)


def _number(size: Dim) -> Dim:
    """A dimension as a number if it is one."""
    known = as_int(size)
    return size if known is None else known
