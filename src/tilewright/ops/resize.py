"""Resizing along one axis: nearest, linear and cubic, with ONNX's ways to place the output's samples in the input.

An output sample at `o` lies at a coordinate `c(o)` of the input. Its value is a weighted sum of the taps around `c`;
indices outside are moved to the edge. The coordinates and weights are small stages of their own, in f64 as in ONNX's
reference. Several axes are resized one after another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Dim
from tilewright.ir.dtype import DType, f64, i64
from tilewright.ir.expr import Expr, as_int, call, cast, const, maximum, minimum, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import accumulator, axis_of, dim, need, number, present, scalar, static, wide
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError, UnsupportedError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeAttrs(Attrs):
    """Attributes of `resize`, along one dimension. `size`: the size of the result along `axis`. `scale`: the factor
    from the input's coordinates to the result's. `mode`, `coordinates` and `rounding` (for mode nearest): one of
    `MODES`, `COORDINATES`, `ROUNDINGS`. `cubic_a`: the coefficient of cubic interpolation. `exclude_outside`: taps
    outside the input get weight 0. `antialias`: the filter is widened where the result is smaller. `roi` (first and
    last coordinate, as fractions of the extent) and `extrapolation` (the value outside) are of tf_crop_and_resize."""

    axis: int
    size: Dim
    scale: float
    mode: str
    coordinates: str
    rounding: str
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    roi: tuple[float, float] | None = None
    extrapolation: float = 0.0


def _infer(types: Types, attrs: ResizeAttrs) -> Out:
    """The type rule of `resize`: x to x resized along `axis`. Attributes `size` (of the result), `scale`, `mode`,
    `coordinates`, `rounding` (nearest), `cubic_a`, `exclude_outside`, `antialias`, `roi` (two numbers), `extrapolation`
    (tf_crop_and_resize)."""
    t = present(types[0])
    axis = axis_of(attrs.axis, t.rank)
    for name, known in (("mode", MODES), ("coordinates", COORDINATES), ("rounding", ROUNDINGS)):
        if (got := getattr(attrs, name)) not in known:
            raise UnsupportedError(f"the {name} {got} of Resize is not supported")
    if attrs.coordinates in _NEEDS_EXTENT and as_int(t.shape[axis]) is None:
        raise UnsupportedError("these coordinates of Resize need a dimension that is a number", got=t.shape[axis])
    if not attrs.scale > 0:
        raise UnsupportedError("a scale of Resize must be positive", got=attrs.scale)
    return (TensorType(t.dtype, (*t.shape[:axis], dim(attrs.size), *t.shape[axis + 1 :]), t.layout),)


def taps(attrs: ResizeAttrs) -> int:
    """The number of input samples that one output sample reads."""
    if attrs.mode == "nearest":
        return 1
    radius = 1 if attrs.mode == "linear" else 2
    if not attrs.antialias:
        return 2 * radius
    return int(2 * radius - 2 * (math.floor(-radius / min(attrs.scale, 1.0)) + radius))


# The formulas are written once, over `m`: the operations on expressions or on arrays.


class _Symbolic:
    """The namespace of operations on f64 scalar expressions, for formulas such as `_coordinate`, which take it as
    `m`."""

    floor = staticmethod(lambda a: call("floor", a))
    ceil = staticmethod(lambda a: call("ceil", a))
    abs = staticmethod(lambda a: call("abs", a))
    max = staticmethod(lambda a, b: maximum(a, scalar(b, f64)))
    where = staticmethod(lambda c, a, b: select(c, a, b))
    number = staticmethod(lambda v, like: scalar(v, f64))


class _Numeric:
    """The namespace of operations on f64 arrays, for formulas such as `_coordinate`, which take it as `m`."""

    floor = staticmethod(np.floor)
    ceil = staticmethod(np.ceil)
    abs = staticmethod(np.abs)
    max = staticmethod(np.maximum)
    where = staticmethod(np.where)
    number = staticmethod(lambda v, like: np.full_like(like, v))


def _coordinate(m: Any, o: Any, extent: Any, size: Any, attrs: ResizeAttrs) -> Any:
    """The coordinate in the input of output sample `o`, by operations of `m` on expressions or arrays. `extent`: the
    input's size, an f64 number or expression; `size`: the output's."""
    scale = float(attrs.scale)
    start, end = attrs.roi or (0.0, 1.0)
    match attrs.coordinates:
        case "asymmetric":
            return o / scale
        case "tf_half_pixel_for_nn":
            return (o + 0.5) / scale
        case "align_corners":
            length = scale * extent
            return o * 0.0 if length == 1 else o * (extent - 1) / (length - 1)
        case "tf_crop_and_resize":
            length = scale * extent
            if length == 1:
                return m.number((end - start) * (extent - 1) / 2 + start * (extent - 1), o)
            return o * ((end - start) * (extent - 1) / (length - 1)) + start * (extent - 1)
        case "pytorch_half_pixel" if size == 1:
            return m.number(0.0, o)
        case "half_pixel_symmetric":
            return (o + 0.5) / scale - 0.5 + extent / 2 * (1 - size / (scale * extent))
    return (o + 0.5) / scale - 0.5


_NEEDS_EXTENT = ("align_corners", "tf_crop_and_resize", "half_pixel_symmetric")


def _first_tap(m: Any, c: Any, attrs: ResizeAttrs) -> Any:
    """The first input index that the output sample at coordinate `c` reads, by operations of `m` on expressions or
    arrays."""
    if attrs.mode != "nearest":
        return m.ceil(c) - taps(attrs) / 2
    match attrs.rounding:
        case "floor":
            return m.floor(c)
        case "ceil":
            return m.ceil(c)
        case "round_prefer_floor":
            return m.ceil(c - 0.5)
    return m.floor(c + 0.5)


def _weight(m: Any, distance: Any, attrs: ResizeAttrs) -> Any:
    """The filter's weight at a signed distance, before normalisation, by operations of `m` on expressions or arrays."""
    stretch = min(attrs.scale, 1.0) if attrs.antialias else 1.0
    d = m.abs(distance * stretch)
    if attrs.mode == "linear":
        return m.max(1.0 - d, 0.0)
    a = attrs.cubic_a
    inner = ((a + 2) * d - (a + 3)) * d * d + 1.0
    outer = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return m.where(d <= 1.0, inner, m.where(d < 2.0, outer, d * 0.0))


def _inside(m: Any, position: Any, extent: Any) -> Any:
    return (position >= 0.0) & (position < extent)


def _normalised(attrs: ResizeAttrs) -> bool:
    return attrs.mode != "nearest" and (attrs.antialias or attrs.exclude_outside)


# --- tensor expression ----------------------------------------------------------------------------------------------


def _compute(inputs: Tensors, attrs: ResizeAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    axis = attrs.axis % x.ndim
    extent, n = x.shape[axis], taps(attrs)
    simple = integer_upsampling(attrs)
    if simple is not None:
        return (te.compute(type.shape, lambda *i: x[(*i[:axis], i[axis] // simple, *i[axis + 1 :])], name="resize"),)
    size = as_int(type.shape[axis])
    known: Any = None
    if attrs.coordinates in _NEEDS_EXTENT:
        known = float(static(extent, "the resized dimension"))
    span = cast(extent, f64)

    def coordinate(o: Expr) -> Expr:
        match: Expr = _coordinate(_Symbolic, cast(o, f64), known, size, attrs)
        return match

    def clamped(position: Expr) -> Expr:
        return minimum(maximum(cast(position, i64), 0), extent - 1)

    first = te.compute((type.shape[axis],), lambda o: cast(_first_tap(_Symbolic, coordinate(o), attrs), i64), "first")
    acc = accumulator(x.dtype) if x.dtype.is_float else f64

    def read(point: Sequence[Expr], t: Any) -> Expr:
        return x[(*point[:axis], clamped(first[point[axis]] + t), *point[axis + 1 :])]

    if n == 1:
        result = te.compute(
            type.shape, lambda *i: _outside(i[axis], coordinate, span, read(i, 0), attrs), name="resize"
        )
        return (result,)

    def raw(o: Expr, t: Expr) -> Expr:
        position = cast(first[o] + t, f64)
        w: Expr = _weight(_Symbolic, position - coordinate(o), attrs)
        return select(_inside(_Symbolic, position, span), w, scalar(0, f64)) if attrs.exclude_outside else w

    weights = te.compute((type.shape[axis], const(n)), raw, name="weights")
    if _normalised(attrs):
        k = te.reduce_axis(n, "k")
        total = te.compute((type.shape[axis],), lambda o: te.sum(weights[o, k.var], axis=k), name="total")
        ordinary = weights
        weights = te.compute(ordinary.shape, lambda o, t: ordinary[o, t] / total[o], name="normalised")

    def element(*i: Expr) -> Expr:
        value: Expr | None = None
        for t in range(n):
            term = cast(read(i, t), acc) * cast(weights[i[axis], const(t)], acc)
            value = term if value is None else value + term
        assert value is not None
        return _outside(i[axis], coordinate, span, cast(value, type.dtype), attrs)

    return (te.compute(type.shape, element, name="resize"),)


def _outside(o: Expr, coordinate: Any, span: Expr, value: Expr, attrs: ResizeAttrs) -> Expr:
    """`value`, or the extrapolation value if output sample `o`, which is read at `coordinate(o)`, lies outside of the
    input of `span` elements with tf_crop_and_resize."""
    if attrs.coordinates != "tf_crop_and_resize":
        return value
    c = coordinate(o)
    return select((c < 0.0) | (c > span - 1.0), scalar(attrs.extrapolation, value.dtype), value)


def integer_upsampling(attrs: ResizeAttrs) -> int | None:
    """The factor by which samples are repeated, if the resize does nothing else; else None."""
    factor = int(attrs.scale)
    if attrs.mode != "nearest" or factor != attrs.scale:
        return None
    floors = attrs.coordinates == "asymmetric" and attrs.rounding == "floor"
    rounds = attrs.coordinates in ("half_pixel", "pytorch_half_pixel") and attrs.rounding == "round_prefer_floor"
    rounds = rounds and not (attrs.coordinates == "pytorch_half_pixel" and as_int(attrs.size) == 1)
    return factor if floors or rounds else None


# --- reference ------------------------------------------------------------------------------------------------------


def _numpy(arrays: Sequence[Any], attrs: ResizeAttrs) -> tuple[Any, ...]:
    array = np.asarray(arrays[0])
    x = wide(array)
    axis, size, n = attrs.axis % x.ndim, number(attrs.size), taps(attrs)
    extent = x.shape[axis]
    c = _coordinate(_Numeric, np.arange(size, dtype=np.float64), float(extent), size, attrs)
    first = _first_tap(_Numeric, c, attrs)
    positions = first[:, None] + np.arange(n)
    weights = np.ones((size, 1)) if n == 1 else _weight(_Numeric, positions - c[:, None], attrs)
    if n > 1 and attrs.exclude_outside:
        weights = np.where(_inside(_Numeric, positions, extent), weights, 0.0)
    if _normalised(attrs):
        weights = weights / weights.sum(axis=1, keepdims=True)
    index = np.clip(positions, 0, extent - 1).astype(np.int64)
    shape = [-1 if k == axis else 1 for k in range(x.ndim)]
    if n == 1:
        y = np.take(x, index[:, 0], axis=axis)
    else:
        kind = x.dtype if np.issubdtype(x.dtype, np.floating) else np.float64
        y = sum(np.take(x, index[:, t], axis=axis) * weights[:, t].astype(kind).reshape(shape) for t in range(n))
    if attrs.coordinates == "tf_crop_and_resize":
        y = np.where(((c < 0) | (c > extent - 1)).reshape(shape), attrs.extrapolation, y)
    return (np.asarray(y).astype(array.dtype),)


register(OpDef("resize", "injective", ResizeAttrs, _infer, _numpy, compute=_compute))


# --- with tables ----------------------------------------------------------------------------------------------------
#
# The taps are computed into tables rather than at every element: once where the sizes are numbers, else in each call.


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeTapsAttrs(ResizeAttrs):
    """Attributes of `resize_taps`: those of `resize`, the `extent` of the input along the axis, and the `dtype` of the
    weights."""

    extent: Dim
    dtype: DType


def _taps_infer(types: Types, attrs: ResizeTapsAttrs) -> Out:
    """The type rule of `resize_taps`: no inputs; indices [taps, size], inside of the input, and weights [taps, size].
    Attributes of `resize`, and `extent`, the input's size."""
    if attrs.coordinates in _NEEDS_EXTENT:
        static(attrs.extent, "the resized dimension")
    shape = (const(taps(attrs)), dim(attrs.size))
    return TensorType(i64, shape), TensorType(attrs.dtype, shape)


def _taps_compute(inputs: Tensors, attrs: ResizeTapsAttrs, out: Out) -> tuple[Tensor, ...]:
    extent, size, n = dim(attrs.extent), as_int(attrs.size), taps(attrs)
    span = cast(extent, f64)
    known: Any = float(static(extent, "the resized dimension")) if attrs.coordinates in _NEEDS_EXTENT else None

    def position(o: Expr, t: Any) -> Expr:
        result: Expr = _first_tap(_Symbolic, _place(o), attrs) + t
        return result

    def _place(o: Expr) -> Expr:
        result: Expr = _coordinate(_Symbolic, cast(o, f64), known, size, attrs)
        return result

    def weight(o: Expr, t: Any) -> Expr:
        at = position(o, t)
        w: Expr = _weight(_Symbolic, at - _place(o), attrs)
        inside = _inside(_Symbolic, at, span)
        return select(inside, w, scalar(0, f64)) if attrs.exclude_outside else w

    def element(t: Expr, o: Expr) -> tuple[Expr, Expr]:
        index = minimum(maximum(cast(position(o, cast(t, f64)), i64), 0), extent - 1)
        if attrs.mode == "nearest":
            return index, scalar(1, out[1].dtype)
        w = weight(o, cast(t, f64))
        if _normalised(attrs):
            total = weight(o, 0.0)
            for k in range(1, n):
                total = total + weight(o, float(k))
            w = w / total
        return index, cast(w, out[1].dtype)

    index, weights = te.compute(out[0].shape, element, name="taps")
    return index, weights


def _taps_numpy(arrays: Sequence[Any], attrs: ResizeTapsAttrs) -> tuple[Any, ...]:
    return known_taps(attrs)


def known_taps(attrs: ResizeTapsAttrs) -> tuple[Any, Any]:
    """The arrays of indices and weights, [taps, size] each, for sizes that are numbers."""
    extent, size, n = number(attrs.extent), number(attrs.size), taps(attrs)
    c = _coordinate(_Numeric, np.arange(size, dtype=np.float64), float(extent), size, attrs)
    positions = _first_tap(_Numeric, c, attrs)[None] + np.arange(n)[:, None]
    weights = np.ones(positions.shape) if n == 1 else _weight(_Numeric, positions - c, attrs)
    if n > 1 and attrs.exclude_outside:
        weights = np.where(_inside(_Numeric, positions, extent), weights, 0.0)
    if _normalised(attrs):
        weights = weights / weights.sum(axis=0, keepdims=True)
    return np.clip(positions, 0, extent - 1).astype(np.int64), weights.astype(attrs.dtype.numpy)


register(OpDef("resize_taps", "opaque", ResizeTapsAttrs, _taps_infer, _taps_numpy, compute=_taps_compute))


@dataclass(frozen=True, slots=True)
class ResampleAttrs(Attrs):
    """Attributes of `resample`: the dimension `axis` of the input whose slices are summed with weights."""

    axis: int


def _resample_infer(types: Types, attrs: ResampleAttrs) -> Out:
    """The type rule of `resample`. Inputs: x, indices [taps, size], weights [taps, size]; the result is the weighted
    sums of slices of x along `axis`."""
    x, index, weights = (present(types[k]) for k in range(3))
    axis = axis_of(attrs.axis, x.rank)
    static(index.shape[0], "the number of taps")
    if index.shape != weights.shape or index.rank != 2:
        raise ShapeError("indices and weights must have one shape", expected=index, got=weights)
    return (TensorType(x.dtype, (*x.shape[:axis], index.shape[1], *x.shape[axis + 1 :]), x.layout),)


def _resample_compute(inputs: Tensors, attrs: ResampleAttrs, out: Out) -> tuple[Tensor, ...]:
    x, index, weights, (type,) = need(inputs[0]), need(inputs[1]), need(inputs[2]), out
    axis = attrs.axis % x.ndim

    def element(*i: Expr) -> Expr:
        total: Expr | None = None
        for t in range(static(index.shape[0], "the number of taps")):
            at = minimum(maximum(index[const(t), i[axis]], 0), x.shape[axis] - 1)
            value = cast(x[(*i[:axis], at, *i[axis + 1 :])], weights.dtype)
            term = value * weights[const(t), i[axis]]
            total = term if total is None else total + term
        assert total is not None
        return cast(total, type.dtype)

    return (te.compute(type.shape, lambda *i: element(*i), name="resample"),)


def _resample_numpy(arrays: Sequence[Any], attrs: ResampleAttrs) -> tuple[Any, ...]:
    x, index, weights = (np.asarray(a) for a in arrays)
    axis = attrs.axis % x.ndim
    shape = [-1 if k == axis else 1 for k in range(x.ndim)]
    index = np.clip(index, 0, x.shape[axis] - 1)
    wide_x = x.astype(weights.dtype)
    y = sum(np.take(wide_x, index[t], axis=axis) * weights[t].reshape(shape) for t in range(len(index)))
    return (np.asarray(y).astype(x.dtype),)


register(OpDef("resample", "injective", ResampleAttrs, _resample_infer, _resample_numpy, compute=_resample_compute))
