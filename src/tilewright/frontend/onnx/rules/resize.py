"""Rules for Resize and Upsample: one axis after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.common.resize import resize_axis
from tilewright.frontend.common.resized import Sampling, resize_axis_by_data
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.dtype import f64, i64
from tilewright.ir.expr import Expr, as_int, const, is_const
from tilewright.ir.graph import Value
from tilewright.ops.dims import axis_of, dim, known_same
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError


@rule("Upsample")
def upsample(n: Call) -> Value:
    mode = n.text("mode", "nearest")
    if n.opset < 7:
        scales = [1.0, 1.0, n.real("height_scale", 1.0), n.real("width_scale", 1.0)]
    elif n.opset < 9:
        scales = [float(v) for v in n.attr("scales") or []]
    options = {"mode": mode, "coordinates": "asymmetric", "rounding": "floor"}
    if n.opset >= 9:
        decided = _of_data(n, 1, list(range(n.rank(0))), options)
        if decided is not None:
            return decided
        scales = _floats(n.structure(1, "the scales of Upsample"))
    if any(not s >= 1 for s in scales):
        raise ShapeError("the scales of Upsample are 1 or more", got=scales)
    if _are_fractions(n, scales, range(n.rank(0))):
        return _by_fractions(n, scales, range(n.rank(0)), _sampling(options))
    return _resize(n, n.value(0), list(range(n.rank(0))), _from_scales(n, scales, range(n.rank(0))), options)


def _floats(array: Any) -> list[float]:
    return [float(v) for v in np.asarray(array, np.float64).reshape(-1)]


@rule("Resize")
def resize(n: Call) -> Value:
    """Resize and Upsample: inputs x, roi, scales, sizes (before operator set 11: x and scales)."""
    rank, specified = n.rank(0), n.ints("axes")
    axes = list(range(rank)) if specified is None else [axis_of(a, rank) for a in specified]
    options: dict[str, Any] = {
        "mode": n.text("mode", "nearest"),
        "coordinates": n.text("coordinate_transformation_mode", "half_pixel" if n.opset >= 11 else "asymmetric"),
        "rounding": n.text("nearest_mode", "round_prefer_floor" if n.opset >= 11 else "outward"),
        "cubic_a": n.real("cubic_coeff_a", -0.75),
        "exclude_outside": bool(n.integer("exclude_outside", 0)),
        "antialias": bool(n.integer("antialias", 0)),
        "extrapolation": n.real("extrapolation_value", 0.0),
    }
    policy = n.text("keep_aspect_ratio_policy", "stretch")
    if options["coordinates"] == "tf_crop_and_resize":
        roi = _floats(n.structure(1, "the region of Resize"))
        if len(roi) != 2 * len(axes):
            raise ShapeError("the region needs two numbers for each axis", expected=2 * len(axes), got=len(roi))
        options["roi"] = {axis: (roi[k], roi[len(axes) + k]) for k, axis in enumerate(axes)}
    place = 1 if n.opset < 11 else 2
    if options["coordinates"] != "tf_crop_and_resize" and not options["antialias"]:
        decided = _of_data(n, place, axes, options, policy)
        if decided is not None:
            return decided
    scales = _floats(n.structure(place, "the scales of Resize")) if n.has(place) else []
    if scales and "roi" not in options and not options["antialias"] and _are_fractions(n, scales, axes):
        return _by_fractions(n, scales, axes, _sampling(options))
    if scales:
        plan = _from_scales(n, scales, axes)
    else:
        sizes = n.dimensions(3, "the sizes of Resize")
        if sizes is None:
            raise ModelError("Resize needs scales or sizes")
        if policy == "stretch" and not options["antialias"] and "roi" not in options and _are_symbolic(n, sizes, axes):
            x = _computed_in(n, n.value(0), options["mode"])
            return _stretched(n, x, axes, sizes, _sampling(options))
        plan = _from_sizes(n, sizes, axes, policy)
    return _resize(n, n.value(0), axes, plan, options)


def _of_data(n: Call, place: int, axes: list[int], options: dict[str, Any], policy: str = "stretch") -> Value | None:
    """Resize `axes` by scales (input `place`) or sizes (input 3) that each call computes from data; None if they are
    known when compiling. `policy` is the node's keep_aspect_ratio_policy: "stretch", or one scale for all axes."""
    by_scales = n.has(place) and not is_const(n.type(place).size, 0)
    scales_or_sizes = place if by_scales else 3
    if not n.is_data(scales_or_sizes) or not known_same(n.type(scales_or_sizes).size, const(len(axes))):
        return None
    how = _sampling(options)
    x = _computed_in(n, n.value(0), how.mode)
    if by_scales:
        return _stored_as(n, _by_scales(n, x, n.cast(n.value(place), f64), axes, how))
    wanted_sizes = n.elements(3, "the sizes of Resize") or []
    if policy != "stretch":
        return _stored_as(n, _with_ratio(n, x, axes, wanted_sizes, how, smaller=policy == "not_larger"))
    return _stretched(n, x, axes, wanted_sizes, how)


def _sampling(options: dict[str, Any]) -> Sampling:
    """The node's options that hold for every axis, as needed to resize an axis by data."""
    return Sampling(**{k: options[k] for k in SAMPLING if k in options})


SAMPLING = ("mode", "coordinates", "rounding", "cubic_a", "exclude_outside")


def _are_symbolic(n: Call, sizes: list[Any], axes: list[int]) -> bool:
    """Whether an axis that is resized has a symbolic size before or after."""
    pairs = [(dim(size), n.shape(0)[axis]) for size, axis in zip(sizes, axes, strict=False)]
    return any(None in (as_int(size), as_int(extent)) and not known_same(size, extent) for size, extent in pairs)


def _are_fractions(n: Call, scales: list[float], axes: Sequence[int]) -> bool:
    """Whether one of the dimensions `axes` is symbolic and is scaled by a number that is not whole, so that its new
    size is no expression."""
    if len(scales) != len(axes) or not all(s > 0 and math.isfinite(s) for s in scales):
        return False
    return any(s != int(s) and as_int(n.shape(0)[axis]) is None for s, axis in zip(scales, axes, strict=True))


def _by_fractions(n: Call, scales: list[float], axes: Sequence[int], how: Sampling) -> Value:
    """Resize by known `scales` some of which are no whole numbers, so that each call computes the new size of a
    symbolic axis."""
    changed = [(s, axis) for s, axis in zip(scales, axes, strict=True) if s != 1]
    factors = n.constant([s for s, _ in changed], f64)
    return _stored_as(n, _by_scales(n, _computed_in(n, n.value(0), how.mode), factors, [a for _, a in changed], how))


def _stretched(n: Call, x: Value, axes: list[int], sizes: list[Any], how: Sampling) -> Value:
    """`x` with each of `axes` resized to its entry of `sizes`: a number, an expression, or an i64 scalar that each call
    computes."""
    if len(sizes) != len(axes):
        raise ShapeError("one size is needed for each axis", expected=len(axes), got=sizes)
    for axis, wanted in zip(axes, sizes, strict=True):
        if not isinstance(wanted, Value) and known_same(dim(wanted), x.shape[axis]):
            continue
        size = n.within(wanted, 1, None, WANTED) if isinstance(wanted, Value) else n.symbols([wanted], i64, ())
        scale = n.emit("div", n.cast(size, f64), n.symbols([x.shape[axis]], f64, ()))
        x = resize_axis_by_data(n, x, axis, n.extent(size) if isinstance(wanted, Value) else dim(wanted), scale, how)
    return _stored_as(n, x)


WANTED = "a size is not positive"


def _computed_in(n: Call, x: Value, mode: str) -> Value:
    """`x` in the type in which it is resized: integers become f64 if `mode` interpolates."""
    return n.cast(x, f64) if x.dtype.is_int and mode != "nearest" else x


def _stored_as(n: Call, y: Value) -> Value:
    """`y` in the type of the node's input; interpolated integers are rounded to even and saturated, once, after all
    axes."""
    return y if y.dtype is n.dtype(0) else n.cast(n.emit("round", y), n.dtype(0))


def _by_scales(n: Call, x: Value, scales_or_sizes: Value, axes: list[int], how: Sampling) -> Value:
    """`x` with all `axes` resized by scales that each call computes. If no size changes, all scales count as 1, so that
    the result is `x` (as in `_from_scales`)."""
    scales = n.reshape(scales_or_sizes, (len(axes),))
    parts = [_scale(n, n.reshape(n.slice(scales, 0, k, 1), ())) for k in range(len(axes))]
    extents = [n.symbols([x.shape[axis]], f64, ()) for axis in axes]
    sizes = [n.emit("floor", n.emit("mul", e, s)) for e, s in zip(extents, parts, strict=True)]
    retained = [n.emit("eq", s, e) for s, e in zip(sizes, extents, strict=True)]
    unchanged = retained[0]
    for other in retained[1:]:
        unchanged = n.emit("and", unchanged, other)
    for axis, size, scale in zip(axes, sizes, parts, strict=True):
        scale = n.emit("select", unchanged, n.constant(1.0, f64), scale)
        x = resize_axis_by_data(n, x, axis, n.extent(n.cast(size, i64)), scale, how)
    return x


def _scale(n: Call, scale: Value) -> Value:
    """`scale`, a scalar that each call checks: finite and positive, for Upsample at least 1."""
    upsample = n.node.op_type == "Upsample"
    above = n.emit("ge" if upsample else "gt", scale, n.constant(float(upsample), f64))
    fits = n.emit("and", above, n.emit("lt", scale, n.constant(math.inf, f64)))
    return n.require(scale, fits, scale, "a scale makes no sense", "1 or more" if upsample else "a positive number")


def _with_ratio(n: Call, x: Value, axes: list[int], wanted: list[Any], how: Sampling, *, smaller: bool) -> Value:
    """`x` with all `axes` resized by one scale, for `keep_aspect_ratio_policy`: the smallest quotient of wanted by old
    size if `smaller`, else the largest."""
    extents = [n.symbols([x.shape[a]], f64, ()) for a in axes]
    wanted = [n.within(s, 1, None, WANTED) if isinstance(s, Value) else n.symbols([s], i64, ()) for s in wanted]
    sizes = [n.cast(s, f64) for s in wanted]
    scales = [n.emit("div", s, e) for s, e in zip(sizes, extents, strict=True)]
    scale = scales[0]
    for other in scales[1:]:
        scale = n.emit("min" if smaller else "max", scale, other)
    for axis, extent in zip(axes, extents, strict=True):
        rounded = n.emit("floor", n.emit("add", n.emit("mul", scale, extent), n.constant(0.5, f64)))
        x = resize_axis_by_data(n, x, axis, n.extent(n.cast(rounded, i64)), scale, how)
    return x


Plan = list[tuple[float, Any]]


def _from_scales(n: Call, scales: list[float], axes: Any) -> Plan:
    """(scale, new size) of each of `axes`, for known `scales`. If no size changes, all scales count as 1."""
    axes = list(axes)
    if len(scales) != len(axes) or any(not s > 0 or not math.isfinite(s) for s in scales):
        raise ShapeError("one positive scale is needed for each axis", expected=len(axes), got=scales)
    plan: Plan = []
    for scale, axis in zip(scales, axes, strict=True):
        extent = n.shape(0)[axis]
        number = as_int(extent)
        if scale == 1:
            plan.append((1.0, extent))
        elif number is not None:
            plan.append((scale, math.floor(number * scale)))
        elif scale == int(scale):
            plan.append((scale, dim(extent * int(scale))))
        else:
            raise UnsupportedError("a symbolic dimension cannot be scaled by a fraction", got=f"{extent} by {scale}")
    if all(known_same(dim(size), n.shape(0)[axis]) for (_, size), axis in zip(plan, axes, strict=True)):
        return [(1.0, size) for _, size in plan]  # as ONNX Runtime and OpenVINO: nothing is resized
    return plan


def _from_sizes(n: Call, sizes: list[Any], axes: list[int], policy: str) -> Plan:
    if len(sizes) != len(axes):
        raise ShapeError("one size is needed for each axis", expected=len(axes), got=sizes)
    extents = [n.shape(0)[a] for a in axes]
    if policy != "stretch":
        if any((as_int(s) or 1) < 1 or is_const(dim(s), 0) for s in sizes):
            raise ShapeError(WANTED, got=sizes)
        numbers = [as_int(e) for e in extents]
        if any(v is None for v in (*numbers, *(as_int(s) for s in sizes))):
            raise UnsupportedError("an aspect ratio kept with symbolic dimensions is not supported")
        ratios = [int(s) / int(e or 1) for s, e in zip(sizes, numbers, strict=True)]
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        return [(scale, math.floor(scale * int(e or 0) + 0.5)) for e in numbers]
    plan: Plan = []
    for size, extent in zip(sizes, extents, strict=True):
        number, wanted = as_int(extent), as_int(size)
        if isinstance(size, Expr) and known_same(size, extent):
            plan.append((1.0, extent))
        elif wanted is not None and wanted < 1:
            raise ShapeError(WANTED, got=wanted)
        elif number is None or wanted is None or number < 1:
            raise UnsupportedError("resizing a symbolic dimension is not supported", got=f"{extent} to {size}")
        else:
            plan.append((wanted / number, wanted))
    return plan


def _resize(n: Call, x: Value, axes: list[int], plan: Plan, options: dict[str, Any]) -> Value:
    rois = options.pop("roi", None)
    mode = options["mode"]
    if mode not in ("nearest", "linear", "cubic"):
        raise UnsupportedError(f"the mode {mode} of Resize is not supported")
    changed = False
    x = _computed_in(n, x, mode)
    for axis, (scale, size) in zip(axes, plan, strict=True):
        if scale == 1 and rois is None:
            continue
        extra: dict[str, Any] = {} if rois is None else {"roi": rois[axis]}
        if options["rounding"] == "outward":  # of operator set 10
            extra["rounding"] = "ceil" if scale < 1 else "floor"
        x = resize_axis(n, x, **options | {"axis": axis, "scale": scale, "size": size} | extra)
        changed = True
    return _stored_as(n, x) if changed else n.emit("identity", n.value(0))
