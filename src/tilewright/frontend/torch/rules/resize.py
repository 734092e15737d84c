"""Rules for `interpolate`: one axis after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.common.resize import affine_places, resize_axis
from tilewright.frontend.common.resized import Sampling, resize_axis_by_data
from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import f64, i64
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Value
from tilewright.ops.dims import same_dim, static
from tilewright.ops.resize import ResizeTapsAttrs, known_taps


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def nearest(n: Call, x: Value, size: Any, *scales: Any) -> Value:
    return _resized(n, x, scales, mode="nearest", coordinates="asymmetric", rounding="floor")


@rule("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def nearest_exact(n: Call, x: Value, size: Any, *scales: Any) -> Value:
    return _resized(n, x, scales, mode="nearest", coordinates="half_pixel", rounding="round_prefer_ceil")


@rule("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa", single=True)
def linear(n: Call, x: Value, size: Any, align_corners: bool, *scales: Any) -> Value:
    return _smooth(n, x, scales, "linear", align_corners)


@rule("upsample_bicubic2d", "_upsample_bicubic2d_aa", single=True)
def cubic(n: Call, x: Value, size: Any, align_corners: bool, *scales: Any) -> Value:
    return _smooth(n, x, scales, "cubic", align_corners)


def _smooth(n: Call, x: Value, scales: Any, mode: str, align_corners: bool) -> Value:
    """`x` resized by `scales` with linear or cubic interpolation (`mode`). With antialiasing (`_aa` in the operator's
    name), samples outside do not count, and the cubic filter is Pillow's. Raises UnsupportedError for `align_corners`
    with one element and antialiasing."""
    more: dict[str, Any] = {}
    if "_aa" in n.name:
        more = {"antialias": True, "exclude_outside": True, "cubic_a": -0.5}
        if align_corners:  # which changes only the factors here, not the places
            sizes = [
                (static(a, "an image"), static(b, "an image")) for a, b in zip(x.shape[2:], n.shape[2:], strict=True)
            ]
            if any(after < 2 or before < 2 for before, after in sizes):
                raise n.unsupported("with aligned corners of one element")
            factors = [(after - 1) / (before - 1) for before, after in sizes]
            return _resized(
                n, x, factors, by_factor=True, mode=mode, coordinates="half_pixel", rounding="floor", **more
            )
    coordinates = "align_corners" if align_corners else "half_pixel"
    return _resized(n, x, scales, mode=mode, coordinates=coordinates, rounding="floor", **more)


def _resized(n: Call, x: Value, scales: Any, by_factor: bool = False, **how: Any) -> Value:
    """`x` resized to the result's size, axis by axis. `scales`: the factors that the model states, in a list for
    overloads named "vec"; None: new size divided by old.

    An axis whose size stays is not resampled even if its factor is not 1, except in three modes: "nearest-exact",
    "nearest" of tensors that are not images, and cubic without antialiasing. In images, "nearest" to twice the size
    repeats each element, whatever the factor.
    """
    factors = scales[0] if n.name.endswith(".vec") and not by_factor else scales
    moves = how["rounding"] != "floor" or (how["mode"] == "cubic" and not how.get("antialias"))
    moves |= how["mode"] == "nearest" and x.type.rank != 4
    axes = list(enumerate(n.shape[2:]))
    for k, size in axes[::-1] if x.dtype.is_int else axes:  # bytes are rounded in between: lines first
        axis, factor = 2 + k, None if factors is None else factors[k]
        if same_dim(size, x.shape[axis]) and (factor in (None, 1) or not moves):
            continue
        if how["mode"] == "nearest" and not moves and same_dim(size, x.shape[axis] * 2):
            factor = 2
        if None in (as_int(size), as_int(x.shape[axis])) and (factor is None or how["coordinates"] == "align_corners"):
            if how.get("antialias"):
                raise n.unsupported("with antialiasing of a symbolic size", got=f"{x.shape[axis]} to {size}")
            if x.dtype.is_int and how["mode"] != "nearest":
                raise n.unsupported("of bytes to a symbolic size", got=f"{x.shape[axis]} to {size}")
            scale = n.emit("div", n.symbols([size], f64, ()), n.symbols([x.shape[axis]], f64, ()))
            x = resize_axis_by_data(n, x, axis, size, scale, Sampling(**how))
            continue
        if factor is None or how["coordinates"] == "align_corners":
            factor = static(size, "the size of an image") / static(x.shape[axis], "the size of an image")
        if x.dtype.is_int and how["mode"] != "nearest":
            x = _fixed_point(n, x, axis=axis, scale=float(factor), size=size, **how)
        else:
            x = resize_axis(n, x, axis=axis, scale=float(factor), size=size, **how)
    return x


def _fixed_point(n: Call, x: Value, **how: Any) -> Value:
    """`resize` of bytes as PyTorch's kernels do it (ATen/native/cpu/UpSampleKernel.cpp, release 2.13): weights are
    integers of 16 bits, as fine as they can be for the largest of them, and each axis is rounded to bytes, ties up."""
    size = static(how["size"], "the size of an image of bytes")
    extent = static(x.shape[how["axis"]], "the size of an image of bytes")
    attrs = ResizeTapsAttrs(**how | {"size": size}, extent=extent, dtype=f64)
    index, weights = known_taps(attrs)
    for t in range(1, len(index)):  # what several taps read weighs the sum of theirs
        for s in range(t):
            same = (index[s] == index[t]) & (weights[t] != 0)
            weights[s], weights[t] = weights[s] + same * weights[t], np.where(same, 0, weights[t])
    bits = 0
    while bits < 22 and int(0.5 + weights.max() * 2 ** (bits + 1)) < 1 << 15:
        bits += 1
    units = np.trunc(weights * 2**bits + np.copysign(0.5, weights))
    total = n.emit("resample", n.cast(x, f64), n.constant(index, i64), n.constant(units, f64), axis=how["axis"])
    rounded = n.emit("add", n.emit("mul", total, n.constant(2.0**-bits, f64)), n.constant(0.5, f64))
    return n.cast(n.emit("floor", rounded), x.dtype)


@rule("affine_grid_generator", single=True)
def affine_grid(n: Call, theta: Value, size: Sequence[Any], align_corners: bool) -> Value:
    return affine_places(n, theta, [static(d, "the size of a grid") for d in size[2:]], bool(align_corners), n.shape)


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(n: Call, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """`x` sampled at the coordinates `grid`, from -1 to 1. PyTorch passes the `mode` of interpolation and the `padding`
    as numbers; `align_corners` puts -1 and 1 at the centres of the outermost pixels."""
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    return n.emit(
        "grid_sample",
        n.nonempty(x, range(2, x.type.rank)),
        grid,
        mode=modes[mode],
        padding=paddings[padding],
        align_corners=bool(align_corners),
        reflects_first=(modes[mode], paddings[padding]) == ("nearest", "reflection"),
    )
