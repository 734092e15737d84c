"""The resizing of one axis, and grids of sampling coordinates, as all frontends emit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.arith import simplify
from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.attributes import Dim
from tilewright.ir.dtype import f32, f64
from tilewright.ir.expr import Expr, Var, as_expr, as_int
from tilewright.ir.graph import Value
from tilewright.ir.rewrite import substitute
from tilewright.ops.registry import infer
from tilewright.ops.resize import ResizeAttrs, integer_upsampling


def resize_axis(n: Emitter, x: Value, **arguments: Any) -> Value:
    """The operator `resize` with these attributes (see `ops/resize.py`); as a product with tables of taps where that
    applies."""
    attrs = ResizeAttrs.of(arguments, "resize")
    if as_int(attrs.size) == 0:
        return n.slice(x, attrs.axis, 0, 0)
    x = sampled(n, x, attrs.axis, as_expr(attrs.size))
    axis, extent, size = attrs.axis, _number(x.shape[attrs.axis]), _number(attrs.size)
    if attrs.coordinates == "tf_crop_and_resize" or integer_upsampling(attrs) is not None:
        return n.emit("resize", x, **arguments)
    infer("resize", [x.type], attrs)
    work = f32 if x.dtype.is_float and x.dtype is not f64 else f64
    index, weights = n.emit_all("resize_taps", extent=extent, dtype=work, **arguments | {"size": size})
    if attrs.mode == "nearest":
        return n.emit("gather", x, n.reshape(index, (size,)), axis=axis)
    return n.emit("resample", x, index, weights, axis=axis)


def sampled(n: Emitter, x: Value, axis: int, size: Expr) -> Value:
    """`x`, with a check that it has elements along `axis`, from which `size` samples are computed. There is no check
    where an empty axis has no samples either, such as where `size` is the extent times a scale."""
    extent = x.shape[axis]
    if isinstance(extent, Var) and as_int(simplify(substitute(size, {extent: as_expr(0)}))) == 0:
        return x
    return n.nonempty(x, [axis])


def affine_places(n: Emitter, theta: Value, extents: Sequence[int], align_corners: bool, shape: Sequence[Any]) -> Value:
    """Sampling coordinates, of shape `shape`, for each point of a grid of `extents`: its coordinates, transformed by
    the matrices `theta` [batch, rank, rank + 1]. The grid runs from -1 to 1 between the centres of its outermost points
    (`align_corners`) or between their outer edges. The last coordinate belongs to the first spatial dimension."""
    lines = []
    for extent in extents:
        line = np.linspace(-1, 1, extent) if extent > 1 else np.zeros(extent)
        lines.append(line if align_corners or not extent else line * ((extent - 1) / extent))
    places = np.meshgrid(*lines, indexing="ij")[::-1]
    points = np.stack([*places, np.ones_like(places[0])], -1).reshape(1, -1, len(lines) + 1)
    moved = n.emit("matmul", n.constant(points, theta.dtype), theta, transpose_a=False, transpose_b=True)
    return n.reshape(moved, shape)


def _number(size: Dim) -> Dim:
    """A dimension as a number if it is one."""
    known = as_int(size)
    return size if known is None else known
