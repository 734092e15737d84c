"""Resizing along the last axis where both sizes are numbers: each output sample's taps and weights are known.

%y = lowered.resampled(%x) {resize's attributes, extent, dtype}

An unrolled loop over the axis loads neighbours and shuffles them, which avoids gathers by tables in memory
(`codegen/llvm/memory.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, cast
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import axis_of, dim, need, present, static
from tilewright.ops.registry import OpDef, Types, register
from tilewright.ops.resize import ResizeTapsAttrs, known_taps
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor, compute
from tilewright.te.tensors import const_matrix


def _infer(types: Types, attrs: ResizeTapsAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.resampled`: x resampled along its last axis, as `resample` does with the tables of
    `resize_taps`."""
    x = present(types[0])
    if axis_of(attrs.axis, x.rank) != x.rank - 1:
        raise ShapeError("known samples are of the last axis", expected=x.rank - 1, got=attrs.axis)
    static(attrs.extent, "the resized dimension")
    static(attrs.size, "the resized dimension")
    return (TensorType(x.dtype, (*x.shape[:-1], dim(attrs.size)), x.layout),)


def _compute(
    inputs: Sequence[Tensor | None], attrs: ResizeTapsAttrs, out: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    x = need(inputs[0])
    index, weights = known_taps(attrs)
    at = [const_matrix(row, i64) for row in index]
    factors = [const_matrix(row, attrs.dtype) for row in weights]
    nearest = attrs.mode == "nearest"

    def element(*i: Expr) -> Expr:
        taps = [x[(*i[:-1], places[i[-1]])] for places in at]
        if nearest:
            return taps[0]
        total = cast(taps[0], attrs.dtype) * factors[0][i[-1]]
        for tap, weight in zip(taps[1:], factors[1:], strict=True):
            total = total + cast(tap, attrs.dtype) * weight[i[-1]]
        return cast(total, x.dtype)

    return (compute(out[0].shape, element, name="resampled"),)


def _numpy(arrays: Sequence[Any], attrs: ResizeTapsAttrs) -> tuple[Any, ...]:
    x = np.asarray(arrays[0])
    index, weights = known_taps(attrs)
    if attrs.mode == "nearest":
        return (x[..., index[0]],)
    wide = x.astype(weights.dtype)
    y = sum(wide[..., index[t]] * weights[t] for t in range(len(index)))
    return (np.asarray(y).astype(x.dtype),)


RESAMPLED = register(OpDef("lowered.resampled", "injective", ResizeTapsAttrs, _infer, _numpy, compute=_compute))

__all__ = ["RESAMPLED"]
