"""The gradient of a convolution by its weight, with blocked channels: the channels of one operand are vector lanes,
those of the other are broadcast.

    wide    [N, W/b, ...space, b]                     its channels are vectors
    narrow  [N, C/b, ...space, b] or [N, C, ...]      blocked where its channels fill blocks
    result  [W/b, C/b, kh, kw, b, b]                  (the fifth is 1 if narrow is not blocked)

One of the two is the padded data, which is read at an offset for each tap; the other is the gradient of the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.expr import Expr, const
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import need, present
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.te import Tensor

RANK = 2


@dataclass(frozen=True, slots=True)
class ConvWeightAttrs(Attrs):
    """Attributes of `lowered.conv_weight`: strides, dilations and window of the convolution; `data` says which operand
    is its data, the other is the gradient of its result."""

    strides: Ints
    dilations: Ints
    window: Ints
    data: Literal["wide", "narrow"]


def _infer(types: Types, attrs: ConvWeightAttrs) -> tuple[TensorType, ...]:
    wide, narrow = present(types[0]), present(types[1])
    inner = narrow.shape[-1] if narrow.rank == RANK + 3 else const(1)
    window = map(const, attrs.window)
    return (TensorType(wide.dtype, (wide.shape[1], narrow.shape[1], *window, inner, wide.shape[-1])),)


def _compute(
    inputs: Sequence[Tensor | None], attrs: ConvWeightAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    wide, narrow = need(inputs[0]), need(inputs[1])
    flow = narrow if attrs.data == "wide" else wide
    n = te.reduce_axis(wide.shape[0], "n")
    pixels = [te.reduce_axis(flow.shape[2 + k], f"o{k}") for k in range(RANK)]

    def element(*at: Expr) -> Expr:
        outer, block, *taps, inner, lane = at
        here = [p.var for p in pixels]
        moved = [p * s + t * d for p, s, t, d in zip(here, attrs.strides, taps, attrs.dilations, strict=True)]
        mine, other = (moved, here) if attrs.data == "wide" else (here, moved)
        value = narrow[(n.var, block, *other, *([inner] if narrow.ndim == RANK + 3 else []))]
        return te.sum(value * wide[(n.var, outer, *mine, lane)], axis=[n, *pixels])  # type: ignore[no-any-return]

    return (te.compute(types[0].shape, element, name="by_weight"),)


def _reference(arrays: Sequence[Any], attrs: ConvWeightAttrs) -> tuple[Any, ...]:
    wide, narrow = arrays
    narrow = narrow if narrow.ndim == RANK + 3 else narrow[..., None]
    flow = narrow if attrs.data == "wide" else wide
    size = flow.shape[2 : 2 + RANK]
    y = np.zeros((wide.shape[1], narrow.shape[1], *attrs.window, narrow.shape[-1], wide.shape[-1]), wide.dtype)
    for taps in itertools.product(*map(range, attrs.window)):
        window = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, o, s in zip(taps, attrs.dilations, size, attrs.strides, strict=True)
        )
        picked = [(..., *window, slice(None)) if attrs.data == kind else (...,) for kind in ("wide", "narrow")]
        y[:, :, taps[0], taps[1]] = np.einsum("nwhkl,nchki->wcil", wide[picked[0]], narrow[picked[1]], optimize=True)
    return (y,)


CONV_WEIGHT = register(OpDef("lowered.conv_weight", "contraction", ConvWeightAttrs, _infer, _reference, _compute))
