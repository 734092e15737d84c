"""Grid sampling in two steps: the indices and weights of each pixel's taps, then weighted sums for all channels.

%index, %weight = lowered.sample_taps(%grid) {grid_sample's attributes, extents, dtype}
%y = lowered.sampled(%x, %index, %weight) {axis}

Coordinates are computed in f64, once for each pixel rather than for each element. If channels are the last dimension of
`x`, a tap is one vector load, without gathers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Dims
from tilewright.ir.dtype import DType, i64
from tilewright.ir.expr import Expr, cast, const, equal, maximum, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import axis_of, dim, need, number, present, scalar, static
from tilewright.ops.registry import OpDef, Types, register
from tilewright.ops.sample import TAPS, GridSampleAttrs, known_taps, tap_of
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTapsAttrs(GridSampleAttrs):
    """Attributes of `lowered.sample_taps`: those of `grid_sample`, the `extents` of the sampled dimensions, and the
    `dtype` of the weights."""

    extents: Dims
    dtype: DType


def _taps_infer(types: Types, attrs: SampleTapsAttrs) -> Out:
    """The type rule of `lowered.sample_taps`: grid [N, out..., rank], as `grid_sample` reads it, to indices and weights
    [rank, taps, N, out...]. The index is -1 for a tap outside of the input, which counts as zero."""
    grid = present(types[0])
    rank = static(grid.shape[-1], "the number of coordinates")
    if rank != len(attrs.extents):
        raise ShapeError("the grid has other dimensions than the input", expected=len(attrs.extents), got=rank)
    shape = (const(rank), const(TAPS[attrs.mode]), *grid.shape[:-1])
    return TensorType(i64, shape), TensorType(attrs.dtype, shape)


def _taps_compute(inputs: Tensors, attrs: SampleTapsAttrs, out: Out) -> tuple[Tensor, ...]:
    grid, rank = need(inputs[0]), len(attrs.extents)

    def element(k: Expr, t: Expr, *pixel: Expr) -> tuple[Expr, Expr]:
        extent = dim(attrs.extents[-1])
        for i in range(rank - 1):
            extent = select(equal(k, i), dim(attrs.extents[i]), extent)
        index, weight = tap_of(grid[(*pixel, rank - 1 - k)], t, extent, attrs)
        return index, cast(weight, attrs.dtype)

    index, weight = te.compute(out[0].shape, element, name="taps")
    return index, weight


def _taps_numpy(arrays: Sequence[Any], attrs: SampleTapsAttrs) -> tuple[Any, ...]:
    grid, rank = np.asarray(arrays[0]).astype(np.float64), len(attrs.extents)
    axes = [known_taps(grid[..., rank - 1 - k], number(extent), attrs) for k, extent in enumerate(attrs.extents)]
    index = np.stack([np.moveaxis(np.where(inside, at, -1), -1, 0) for at, inside, _ in axes])
    weight = np.stack([np.moveaxis(w, -1, 0) for _, _, w in axes])
    return index.astype(np.int64), weight.astype(attrs.dtype.numpy)


SAMPLE_TAPS = register(
    OpDef("lowered.sample_taps", "opaque", SampleTapsAttrs, _taps_infer, _taps_numpy, compute=_taps_compute)
)


@dataclass(frozen=True, slots=True)
class SampledAttrs(Attrs):
    """Attributes of `lowered.sampled`: `axis` is the dimension of the channels, 1 or the last one."""

    axis: int


def _infer(types: Types, attrs: SampledAttrs) -> Out:
    """The type rule of `lowered.sampled`: x [N, C, spatial...] or [N, spatial..., C], and the indices and weights of
    `lowered.sample_taps`, to [N, C, out...] or [N, out..., C]."""
    x, index, weight = (present(types[k]) for k in range(3))
    rank, axis = static(index.shape[0], "the number of coordinates"), axis_of(attrs.axis, x.rank)
    static(index.shape[1], "the number of taps")
    if index.shape != weight.shape or rank != x.rank - 2 or axis not in (1, x.rank - 1):
        raise ShapeError("indices and weights do not fit the input", got=f"{x}, {index}, {weight}")
    n, *pixels = index.shape[2:]
    shape = (n, x.shape[1], *pixels) if axis == 1 else (n, *pixels, x.shape[axis])
    return (TensorType(x.dtype, shape),)


def _compute(inputs: Tensors, attrs: SampledAttrs, out: Out) -> tuple[Tensor, ...]:
    x, index, weight = need(inputs[0]), need(inputs[1]), need(inputs[2])
    rank, taps = (static(d, "the taps") for d in index.shape[:2])
    axis, acc = attrs.axis % x.ndim, weight.dtype

    def element(*i: Expr) -> Expr:
        pixel = (*i[:axis], *i[axis + 1 :])

        def summed(at: tuple[Expr, ...], inside: Expr) -> Expr:
            """The weighted sum over the taps of all dimensions, where `at` has the indices of the first dimensions'
            taps; `inside`: whether these lie in the input."""
            k = len(at)
            if k == rank:
                point = [i[0], *(maximum(a, 0) for a in at)]
                point.insert(axis, i[axis])
                return cast(select(inside, x[tuple(point)], scalar(0, x.dtype)), acc)
            total: Expr | None = None
            for t in range(taps):
                which = index[(const(k), const(t), *pixel)]
                term = summed((*at, which), inside & (which >= 0)) * weight[(const(k), const(t), *pixel)]
                total = term if total is None else total + term
            assert total is not None
            return total

        return cast(summed((), const(True)), x.dtype)

    return (te.compute(out[0].shape, element, name="sampled"),)


def _numpy(arrays: Sequence[Any], attrs: SampledAttrs) -> tuple[Any, ...]:
    array, index, weight = (np.asarray(a) for a in arrays)
    x = np.moveaxis(array, attrs.axis, -1).astype(weight.dtype)
    rank, taps, batch = *index.shape[:2], np.arange(len(x)).reshape(-1, *[1] * (index.ndim - 3))
    y: Any = 0
    for corner in itertools.product(range(taps), repeat=rank):
        at = [index[k, t] for k, t in enumerate(corner)]
        inside = np.logical_and.reduce([a >= 0 for a in at])
        values = np.where(inside[..., None], x[(batch, *(np.maximum(a, 0) for a in at))], 0)
        y = y + values * math.prod(weight[k, t] for k, t in enumerate(corner))[..., None]
    return (np.ascontiguousarray(np.moveaxis(y, -1, attrs.axis)).astype(array.dtype),)


SAMPLED = register(OpDef("lowered.sampled", "opaque", SampledAttrs, _infer, _numpy, compute=_compute))

__all__ = ["SAMPLED", "SAMPLE_TAPS"]
