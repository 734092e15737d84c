"""Operators that move elements without computing: reshape, transpose, broadcast, concat, slice, pad, tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tilewright.ir.attributes import Attrs, ConstantArray, Dim, Dims, Ints, Number
from tilewright.ir.dtype import DType, dtype
from tilewright.ir.expr import Const, Expr, as_int, call, const, is_const, lookup, maximum, minimum, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import (
    axis_of,
    broadcast_index,
    broadcast_shapes,
    dim,
    dims,
    element_count,
    need,
    number,
    present,
    same_dim,
    same_dtype,
    same_shape,
    scalar,
    show,
)
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor, compute

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


# --- constant -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConstantAttrs(Attrs):
    """Attributes of `constant`: its `value`, an array."""

    value: ConstantArray


def _constant_infer(types: Types, attrs: ConstantAttrs) -> Out:
    array = attrs.value.array
    return (TensorType(dtype(array.dtype), dims(array.shape)),)


def _constant_compute(inputs: Tensors, attrs: ConstantAttrs, out: Out) -> tuple[Tensor, ...]:
    """A constant as a tensor expression. A uniform array is its number; one with few elements is a chain of selects on
    its linear index; a larger one is a table in memory, so that the code does not grow with it."""
    array = np.asarray(attrs.value.array)
    (type,) = out
    flat = [scalar(v, type.dtype) for v in array.reshape(-1).tolist()] or [scalar(0, type.dtype)]

    def element(*point: Expr) -> Expr:
        if all(v is flat[0] for v in flat):
            return flat[0]
        index = _linear(point, type.shape)
        if len(flat) > MAX_SELECTED:
            return lookup(index, flat)
        value: Expr = flat[-1]
        for k in reversed(range(len(flat) - 1)):
            value = select(index < k + 1, flat[k], value)
        return value

    return (compute(type.shape, element, name="constant"),)


MAX_SELECTED = 8
"""The largest number of different elements of a constant array that is computed by selections; an array with more is a
table in memory that the kernel reads. Large constants of models have become parameters before
(`transform/graph/constant_operands.py`); this is for those that passes create."""


def _linear(point: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    index: Expr = const(0)
    for p, d in zip(point, shape, strict=True):
        index = index * d + p
    return index


register(
    OpDef(
        "constant",
        "injective",
        ConstantAttrs,
        _constant_infer,
        lambda arrays, attrs: (np.asarray(attrs.value.array),),
        compute=_constant_compute,
    )
)


# --- reshape --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShapeAttrs(Attrs):
    """Attributes of operators that are given the `shape` of their result."""

    shape: Dims


def _reshape_infer(types: Types, attrs: ShapeAttrs) -> Out:
    t = present(types[0])
    shape = dims(attrs.shape)
    if not same_dim(dim(t.size), dim(element_count(shape))):
        raise ShapeError("a reshape keeps the number of elements", expected=f"{t.size} for {t}", got=show(shape))
    return (TensorType(t.dtype, shape),)


def _reshape_compute(inputs: Tensors, attrs: ShapeAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out

    def element(*point: Expr) -> Expr:
        rest = _linear(point, type.shape)
        index: list[Expr] = []
        for k, d in reversed(list(enumerate(x.shape))):
            index.append(rest if k == 0 else rest % d)
            rest = rest // d
        return x[tuple(reversed(index))]

    return (compute(type.shape, element, name="reshape"),)


register(
    OpDef(
        "reshape",
        "injective",
        ShapeAttrs,
        _reshape_infer,
        lambda arrays, attrs: (np.reshape(arrays[0], [number(d) for d in attrs.shape]),),
        compute=_reshape_compute,
        alias=True,
    )
)


# --- transpose, broadcast, tile -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransposeAttrs(Attrs):
    """Attributes of `transpose`: dimension k of the result is dimension `perm[k]` of the input."""

    perm: Ints


def _transpose_infer(types: Types, attrs: TransposeAttrs) -> Out:
    t = present(types[0])
    perm = attrs.perm
    if sorted(perm) != list(range(t.rank)):
        raise ShapeError("perm is not a permutation of the axes", expected=f"of 0..{t.rank - 1}", got=perm)
    return (TensorType(t.dtype, tuple(t.shape[p] for p in perm)),)


def _transpose_compute(inputs: Tensors, attrs: TransposeAttrs, out: Out) -> tuple[Tensor, ...]:
    x, perm = need(inputs[0]), attrs.perm
    where = [list(perm).index(k) for k in range(len(perm))]
    return (compute(out[0].shape, lambda *i: x[tuple(i[w] for w in where)], name="transpose"),)


register(
    OpDef(
        "transpose",
        "injective",
        TransposeAttrs,
        _transpose_infer,
        lambda arrays, attrs: (np.transpose(arrays[0], attrs.perm),),
        compute=_transpose_compute,
    )
)


def _broadcast_infer(types: Types, attrs: ShapeAttrs) -> Out:
    t = present(types[0])
    shape = dims(attrs.shape)
    if not same_shape(broadcast_shapes(t.shape, shape), shape):
        raise ShapeError("the tensor does not broadcast to the shape", expected=show(shape), got=t)
    return (TensorType(t.dtype, shape),)


def _broadcast_compute(inputs: Tensors, attrs: ShapeAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    return (compute(type.shape, lambda *i: x[broadcast_index(x, i, type.shape)], name="broadcast"),)


register(
    OpDef(
        "broadcast",
        "injective",
        ShapeAttrs,
        _broadcast_infer,
        lambda arrays, attrs: (np.broadcast_to(arrays[0], [number(d) for d in attrs.shape]),),
        compute=_broadcast_compute,
    )
)


@dataclass(frozen=True, slots=True)
class TileAttrs(Attrs):
    """Attributes of `tile`: the number of repetitions along each dimension."""

    repeats: Dims


def _tile_infer(types: Types, attrs: TileAttrs) -> Out:
    t = present(types[0])
    if len(attrs.repeats) != t.rank:
        raise ShapeError("one repeat is needed for each dimension", expected=t.rank, got=len(attrs.repeats))
    return (TensorType(t.dtype, tuple(dim(d * r) for d, r in zip(t.shape, attrs.repeats, strict=True))),)


def _tile_compute(inputs: Tensors, attrs: TileAttrs, out: Out) -> tuple[Tensor, ...]:
    x = need(inputs[0])
    return (compute(out[0].shape, lambda *i: x[tuple(p % d for p, d in zip(i, x.shape, strict=True))], name="tile"),)


register(
    OpDef(
        "tile",
        "injective",
        TileAttrs,
        _tile_infer,
        lambda arrays, attrs: (np.tile(arrays[0], [number(r) for r in attrs.repeats]),),
        compute=_tile_compute,
    )
)


# --- concat ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConcatAttrs(Attrs):
    """Attributes of `concat`, which joins its inputs along the dimension `axis`. A concatenation that is a `view` needs
    no kernel: its inputs are computed directly in their parts of its memory (`transform/graph/views.py`)."""

    axis: int
    view: bool = False


def _concat_infer(types: Types, attrs: ConcatAttrs) -> Out:
    input_types = [present(t) for t in types]
    same_dtype(input_types)
    first = input_types[0]
    axis = axis_of(attrs.axis, first.rank)
    total: Expr = const(0)
    for t in input_types:
        if t.rank != first.rank or not all(
            same_dim(a, b) for k, (a, b) in enumerate(zip(t.shape, first.shape, strict=True)) if k != axis
        ):
            raise ShapeError(
                f"the tensors differ outside axis {axis}", got=" and ".join(show(t.shape) for t in input_types)
            )
        total = total + t.shape[axis]
    return (TensorType(first.dtype, (*first.shape[:axis], dim(total), *first.shape[axis + 1 :]), first.layout),)


def _concat_compute(inputs: Tensors, attrs: ConcatAttrs, out: Out) -> tuple[Tensor, ...]:
    tensors = [need(t) for t in inputs]
    axis = attrs.axis % tensors[0].ndim
    ends: list[Expr] = []
    for t in tensors:
        ends.append((ends[-1] if ends else const(0)) + t.shape[axis])

    def pick(point: tuple[Expr, ...], lo: int, hi: int) -> Expr:
        if hi - lo == 1:
            start = ends[lo - 1] if lo else const(0)
            return tensors[lo][(*point[:axis], point[axis] - start, *point[axis + 1 :])]
        middle = (lo + hi) // 2
        return select(point[axis] < ends[middle - 1], pick(point, lo, middle), pick(point, middle, hi))

    return (compute(out[0].shape, lambda *i: pick(i, 0, len(tensors)), name="concat"),)


register(
    OpDef(
        "concat",
        "injective",
        ConcatAttrs,
        _concat_infer,
        lambda arrays, attrs: (np.concatenate(arrays, axis=attrs.axis),),
        compute=_concat_compute,
        view=lambda attrs: attrs.view,
    )
)


# --- slice ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SliceAttrs(Attrs):
    """Attributes of `slice`: for each dimension the first element, the size of the result, and the step (not 0). A
    slice that is a `view` needs no kernel: it is a part of its input's memory (`transform/graph/views.py`)."""

    begin: Dims
    size: Dims
    step: Ints
    view: bool = False


def _slice_infer(types: Types, attrs: SliceAttrs) -> Out:
    """The type rule of `slice`. For each dimension: `begin`, `size` (of the result), `step` (not 0)."""
    t = present(types[0])
    for name in ("begin", "size", "step"):
        if (got := len(getattr(attrs, name))) != t.rank:
            raise ShapeError(f"{name} needs one entry for each dimension", expected=t.rank, got=got)
    for begin, size, step, d in zip(attrs.begin, attrs.size, attrs.step, t.shape, strict=True):
        numbers = as_int(begin), as_int(size), as_int(d)
        if all(n is not None for n in numbers):
            b, s, extent = (int(n or 0) for n in numbers)
            last = b + (s - 1) * step
            if s < 0 or (s > 0 and not (0 <= b < extent and 0 <= last < extent)):
                raise ShapeError("the slice leaves the tensor", expected=f"inside 0..{extent}", got=f"{b} to {last}")
    return (TensorType(t.dtype, dims(attrs.size), t.layout),)


def _slice_compute(inputs: Tensors, attrs: SliceAttrs, out: Out) -> tuple[Tensor, ...]:
    x = need(inputs[0])
    begin, step = dims(attrs.begin), attrs.step

    def element(*point: Expr) -> Expr:
        return x[tuple(p * s + b for p, s, b in zip(point, step, begin, strict=True))]

    return (compute(out[0].shape, element, name="slice"),)


def _slice_numpy(arrays: Sequence[Any], attrs: SliceAttrs) -> tuple[Any, ...]:
    x = np.asarray(arrays[0])
    for axis, (begin, size, step) in enumerate(zip(attrs.begin, attrs.size, attrs.step, strict=True)):
        x = np.take(x, number(begin) + step * np.arange(number(size)), axis=axis)
    return (x,)


register(
    OpDef(
        "slice",
        "injective",
        SliceAttrs,
        _slice_infer,
        _slice_numpy,
        compute=_slice_compute,
        view=lambda attrs: attrs.view,
    )
)


# --- pad ------------------------------------------------------------------------------------------------------------

PadMode = Literal["constant", "reflect", "edge", "wrap"]


@dataclass(frozen=True, slots=True)
class PadAttrs(Attrs):
    """Attributes of `pad`: the numbers of elements that are added before and after each dimension, not negative. In
    mode "constant" they are `value`, unless a second input gives it."""

    before: Dims
    after: Dims
    mode: PadMode
    value: Number = 0


def _pad_infer(types: Types, attrs: PadAttrs) -> Out:
    """The type rule of `pad`: x, and perhaps a scalar, to x with elements added before and after each dimension.
    `before`, `after` (not negative), `mode`; the constant is the scalar or the attribute `value`."""
    t = present(types[0])
    if len(attrs.before) != t.rank or len(attrs.after) != t.rank:
        raise ShapeError("pads need one entry for each dimension", expected=t.rank, got=len(attrs.before))
    if any((as_int(p) or 0) < 0 for p in (*attrs.before, *attrs.after)):
        raise ShapeError("pads are not negative: slices cut", got=f"{attrs.before}, {attrs.after}")
    return (
        TensorType(t.dtype, tuple(dim(d + b + a) for d, b, a in zip(t.shape, attrs.before, attrs.after, strict=True))),
    )


def _pad_compute(inputs: Tensors, attrs: PadAttrs, out: Out) -> tuple[Tensor, ...]:
    x = need(inputs[0])
    fill = inputs[1] if len(inputs) > 1 else None
    before, after = dims(attrs.before), dims(attrs.after)
    padded = [not (is_const(b, 0) and is_const(a, 0)) for b, a in zip(before, after, strict=True)]

    def element(*point: Expr) -> Expr:
        index = [p - b if q else p for p, b, q in zip(point, before, padded, strict=True)]
        if attrs.mode != "constant":
            places = zip(index, x.shape, padded, strict=True)
            *lead, last = (_wrapped(i, d, attrs.mode) if q else i for i, d, q in places)
            if not padded[-1]:
                return x[(*lead, last)]
            # Neighbours of a line are neighbours in `x`, but at its ends.
            within = (index[-1] >= 0) & (index[-1] < x.shape[-1])
            return select(within, x[(*lead, index[-1])], x[(*lead, last)])
        inside: Expr = const(True)
        for i, d, b, a, q in zip(index, x.shape, before, after, padded, strict=True):
            if q and not is_const(b, 0):
                inside = inside & (i >= 0)
            if q and not is_const(a, 0):
                inside = inside & (i < d)
        value = fill[tuple(const(0) for _ in fill.shape)] if fill is not None else scalar(attrs.value, x.dtype)
        return select(inside, x[tuple(index)], value)

    return (compute(out[0].shape, element, name="pad"),)


def _wrapped(i: Expr, extent: Expr, mode: str) -> Expr:
    match mode:
        case "edge":
            return minimum(maximum(i, 0), extent - 1)
        case "wrap":
            return i % extent
    period = maximum((extent - 1) * 2, 1)
    phase = call("mod", i, period)
    return minimum(phase, period - phase) if not is_const(extent, 1) else const(0)


def _pad_numpy(arrays: Sequence[Any], attrs: PadAttrs) -> tuple[Any, ...]:
    x = np.asarray(arrays[0])
    widths = [(number(b), number(a)) for b, a in zip(attrs.before, attrs.after, strict=True)]
    if attrs.mode != "constant":
        return (np.pad(x, widths, mode=attrs.mode),)
    fill = arrays[1] if len(arrays) > 1 and arrays[1] is not None else attrs.value
    return (np.pad(x, widths, constant_values=np.asarray(fill).astype(x.dtype).reshape(())),)


register(OpDef("pad", "injective", PadAttrs, _pad_infer, _pad_numpy, compute=_pad_compute))


# --- what is computed from positions alone ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RangeAttrs(Attrs):
    """Attributes of `range`, whose result has `size` elements of type `dtype`: `start`, `start + step`, and so on."""

    start: Number | Expr
    step: Number | Expr
    size: Dim
    dtype: DType


def _range_compute(inputs: Tensors, attrs: RangeAttrs, out: Out) -> tuple[Tensor, ...]:
    (type,) = out
    t: DType = type.dtype

    def element(i: Expr) -> Expr:
        from tilewright.ir.expr import cast

        start, step = (
            v if isinstance(v, Expr) and not isinstance(v, Const) else scalar(_literal(v), t)
            for v in (attrs.start, attrs.step)
        )
        return cast(i, t) * cast(step, t) + cast(start, t)

    return (compute(type.shape, element, name="range"),)


def _literal(value: Any) -> Any:
    return value.value if isinstance(value, Const) else value


register(
    OpDef(
        "range",
        "injective",
        RangeAttrs,
        lambda types, attrs: (TensorType(attrs.dtype, dims((attrs.size,))),),
        lambda arrays, attrs: (
            (np.arange(number(attrs.size)) * _literal(attrs.step) + _literal(attrs.start)).astype(attrs.dtype.numpy),
        ),
        compute=_range_compute,
    )
)


@dataclass(frozen=True, slots=True)
class TriluAttrs(Attrs):
    """Attributes of `trilu`, which retains one triangle of a matrix and sets the rest to zero: with `upper` the
    elements on and above diagonal `k` (0: the main one, positive: above it), else those on and below it."""

    k: int
    upper: bool


def _trilu_compute(inputs: Tensors, attrs: TriluAttrs, out: Out) -> tuple[Tensor, ...]:
    x, k = need(inputs[0]), attrs.k

    def element(*i: Expr) -> Expr:
        retained = i[-1] - i[-2] >= k if attrs.upper else i[-1] - i[-2] <= k
        return select(retained, x[i], scalar(0, x.dtype))

    return (compute(x.shape, element, name="trilu"),)


def _trilu_infer(types: Types, attrs: TriluAttrs) -> Out:
    t = present(types[0])
    if t.rank < 2:
        raise ShapeError("a triangle needs two dimensions", got=t)
    return (t,)


register(
    OpDef(
        "trilu",
        "injective",
        TriluAttrs,
        _trilu_infer,
        lambda arrays, attrs: ((np.triu if attrs.upper else np.tril)(arrays[0], attrs.k),),
        compute=_trilu_compute,
    )
)


@dataclass(frozen=True, slots=True)
class EyeAttrs(Attrs):
    """Attributes of `eye`, a matrix of `rows` x `columns` elements of type `dtype`, which has ones on diagonal `k` (0:
    the main one, positive: above it) and zeros elsewhere."""

    rows: Dim
    columns: Dim
    k: int
    dtype: DType


def _eye_compute(inputs: Tensors, attrs: EyeAttrs, out: Out) -> tuple[Tensor, ...]:
    one, zero = scalar(1, attrs.dtype), scalar(0, attrs.dtype)
    k = attrs.k
    return (compute(out[0].shape, lambda i, j: select(call("eq", j - i, const(k)), one, zero), name="eye"),)


register(
    OpDef(
        "eye",
        "injective",
        EyeAttrs,
        lambda types, attrs: (TensorType(attrs.dtype, dims((attrs.rows, attrs.columns))),),
        lambda arrays, attrs: (np.eye(number(attrs.rows), number(attrs.columns), attrs.k, dtype=attrs.dtype.numpy),),
        compute=_eye_compute,
    )
)
