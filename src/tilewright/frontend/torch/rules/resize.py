"""Rules for `interpolate`: one axis after another."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.common.resize import resize_axis
from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.ir.graph import Value
from tilewright.ops.dims import same_dim, static


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def nearest(n: Call, x: Value, size: Any, *scales: Any) -> Value:
    return _resized(n, x, scales, mode="nearest", coordinates="asymmetric", rounding="floor")


@rule("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def nearest_exact(n: Call, x: Value, size: Any, *scales: Any) -> Value:
    return _resized(n, x, scales, mode="nearest", coordinates="half_pixel", rounding="round_prefer_ceil")


@rule("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa")
def linear(n: Call, x: Value, size: Any, align_corners: bool, *scales: Any) -> Value:
    return _smooth(n, x, scales, "linear", align_corners)


@rule("upsample_bicubic2d", "_upsample_bicubic2d_aa")
def cubic(n: Call, x: Value, size: Any, align_corners: bool, *scales: Any) -> Value:
    return _smooth(n, x, scales, "cubic", align_corners)


def _smooth(n: Call, x: Value, scales: Any, mode: str, align_corners: bool) -> Value:
    """With antialiasing, samples outside do not count and the cubic filter is Pillow's."""
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
    """`scales` are the factors that the caller named, a list of them in overloads "vec"; None: new size by old."""
    factors = scales[0] if n.name.endswith(".vec") and not by_factor else scales
    for k, size in enumerate(n.shape[2:]):
        axis, factor = 2 + k, None if factors is None else factors[k]
        if same_dim(size, x.shape[axis]) and factor in (None, 1):
            continue
        if factor is None or how["coordinates"] == "align_corners":
            factor = static(size, "the size of an image") / static(x.shape[axis], "the size of an image")
        x = resize_axis(n, x, axis=axis, scale=float(factor), size=size, **how)
    return x


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(n: Call, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """Modes and paddings are numbers."""
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    return n.emit(
        "grid_sample", x, grid, mode=modes[mode], padding=paddings[padding], align_corners=bool(align_corners)
    )
