"""Sums over the taps of a window, each of which has a separate map of products: the second half of a convolution of few
filters.

    y[n, (f * kh + i) * kw + j, h, v]  ->  z[n, f, h, v] = sum over i, j of y[n, f..., h + i*dh - pad, v + j*dw - pad]

Taps outside of the map add nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.expr import Expr
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import dim, dims, need, present
from tilewright.ops.lowered.packed_groups import window_sizes, within
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.te import Tensor

Arrays = Sequence[Any]


@dataclass(frozen=True, slots=True)
class SumTapsAttrs(Attrs):
    """Attributes of `lowered.sum_taps`: extents of the window; strides, dilations and pads as of `conv`."""

    window: Ints
    strides: Ints
    dilations: Ints
    pads: Ints


def _infer(types: Types, attrs: SumTapsAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.sum_taps`: NCHW y [N, K * product(window), H, W] to NCHW [N, K, H', W'], as the result
    of `conv` with that window."""
    y = present(types[0])
    filters = dim(y.shape[1] // prod(attrs.window))
    return (TensorType(y.dtype, (y.shape[0], filters, *dims(window_sizes(y.shape[2:], attrs.window, attrs)))),)


def _compute(inputs: Sequence[Tensor | None], attrs: SumTapsAttrs, types: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    y = need(inputs[0])
    taps = [te.reduce_axis(extent, name) for extent, name in zip(attrs.window, ("kh", "kw"), strict=True)]
    place = [(s, t.var * d, p) for s, t, d, p in zip(attrs.strides, taps, attrs.dilations, attrs.pads, strict=False)]

    def element(n: Expr, f: Expr, *at: Expr) -> Expr:
        tap = (f * attrs.window[0] + taps[0].var) * attrs.window[1] + taps[1].var
        index = [q * s + step - before for q, (s, step, before) in zip(at, place, strict=True)]
        return te.sum(y[(n, tap, *index)], axis=taps, where=within(index, y.shape[2:], attrs.pads))  # type: ignore[no-any-return]

    return (te.compute(types[0].shape, element, name="taps"),)


def _reference(arrays: Arrays, attrs: SumTapsAttrs) -> tuple[Any, ...]:
    (y,) = arrays
    size, pads = window_sizes(y.shape[2:], attrs.window, attrs), attrs.pads
    maps = y.reshape(y.shape[0], -1, *attrs.window, *y.shape[2:])
    split: Any = np.pad(maps, [(0, 0)] * 4 + [*zip(pads[:2], pads[2:], strict=True)])
    total = np.zeros((*split.shape[:2], *size), y.dtype)
    for t in itertools.product(*map(range, attrs.window)):
        where = (
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, d, n, s in zip(t, attrs.dilations, size, attrs.strides, strict=True)
        )
        total += split[(slice(None), slice(None), *t, *where)]
    return (total,)


register(OpDef("lowered.sum_taps", "reduction", SumTapsAttrs, _infer, _reference, _compute))
