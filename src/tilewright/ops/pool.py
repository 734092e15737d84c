"""Pooling: maximum (with indices), average and Lp over windows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.dtype import DType, i64
from tilewright.ir.expr import Expr, as_int, call, cast, const, maximum, minimum, product, select
from tilewright.ir.graph import TensorType
from tilewright.ops.conv import KERNEL, SPATIAL, pad_stage
from tilewright.ops.dims import (
    accumulator,
    check_kind,
    check_window,
    dim,
    labelled,
    narrow,
    need,
    present,
    scalar,
    wide,
)
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


def pooled_extent(extent: Expr, kernel: int, before: int, after: int, stride: int, dilation: int, ceil: bool) -> Expr:
    """The number of windows of `kernel` elements, with `stride` and `dilation`, along a dimension of `extent` elements
    with `before` and `after` elements of padding. With `ceil` a partial window at the end counts if it begins inside
    the input or the padding before it. Raises ShapeError if no window fits."""
    span = dilation * (kernel - 1) + 1
    room = extent + (before + after - span)
    size = dim((room + (stride - 1)) // stride + 1 if ceil else room // stride + 1)
    number = as_int(size)
    if number is None:
        if ceil and stride > 1:
            size = dim(minimum(size, (extent + (before - 1)) // stride + 1))
        return size
    if ceil and (number - 1) * stride >= static_value(extent) + before:
        number -= 1
    if number < 1:
        raise ShapeError(
            "the window is larger than the padded input", expected=f"at most {extent + before + after}", got=span
        )
    return const(number)


def static_value(e: Expr) -> int:
    value = as_int(e)
    assert value is not None
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAttrs(Attrs):
    """Attributes of pooling. `kernel`, `strides`, `dilations`: the window's size, the distance of windows and that of a
    window's taps in each spatial dimension. `pads`: the padding before each spatial dimension, then that after each.
    `ceil_mode`: a last window that is only partly inside counts."""

    kernel: Ints
    strides: Ints
    dilations: Ints
    pads: Ints
    ceil_mode: bool = False


def infer_shape(types: Types, attrs: PoolAttrs) -> TensorType:
    """The type of a pooling's result. The attributes are `kernel`, `strides`, `dilations`, `pads` (before all
    dimensions, then after all) and `ceil_mode`."""
    x = present(types[0])
    rank = x.rank - 2
    if rank not in SPATIAL:
        raise ShapeError("pooling has 1 to 3 spatial dimensions", got=x)
    for name, length in (("kernel", rank), ("strides", rank), ("dilations", rank), ("pads", 2 * rank)):
        if (got := len(getattr(attrs, name))) != length:
            raise ShapeError(f"{name} has the wrong length", expected=length, got=got)
    if any(v < 1 for v in (*attrs.kernel, *attrs.strides, *attrs.dilations)) or min(attrs.pads) < 0:
        raise ShapeError("kernel, strides and dilations must be positive and pads not negative")
    check_window(attrs.kernel)
    pads = attrs.pads
    spatial = tuple(
        pooled_extent(
            x.shape[2 + k],
            attrs.kernel[k],
            pads[k],
            pads[rank + k],
            attrs.strides[k],
            attrs.dilations[k],
            attrs.ceil_mode,
        )
        for k in range(rank)
    )
    return TensorType(x.dtype, (*x.shape[:2], *spatial), x.layout)


def _after(x: Tensor, attrs: PoolAttrs, out: Sequence[Expr]) -> list[Expr]:
    """For each spatial dimension the number of elements of padding after it that are needed so that every window lies
    inside."""
    rank = x.ndim - 2
    result: list[Expr] = []
    for k in range(rank):
        if not attrs.ceil_mode:
            result.append(const(attrs.pads[rank + k]))
            continue
        span = attrs.dilations[k] * (attrs.kernel[k] - 1) + 1
        end = (out[2 + k] - 1) * attrs.strides[k] + span - attrs.pads[k]
        result.append(dim(maximum(end - x.shape[2 + k], 0)))
    return result


def _windows(x: Tensor, attrs: PoolAttrs, out: TensorType, fill: Expr, reducer: Any, value: Any, name: str) -> Tensor:
    """The stage `name`, of the shape of `out`: for each window of `x`, padded with `fill`, the function `value` of its
    elements, reduced by `reducer`."""
    rank = x.ndim - 2
    padded = pad_stage(x, attrs.pads, fill, _after(x, attrs, out.shape))
    taps = [te.reduce_axis(attrs.kernel[k], KERNEL[rank][k]) for k in range(rank)]

    def element(n: Expr, c: Expr, *space: Expr) -> Any:
        at = [p * s + t.var * d for p, s, t, d in zip(space, attrs.strides, taps, attrs.dilations, strict=True)]
        return reducer(value(padded[(n, c, *at)]), axis=taps)

    result: Tensor = te.compute(out.shape, labelled(element, ("n", "c", *SPATIAL[rank])), name=name)
    return result


# --- maximum --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPoolAttrs(PoolAttrs):
    """Attributes of maximum pooling. With `skips_nan` a NaN counts as less than every number (ONNX), else as greater
    (PyTorch)."""

    skips_nan: bool = False


def _max_infer(types: Types, attrs: MaxPoolAttrs) -> Out:
    """The type rule of `max_pool`. Attributes `kernel`, `strides`, `dilations`, `pads` (befores, afters), `ceil_mode`,
    `skips_nan`: NaN counts as minus infinity."""
    return (infer_shape(types, attrs),)


def _max_compute(inputs: Tensors, attrs: MaxPoolAttrs, out: Out) -> tuple[Tensor, ...]:
    x = need(inputs[0])
    least = const(x.dtype.min, x.dtype)
    if attrs.skips_nan and x.dtype.is_float:  # two instructions an element, which is less than a maximum with NaN takes
        return (_windows(x, attrs, out[0], least, te.largest, lambda e: call("larger", least, e), "max_pool"),)
    return (_windows(x, attrs, out[0], least, te.max, lambda e: e, "max_pool"),)


def compared(value: Expr, attrs: MaxPoolAttrs) -> Expr:
    """The key by which a maximum compares an element: with `skips_nan`, NaN gets a key below that of every number."""
    if not attrs.skips_nan or not value.dtype.is_float:
        return value
    return select(call("isnan", value), const(value.dtype.min, value.dtype), value)


def compared_numpy(x: Any, attrs: MaxPoolAttrs) -> Any:
    """The keys by which a maximum compares the elements of an array, like `compared` for expressions."""
    if not attrs.skips_nan or np.issubdtype(x.dtype, np.integer):
        return x
    return np.where(np.isnan(x), np.array(-np.inf, x.dtype), x)


def window_views(x: Any, attrs: PoolAttrs, fill: Any, out: Sequence[int]) -> list[Any]:
    """For each tap of a pooling window an array with the shape of the output, whose spatial extents are `out`: the
    elements that the windows read there from `x`, padded with `fill`."""
    rank = x.ndim - 2
    widths = [(0, 0), (0, 0)]
    for k in range(rank):
        span = attrs.dilations[k] * (attrs.kernel[k] - 1) + 1
        end = (out[k] - 1) * attrs.strides[k] + span - attrs.pads[k]
        widths.append((attrs.pads[k], max(end - x.shape[2 + k], attrs.pads[rank + k])))
    padded = np.pad(x, widths, constant_values=fill)
    views = []
    for taps in itertools.product(*(range(k) for k in attrs.kernel)):
        window = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, o, s in zip(taps, attrs.dilations, out, attrs.strides, strict=True)
        )
        views.append(padded[(slice(None), slice(None), *window)])
    return views


def out_extents(x: Any, attrs: PoolAttrs) -> list[int]:
    from tilewright.ir.dtype import dtype

    t = TensorType(dtype(x.dtype), tuple(const(d) for d in x.shape))
    return [static_value(d) for d in infer_shape([t], attrs).shape[2:]]


def _max_numpy(arrays: Sequence[Any], attrs: MaxPoolAttrs) -> tuple[Any, ...]:
    x = compared_numpy(np.asarray(arrays[0]), attrs)
    fill = -np.inf if not np.issubdtype(x.dtype, np.integer) else np.iinfo(x.dtype).min
    views = window_views(x, attrs, fill, out_extents(x, attrs))
    result = views[0]
    for view in views[1:]:
        result = np.maximum(result, view)
    return (np.ascontiguousarray(result),)


register(OpDef("max_pool", "reduction", MaxPoolAttrs, _max_infer, _max_numpy, compute=_max_compute))


# --- indices of the maxima ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPoolIndicesAttrs(MaxPoolAttrs):
    """Attributes of `max_pool_indices`. `storage_order` 1 counts the spatial part of an index in column-major order."""

    storage_order: int = 0


def _indices_infer(types: Types, attrs: MaxPoolIndicesAttrs) -> Out:
    """The type rule of `max_pool_indices`: the flat index into the whole input of each window's first maximum in
    row-major order, or of its last NaN, as in PyTorch. `storage_order` 1 counts the spatial part in column-major
    order."""
    t = infer_shape(types, attrs)
    return (TensorType(i64, t.shape),)


def flat_index(x_shape: Sequence[Expr], point: Sequence[Expr]) -> Expr:
    index = point[0]
    for extent, at in zip(x_shape[1:], point[1:], strict=True):
        index = index * extent + at
    return index


def column_major(index: Expr, extents: Sequence[Expr]) -> Expr:
    """A flat index whose spatial part, of dimensions `extents`, is row-major, converted to one whose spatial part is
    column-major."""
    within: Expr = const(0)
    for k in reversed(range(len(extents))):
        within = within + index % extents[k] * product(extents[:k])
        index = index // extents[k]
    return index * product(extents) + within


def first_max() -> Any:
    """A reducer of (value, position) pairs to the largest value and its first position; NaN is larger than every
    number, and its position is the last one, as in PyTorch."""

    def combine(a: Any, b: Any) -> Any:
        greater, same = b[0] > a[0], call("eq", a[0], b[0])
        if b[0].dtype.is_float:
            nan_a, nan_b = call("isnan", a[0]), call("isnan", b[0])
            greater = greater | (nan_b & (call("not", nan_a) | (b[1] > a[1])))
        takes = greater | (same & (b[1] < a[1]))
        return select(takes, b[0], a[0]), select(takes, b[1], a[1])

    return te.comm_reducer(combine, lambda v, i: (const(v.min, v), const(i.max, i)), "argmax")


def indices_compute(inputs: Tensors, attrs: MaxPoolIndicesAttrs, out: Out) -> tuple[Tensor, ...]:
    x = need(inputs[0])
    rank = x.ndim - 2
    taps = [te.reduce_axis(attrs.kernel[k], KERNEL[rank][k]) for k in range(rank)]
    reducer = first_max()

    def element(n: Expr, c: Expr, *space: Expr) -> Any:
        inside: Expr = const(True)
        at: list[Expr] = []
        for k in range(rank):
            p = space[k] * attrs.strides[k] + taps[k].var * attrs.dilations[k] - attrs.pads[k]
            inside = inside & (p >= 0) & (p < x.shape[2 + k])
            at.append(p)
        value = select(inside, compared(x[(n, c, *at)], attrs), const(x.dtype.min, x.dtype))
        flat = flat_index(x.shape, (n, c, *at))
        return reducer((value, select(inside, flat, const(i64.max))), axis=taps)

    _, index = te.compute(out[0].shape, labelled(element, ("n", "c", *SPATIAL[rank])), name="max_pool_indices")
    if not attrs.storage_order:
        return (index,)
    return (te.compute(out[0].shape, lambda *i: column_major(index[i], x.shape[2:]), name="column_major"),)


def indices_numpy(arrays: Sequence[Any], attrs: MaxPoolIndicesAttrs) -> tuple[Any, ...]:
    x = compared_numpy(np.asarray(arrays[0]), attrs)
    out = out_extents(x, attrs)
    fill = -np.inf if not np.issubdtype(x.dtype, np.integer) else np.iinfo(x.dtype).min
    spatial = np.arange(int(np.prod(x.shape[2:])), dtype=np.int64).reshape(x.shape[2:])
    blocks = np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2]) * spatial.size
    flat = blocks.reshape(*x.shape[:2], *([1] * spatial.ndim)) + spatial
    values = np.stack(window_views(x, attrs, fill, out))
    places = np.stack(window_views(flat, attrs, np.iinfo(np.int64).max, out))
    best = values.max(axis=0)
    first = np.where(values == best, places, np.iinfo(np.int64).max).min(axis=0)
    nan = values != values  # greater than every number
    first = np.where(best != best, np.where(nan, places, -1).max(axis=0), first)
    if attrs.storage_order:
        columns = np.arange(spatial.size).reshape(spatial.shape, order="F").ravel()
        first = first - first % spatial.size + columns[first % spatial.size]
    return (first,)


register(
    OpDef("max_pool_indices", "reduction", MaxPoolIndicesAttrs, _indices_infer, indices_numpy, compute=indices_compute)
)


# --- average --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragePoolAttrs(PoolAttrs):
    """Attributes of `avg_pool`. With `count_include_pad`, sums are divided by the size of the padded window, else by
    the number of its elements outside the padding; a window of padding alone gives 0."""

    count_include_pad: bool = False


def _average_infer(types: Types, attrs: PoolAttrs) -> Out:
    """The type rule of `avg_pool`: that of `max_pool`, for floats only."""
    t = infer_shape(types, attrs)
    check_kind(t.dtype, ("float",))
    return (t,)


def covered(shape: Sequence[Expr], attrs: AveragePoolAttrs, k: int, p: Expr, t: DType) -> Expr | None:
    """The number of taps along spatial dimension `k` of an input of `shape` that count for the window at `p`, as a
    number of type `t`; None if all taps of all windows count."""
    rank = len(shape) - 2
    before, after = attrs.pads[k], attrs.pads[rank + k]
    include = attrs.count_include_pad
    if (include or not (before or after)) and not attrs.ceil_mode:
        return None
    low, high = (-before, shape[2 + k] + after) if include else (0, shape[2 + k])
    start = p * attrs.strides[k] - before
    total: Expr = const(0)
    if attrs.dilations[k] == 1:
        total = minimum(start + attrs.kernel[k], high) - maximum(start, low)
    else:
        for tap in range(attrs.kernel[k]):
            at = start + tap * attrs.dilations[k]
            total = total + select((at >= low) & (at < high), const(1), const(0))
    return cast(maximum(total, 1) if not include and _may_miss(shape, attrs, k) else total, t)


def _may_miss(shape: Sequence[Expr], attrs: AveragePoolAttrs, k: int) -> bool:
    """Whether a window along spatial dimension `k` of an input of `shape` may lie entirely in padding. Its sum is then
    0, and it may have any divisor."""
    before, after, dilation = attrs.pads[k], attrs.pads[len(shape) - 2 + k], attrs.dilations[k]
    extent = as_int(shape[2 + k])
    span = dilation * (attrs.kernel[k] - 1) + 1
    steps_over = dilation > 1 and (extent is None or dilation > extent)
    return max(before, after) >= span or steps_over


def _average_compute(inputs: Tensors, attrs: AveragePoolAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    acc = accumulator(x.dtype)
    total = _windows(x, attrs, type, scalar(0, x.dtype), te.sum, lambda e: cast(e, acc), "total")

    def element(*point: Expr) -> Expr:
        fixed, divisor = 1, None
        for k, p in enumerate(point[2:]):
            counted = covered(x.shape, attrs, k, p, acc)
            if counted is None:
                fixed *= attrs.kernel[k]
            else:
                divisor = counted if divisor is None else divisor * counted
        if divisor is None:
            return cast(total[point] * scalar(1 / fixed, acc), type.dtype)
        return cast(total[point] / (divisor * scalar(fixed, acc)), type.dtype)

    return (te.compute(type.shape, element, name="avg_pool"),)


def _average_numpy(arrays: Sequence[Any], attrs: AveragePoolAttrs) -> tuple[Any, ...]:
    x = wide(arrays[0])
    rank, out, pads = x.ndim - 2, out_extents(wide(arrays[0]), attrs), attrs.pads
    ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if attrs.count_include_pad:
        ones = np.pad(ones, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=1)
        inner = replace(attrs, pads=(0,) * (2 * rank))
        counts = sum(window_views(ones, inner, 0, out))
    else:
        counts = np.maximum(sum(window_views(ones, attrs, 0, out)), 1)  # a window of padding alone gives 0
    return ((sum(window_views(x, attrs, 0, out)) / counts).astype(np.asarray(arrays[0]).dtype),)


register(OpDef("avg_pool", "reduction", AveragePoolAttrs, _average_infer, _average_numpy, compute=_average_compute))


# --- Lp -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LpPoolAttrs(PoolAttrs):
    """Attributes of Lp pooling, whose norm has the exponent `p`."""

    p: int | float


def _lp_compute(inputs: Tensors, attrs: LpPoolAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    acc, p = accumulator(x.dtype), attrs.p

    def power(e: Expr) -> Expr:
        e = te.abs(cast(e, acc))
        return e if p == 1 else e * e if p == 2 else te.power(e, scalar(p, acc))

    total = _windows(x, attrs, type, scalar(0, x.dtype), te.sum, power, "total")
    if p == 1:
        return (narrow(total, type.dtype, "lp_pool"),)
    root = te.sqrt if p == 2 else lambda e: te.power(e, scalar(1 / p, acc))
    return (te.compute(type.shape, lambda *i: cast(root(total[i]), type.dtype), name="lp_pool"),)


def _lp_numpy(arrays: Sequence[Any], attrs: LpPoolAttrs) -> tuple[Any, ...]:
    x = wide(arrays[0])
    views = window_views(np.abs(x) ** attrs.p, attrs, 0, out_extents(x, attrs))
    return ((sum(views) ** (1 / attrs.p)).astype(np.asarray(arrays[0]).dtype),)


register(OpDef("lp_pool", "reduction", LpPoolAttrs, _average_infer, _lp_numpy, compute=_lp_compute))
