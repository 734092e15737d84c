"""Fourier transforms by their definition, col2im, and insertion of rows into a cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.dtype import f64, i64
from tilewright.ir.expr import Expr, as_int, call, cast, const, equal, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import axis_of, check_kind, dim, dims, need, present, same_dtype, scalar, static
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


# --- discrete Fourier transform -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DftAttrs(Attrs):
    """Attributes of `dft`, the discrete Fourier transform along the dimension `axis`: the inverse one if `inverse`.
    With `onesided`, only the first half of the result along `axis` is computed; the rest is its conjugate."""

    axis: int
    inverse: bool
    onesided: bool


def _dft_infer(types: Types, attrs: DftAttrs) -> Out:
    """The type rule of `dft`: x [..., 1 or 2] (real, or real and imaginary) to its Fourier transform [..., 2] along
    `axis`; attributes `inverse`, `onesided`."""
    t = present(types[0])
    check_kind(t.dtype, ("float",))
    axis = axis_of(attrs.axis, t.rank - 1)
    if as_int(t.shape[-1]) not in (1, 2):
        raise ShapeError("the last dimension holds real and imaginary part", expected="1 or 2", got=t)
    length = static(t.shape[axis], "the length of a Fourier transform")
    if length < 1:
        raise ShapeError("a Fourier transform of no elements", got=t)
    retained = length // 2 + 1 if attrs.onesided else length
    return (TensorType(t.dtype, (*t.shape[:axis], dim(retained), *t.shape[axis + 1 : -1], const(2))),)


def _dft_compute(inputs: Tensors, attrs: DftAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    axis = attrs.axis % (x.ndim - 1)
    length = static(x.shape[axis], "the length of a Fourier transform")
    acc = f64  # sums of a whole period cancel
    sign = 1.0 if attrs.inverse else -1.0
    factor = 1.0 / length if attrs.inverse else 1.0

    def rotation(f: Expr, t: Expr, part: Expr) -> Expr:
        angle = cast(f * t % length, f64) * (2 * math.pi / length)
        value = select(equal(part, 0), call("cos", angle), call("sin", angle) * sign)
        return cast(value * factor, acc)

    table = te.compute((type.shape[axis], const(length), const(2)), rotation, name="rotation")
    k = te.reduce_axis(length, "k")
    complex_input = as_int(x.shape[-1]) == 2

    def element(*point: Expr) -> Any:
        *place, part = point
        f = place[axis]
        place[axis] = k.var
        real, imaginary = const(0), const(1)
        value = cast(x[(*place, real)], acc) * table[f, k.var, part]
        if complex_input:
            other = cast(x[(*place, imaginary)], acc) * table[f, k.var, const(1) - part]
            value = value + select(equal(part, 0), -other, other)
        return te.sum(value, axis=k)

    total = te.compute(type.shape, lambda *i: element(*i), name="dft")
    if total.dtype is type.dtype:
        return (total,)
    return (te.compute(type.shape, lambda *i: cast(total[i], type.dtype), name="rounded"),)


def _dft_numpy(arrays: Sequence[Any], attrs: DftAttrs) -> tuple[Any, ...]:
    array = np.asarray(arrays[0])
    x = array.astype(np.float64)
    values = x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    axis = attrs.axis
    y = (np.fft.ifft if attrs.inverse else np.fft.fft)(values, axis=axis)
    if attrs.onesided:
        y = np.take(y, range(x.shape[axis] // 2 + 1), axis=axis)
    return (np.stack([y.real, y.imag], axis=-1).astype(array.dtype),)


register(OpDef("dft", "reduction", DftAttrs, _dft_infer, _dft_numpy, compute=_dft_compute))


# --- columns to image -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Col2ImAttrs(Attrs):
    """Attributes of `col2im`: spatial sizes of the `image` and of a `block` of it; `strides` and `dilations` of the
    blocks; `pads`: those before each spatial dimension, then those after each."""

    image: Ints
    block: Ints
    strides: Ints
    dilations: Ints
    pads: Ints


def _windows(attrs: Col2ImAttrs) -> list[int]:
    rank = len(attrs.image)
    return [
        (attrs.image[k] + attrs.pads[k] + attrs.pads[rank + k] - attrs.dilations[k] * (b - 1) - 1) // attrs.strides[k]
        + 1
        for k, b in enumerate(attrs.block)
    ]


def _col2im_infer(types: Types, attrs: Col2ImAttrs) -> Out:
    """The type rule of `col2im`: x [N, C * product(block), windows] to [N, C, image...], in which overlapping blocks
    are added up. Attributes `image`, `block`, `strides`, `dilations`, `pads`."""
    t = present(types[0])
    size = math.prod(attrs.block)
    channels = as_int(t.shape[1]) if t.rank == 3 else None
    if channels is None or size < 1 or channels % size or min(_windows(attrs)) < 1:
        raise ShapeError("the columns do not fit the block", expected=f"a multiple of {size} channels", got=t)
    if as_int(t.shape[2]) != math.prod(_windows(attrs)):
        raise ShapeError("the columns do not fit the image", expected=math.prod(_windows(attrs)), got=t.shape[2])
    return (TensorType(t.dtype, (t.shape[0], const(channels // size), *dims(attrs.image))),)


def _col2im_compute(inputs: Tensors, attrs: Col2ImAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    windows, size = _windows(attrs), math.prod(attrs.block)
    taps = [te.reduce_axis(b, f"k{k}") for k, b in enumerate(attrs.block)]

    def element(n: Expr, c: Expr, *space: Expr) -> Any:
        covered: Expr = const(True)
        row, column = c * size, const(0) * 1
        within: Expr = const(0)
        place: Expr = column
        for k, tap in enumerate(taps):
            stride = attrs.strides[k]
            at = space[k] + attrs.pads[k] - tap.var * attrs.dilations[k]
            covered = covered & (at >= 0) & (at // stride < windows[k]) & equal(at % stride, 0)
            within = within * attrs.block[k] + tap.var
            place = place * windows[k] + at // stride
        return te.sum(select(covered, x[n, row + within, place], scalar(0, x.dtype)), axis=taps)

    return (te.compute(type.shape, lambda *i: element(*i), name="col2im"),)


def _col2im_numpy(arrays: Sequence[Any], attrs: Col2ImAttrs) -> tuple[Any, ...]:
    x = np.asarray(arrays[0])
    windows, block, rank = _windows(attrs), attrs.block, len(attrs.image)
    channels = x.shape[1] // math.prod(block)
    columns = x.reshape(x.shape[0], channels, *block, *windows)
    padded = [d + attrs.pads[k] + attrs.pads[rank + k] for k, d in enumerate(attrs.image)]
    y = np.zeros((x.shape[0], channels, *padded), x.dtype)
    for taps in itertools.product(*(range(b) for b in block)):
        window = tuple(
            slice(t * d, t * d + (w - 1) * s + 1, s)
            for t, d, w, s in zip(taps, attrs.dilations, windows, attrs.strides, strict=True)
        )
        y[(slice(None), slice(None), *window)] += columns[(slice(None),) * 2 + taps]
    retained = tuple(slice(attrs.pads[k], attrs.pads[k] + d) for k, d in enumerate(attrs.image))
    return (y[(slice(None), slice(None), *retained)],)


register(OpDef("col2im", "reduction", Col2ImAttrs, _col2im_infer, _col2im_numpy, compute=_col2im_compute))


# --- a cache that grows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InsertAttrs(Attrs):
    """Attributes of `insert`, which writes an update into a cache along `axis`. With `circular`, rows that would go
    past the end wrap around to the front."""

    axis: int
    circular: bool


def _insert_infer(types: Types, attrs: InsertAttrs) -> Out:
    """The type rule of `insert`. Inputs cache, update, starts [batch]?: the cache with the update written along `axis`
    from each batch entry's start on; with `circular` it wraps around."""
    cache, update = present(types[0]), present(types[1])
    same_dtype([cache, update])
    axis_of(attrs.axis, cache.rank)
    if update.rank != cache.rank:
        raise ShapeError("cache and update differ in rank", expected=cache, got=update)
    return (cache,)


def _insert_compute(inputs: Tensors, attrs: InsertAttrs, out: Out) -> tuple[Tensor, ...]:
    cache, update = need(inputs[0]), need(inputs[1])
    starts = inputs[2] if len(inputs) > 2 else None
    axis = attrs.axis % cache.ndim
    extent, length = cache.shape[axis], update.shape[axis]

    def element(*point: Expr) -> Expr:
        start = const(0) if starts is None else cast(starts[point[0]], i64)
        at = point[axis] - start
        at = at % extent if attrs.circular else at
        return select((at >= 0) & (at < length), update[(*point[:axis], at, *point[axis + 1 :])], cache[point])

    return (te.compute(cache.shape, lambda *i: element(*i), name="insert"),)


def _insert_numpy(arrays: Sequence[Any], attrs: InsertAttrs) -> tuple[Any, ...]:
    cache, update = np.asarray(arrays[0]).copy(), np.asarray(arrays[1])
    starts = np.zeros(cache.shape[0], int) if len(arrays) < 3 or arrays[2] is None else np.asarray(arrays[2])
    axis = attrs.axis % cache.ndim
    for b, start in enumerate(starts.tolist()):
        for k in range(update.shape[axis]):
            at = (start + k) % cache.shape[axis] if attrs.circular else start + k
            if 0 <= at < cache.shape[axis]:
                place: list[Any] = [slice(None)] * cache.ndim
                place[0], place[axis] = b, at
                source = list(place)
                source[axis] = k
                cache[tuple(place)] = update[tuple(source)]
    return (cache,)


register(OpDef("insert", "injective", InsertAttrs, _insert_infer, _insert_numpy, compute=_insert_compute))
