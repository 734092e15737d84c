"""Gathers: elements chosen by integer tensors at run time.

Indices count from the end when negative. An index outside the tensor reads the nearest element, and one into an empty
dimension reads zero: whatever the data, no memory outside is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.arith import prove
from tilewright.ir.attributes import Attrs, Dim, Number
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, as_int, call, cast, const, maximum, minimum, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import axis_of, dim, need, number, present, same_dim, scalar, show
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import DTypeError, ShapeError
from tilewright.te import Tensor, compute

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


def integer(t: TensorType, what: str = "indices") -> None:
    if not t.dtype.is_int:
        raise DTypeError(f"{what} must be integers", got=t)


def wrapped(index: Expr, extent: Expr) -> Expr:
    """An index from data, as i64: negative ones count from the end, and all are clamped to 0..extent - 1."""
    i = cast(index, i64)
    if index.dtype.kind != "uint":
        i = select(i < 0, i + extent, i)
    return maximum(minimum(i, extent - 1), 0)


def nearest(position: Expr, count: Expr, extent: Expr) -> Expr:
    """`position`, which is less than `count`, limited to extent - 1; unchanged if `count` is provably not above
    `extent`."""
    return position if prove(count <= extent) else minimum(position, extent - 1)


def loaded(x: Tensor, at: Sequence[Expr], chosen: Sequence[Expr]) -> Expr:
    """`x[at]`; zero if one of `chosen`, the extents of the dimensions that data indexes, is 0."""
    value: Expr = x[tuple(at)]
    for extent in chosen:
        if not prove(extent > 0):
            value = select(extent > 0, value, scalar(0, x.dtype))
    return value


def check_choice(indices: TensorType, chosen: Sequence[Expr]) -> None:
    """Raise ShapeError if there are `indices` into a dimension whose extent, one of `chosen`, is 0."""
    if any(as_int(extent) == 0 for extent in chosen) and as_int(indices.size) != 0:
        raise ShapeError("indices into an empty dimension", got=indices)


def check_within(indices: TensorType, x: TensorType, axis: int) -> None:
    """Raise ShapeError if the indices are larger than the data in a dimension other than `axis`."""
    for k, (i, d) in enumerate(zip(indices.shape, x.shape, strict=True)):
        a, b = as_int(i), as_int(d)
        if k != axis and a is not None and b is not None and a > b:
            raise ShapeError("the indices are larger than the data", expected=x, got=indices)


def wrapped_numpy(indices: Any, extent: int) -> Any:
    i = np.asarray(indices).astype(np.int64)
    return np.clip(np.where(i < 0, i + extent, i), 0, max(extent - 1, 0))


# --- gather ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AxisAttrs(Attrs):
    """Attributes of `gather` and `gather_elements`: the dimension `axis` of the data that the indices address."""

    axis: int


def _gather_infer(types: Types, attrs: AxisAttrs) -> Out:
    """The type rule of `gather`: slices of x along `axis` at the indices, whose dimensions replace the axis."""
    x, indices = present(types[0]), present(types[1])
    integer(indices)
    axis = axis_of(attrs.axis, x.rank)
    check_choice(indices, [x.shape[axis]])
    layout = x.layout if indices.rank == 1 else ""
    return (TensorType(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), layout),)


def _gather_compute(inputs: Tensors, attrs: AxisAttrs, out: Out) -> tuple[Tensor, ...]:
    x, indices = need(inputs[0]), need(inputs[1])
    axis = attrs.axis % x.ndim

    def element(*point: Expr) -> Expr:
        middle = point[axis : axis + indices.ndim]
        at = wrapped(indices[middle], x.shape[axis])
        return loaded(x, (*point[:axis], at, *point[axis + indices.ndim :]), [x.shape[axis]])

    return (compute(out[0].shape, element, name="gather"),)


def _gather_numpy(arrays: Sequence[Any], attrs: AxisAttrs) -> tuple[Any, ...]:
    x = np.asarray(arrays[0])
    axis = attrs.axis
    return (np.take(x, wrapped_numpy(arrays[1], x.shape[axis]), axis=axis),)


register(OpDef("gather", "injective", AxisAttrs, _gather_infer, _gather_numpy, compute=_gather_compute))


def _gather_elements_infer(types: Types, attrs: AxisAttrs) -> Out:
    x, indices = present(types[0]), present(types[1])
    integer(indices)
    axis = axis_of(attrs.axis, x.rank)
    if indices.rank != x.rank:
        raise ShapeError("data and indices must have one rank", expected=x, got=indices)
    check_within(indices, x, axis)
    check_choice(indices, x.shape)
    return (TensorType(x.dtype, indices.shape),)


def _gather_elements_compute(inputs: Tensors, attrs: AxisAttrs, out: Out) -> tuple[Tensor, ...]:
    x, indices = need(inputs[0]), need(inputs[1])
    axis = attrs.axis % x.ndim

    def element(*point: Expr) -> Expr:
        place = [nearest(p, n, d) for p, n, d in zip(point, indices.shape, x.shape, strict=True)]
        place[axis] = wrapped(indices[point], x.shape[axis])
        return loaded(x, place, x.shape)

    return (compute(out[0].shape, element, name="gather_elements"),)


def _gather_elements_numpy(arrays: Sequence[Any], attrs: AxisAttrs) -> tuple[Any, ...]:
    x = np.asarray(arrays[0])
    axis = attrs.axis % x.ndim
    grid = list(np.indices(np.shape(arrays[1]), sparse=True))
    grid[axis] = wrapped_numpy(arrays[1], x.shape[axis])
    return (x[tuple(grid)],)


register(
    OpDef(
        "gather_elements",
        "injective",
        AxisAttrs,
        _gather_elements_infer,
        _gather_elements_numpy,
        compute=_gather_elements_compute,
    )
)


@dataclass(frozen=True, slots=True)
class GatherNdAttrs(Attrs):
    """Attributes of `gather_nd`: `batch_dims` is the number of leading dimensions that data and indices share."""

    batch_dims: int = 0


def _gather_nd_infer(types: Types, attrs: GatherNdAttrs) -> Out:
    """The type rule of `gather_nd`: the last dimension of the indices holds the position of an element in the
    dimensions of x after the `batch_dims` shared ones; further dimensions of x are copied."""
    x, indices = present(types[0]), present(types[1])
    integer(indices)
    batch = attrs.batch_dims
    if not 0 <= batch < max(min(x.rank, indices.rank), 1):
        raise ShapeError("no number of batch dimensions", expected=f"0 to {min(x.rank, indices.rank) - 1}", got=batch)
    depth = as_int(indices.shape[-1]) if indices.rank else None
    if depth is None or not 1 <= depth <= x.rank - batch:
        raise ShapeError(
            "the indices' last dimension does not fit the data",
            expected=f"1 to {x.rank - batch}",
            got=show(indices.shape),
        )
    if not all(same_dim(a, b) for a, b in zip(x.shape[:batch], indices.shape[:batch], strict=True)):
        raise ShapeError("the batch dimensions differ", expected=show(x.shape[:batch]), got=show(indices.shape))
    check_choice(indices, x.shape[batch : batch + depth])
    return (TensorType(x.dtype, (*indices.shape[:-1], *x.shape[batch + depth :])),)


def _gather_nd_compute(inputs: Tensors, attrs: GatherNdAttrs, out: Out) -> tuple[Tensor, ...]:
    x, indices = need(inputs[0]), need(inputs[1])
    batch = attrs.batch_dims
    depth = as_int(indices.shape[-1]) or 0
    lead = indices.ndim - 1

    def element(*point: Expr) -> Expr:
        at = [wrapped(indices[(*point[:lead], const(k))], x.shape[batch + k]) for k in range(depth)]
        return loaded(x, (*point[:batch], *at, *point[lead:]), x.shape[batch : batch + depth])

    return (compute(out[0].shape, element, name="gather_nd"),)


def _gather_nd_numpy(arrays: Sequence[Any], attrs: GatherNdAttrs) -> tuple[Any, ...]:
    x, indices = (np.asarray(a) for a in arrays)
    batch = attrs.batch_dims
    depth = indices.shape[-1]
    lead = indices.shape[:-1]
    grid = [np.arange(x.shape[k]).reshape([-1 if j == k else 1 for j in range(len(lead))]) for k in range(batch)]
    at = [wrapped_numpy(indices[..., k], x.shape[batch + k]) for k in range(depth)]
    return (x[tuple(np.broadcast_arrays(*grid, *at))].reshape(*lead, *x.shape[batch + depth :]),)


register(OpDef("gather_nd", "injective", GatherNdAttrs, _gather_nd_infer, _gather_nd_numpy, compute=_gather_nd_compute))


# --- one hot --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OneHotAttrs(Attrs):
    """Attributes of `one_hot`: the result has a new `axis` of extent `depth`."""

    axis: int
    depth: Dim


def _one_hot_infer(types: Types, attrs: OneHotAttrs) -> Out:
    """The type rule of `one_hot`: indices and values [2] (off, on) to vectors of `depth` entries along a new `axis`,
    "on" at the index. An index outside of -depth..depth-1 gives only "off"."""
    indices, values = present(types[0]), present(types[1])
    axis = axis_of(attrs.axis, indices.rank + 1)
    if values.rank != 1 or as_int(values.shape[0]) != 2:
        raise ShapeError("the values must be two: off and on", got=values)
    return (TensorType(values.dtype, (*indices.shape[:axis], dim(attrs.depth), *indices.shape[axis:])),)


def _one_hot_compute(inputs: Tensors, attrs: OneHotAttrs, out: Out) -> tuple[Tensor, ...]:
    indices, values = need(inputs[0]), need(inputs[1])
    axis = attrs.axis % (indices.ndim + 1)
    depth = dim(attrs.depth)

    def element(*point: Expr) -> Expr:
        index = cast(indices[(*point[:axis], *point[axis + 1 :])], i64)
        index = select(index < 0, index + depth, index)
        return select(call("eq", index, point[axis]), values[const(1)], values[const(0)])

    return (compute(out[0].shape, element, name="one_hot"),)


def _one_hot_numpy(arrays: Sequence[Any], attrs: OneHotAttrs) -> tuple[Any, ...]:
    index = np.trunc(np.asarray(arrays[0]).astype(np.float64)).astype(np.int64)
    axis, depth = attrs.axis % (index.ndim + 1), number(attrs.depth)
    index = np.expand_dims(np.where(index < 0, index + depth, index), axis)
    shape = [1] * index.ndim
    shape[axis] = depth
    values = np.asarray(arrays[1])
    return (np.where(index == np.arange(depth).reshape(shape), values[1], values[0]),)


register(OpDef("one_hot", "injective", OneHotAttrs, _one_hot_infer, _one_hot_numpy, compute=_one_hot_compute))


# --- reversal of sequences ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReverseSequenceAttrs(Attrs):
    """Attributes of `reverse_sequence`: `batch_axis` is the dimension with an entry for each sequence, `time_axis` the
    one along which the first elements of a sequence are reversed."""

    batch_axis: int
    time_axis: int


def _reverse_infer(types: Types, attrs: ReverseSequenceAttrs) -> Out:
    """The type rule of `reverse_sequence`: x and lengths [batch] to x with the first `lengths[b]` entries along
    `time_axis` of batch `b` reversed."""
    x, lengths = present(types[0]), present(types[1])
    _check_lengths(x, lengths, attrs.batch_axis)
    return (x,)


def _check_lengths(x: TensorType, lengths: TensorType, batch_axis: int) -> None:
    integer(lengths, "lengths")
    if lengths.rank != 1 or not same_dim(lengths.shape[0], x.shape[batch_axis]):
        raise ShapeError("one length is needed for each batch entry", expected=x.shape[batch_axis], got=lengths)


def _reverse_compute(inputs: Tensors, attrs: ReverseSequenceAttrs, out: Out) -> tuple[Tensor, ...]:
    x, lengths = need(inputs[0]), need(inputs[1])
    time = attrs.time_axis

    def element(*point: Expr) -> Expr:
        extent = x.shape[time]
        length = minimum(cast(lengths[point[attrs.batch_axis]], i64), extent)
        at = select(point[time] < length, length - 1 - point[time], point[time])
        return x[(*point[:time], at, *point[time + 1 :])]

    return (compute(x.shape, element, name="reverse_sequence"),)


def _reverse_numpy(arrays: Sequence[Any], attrs: ReverseSequenceAttrs) -> tuple[Any, ...]:
    x = np.moveaxis(np.asarray(arrays[0]), (attrs.batch_axis, attrs.time_axis), (0, 1))
    y = x.copy()
    for b, length in enumerate(np.asarray(arrays[1]).tolist()):
        length = min(length, x.shape[1])
        y[b, :length] = x[b, :length][::-1]
    return (np.ascontiguousarray(np.moveaxis(y, (0, 1), (attrs.batch_axis, attrs.time_axis))),)


register(
    OpDef(
        "reverse_sequence", "injective", ReverseSequenceAttrs, _reverse_infer, _reverse_numpy, compute=_reverse_compute
    )
)


# --- masks of sequences ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SequenceMaskAttrs(Attrs):
    """Attributes of `sequence_mask`: in each batch entry, the elements along `time_axis` from the sequence's length on
    become `value`."""

    batch_axis: int
    time_axis: int
    value: Number = 0


def _mask_infer(types: Types, attrs: SequenceMaskAttrs) -> Out:
    """The type rule of `sequence_mask`: x and lengths [batch] to x in which the first `lengths[b]` entries of batch `b`
    along `time_axis` stay (none if it is not positive) and the others become `value`."""
    x, lengths = present(types[0]), present(types[1])
    if axis_of(attrs.time_axis, x.rank) == axis_of(attrs.batch_axis, x.rank):
        raise ShapeError("batch and time are different axes", got=attrs.time_axis)
    _check_lengths(x, lengths, attrs.batch_axis)
    return (x,)


def _mask_compute(inputs: Tensors, attrs: SequenceMaskAttrs, out: Out) -> tuple[Tensor, ...]:
    x, lengths = need(inputs[0]), need(inputs[1])
    value = scalar(attrs.value, x.dtype)

    def element(*point: Expr) -> Expr:
        return select(point[attrs.time_axis] < cast(lengths[point[attrs.batch_axis]], i64), x[point], value)

    return (compute(x.shape, element, name="sequence_mask"),)


def _mask_numpy(arrays: Sequence[Any], attrs: SequenceMaskAttrs) -> tuple[Any, ...]:
    x = np.moveaxis(np.asarray(arrays[0]), (attrs.batch_axis, attrs.time_axis), (0, 1)).copy()
    for b, length in enumerate(np.asarray(arrays[1]).tolist()):
        x[b, max(length, 0) :] = attrs.value
    return (np.ascontiguousarray(np.moveaxis(x, (0, 1), (attrs.batch_axis, attrs.time_axis))),)


register(OpDef("sequence_mask", "injective", SequenceMaskAttrs, _mask_infer, _mask_numpy, compute=_mask_compute))
