"""Resizing one axis, as the frontends emit it."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.dtype import f32, f64
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Value
from tilewright.ops.registry import infer
from tilewright.ops.resize import ResizeAttrs, integer_upsampling


def resize_axis(n: Emitter, x: Value, **given: Any) -> Value:
    """`resize` with the attributes given (see `ops/resize.py`): with tables of taps where the sizes are numbers, else
    by formulas at every element."""
    attrs = ResizeAttrs.of(given, "resize")
    axis = attrs.axis
    extent, size = as_int(x.shape[axis]), as_int(attrs.size)
    plain = extent is None or size is None or attrs.coordinates == "tf_crop_and_resize"
    if plain or integer_upsampling(attrs) is not None:
        return n.emit("resize", x, **given)
    infer("resize", [x.type], attrs)
    work = f32 if x.dtype.is_float and x.dtype is not f64 else f64
    index, weights = n.emit_all("resize_taps", extent=extent, dtype=work, **given | {"size": size})
    if attrs.mode == "nearest":
        return n.emit("gather", x, n.reshape(index, (size,)), axis=axis)
    return n.emit("resample", x, index, weights, axis=axis)
