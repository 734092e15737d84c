"""Convolution of any rank over blocked channels, in groups that fill blocks; the padding is a condition on the indices.

weights  w[K, C/g, k...]  ->  `pack_conv`'s panels; with several groups a panel's width divides K/g
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import TensorType
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.dims import dims, need, present
from tilewright.ops.lowered.packed import UNBLOCK_CHANNELS, UnblockAttrs, blocked_conv, cropped, layout_name
from tilewright.ops.lowered.packed_groups import window_sizes, within
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.te import Tensor

Arrays = Sequence[Any]


@dataclass(frozen=True, slots=True)
class ConvWindowsAttrs(Attrs):
    """Attributes of `lowered.conv_windows`: those of `conv`, the number of `channels` of the result, and the size
    `out_block` of its blocks of channels."""

    strides: Ints
    dilations: Ints
    pads: Ints
    groups: int
    channels: int
    out_block: int


def _infer(types: Types, attrs: ConvWindowsAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.conv_windows`: x blocked or NCHW (with one group) and packed weights to a blocked
    output of `channels` channels."""
    x, w, b = present(types[0]), present(types[1]), attrs.out_block
    rank = len(attrs.strides)
    out = dims(window_sizes(x.shape[2 : 2 + rank], w.shape[2 : 2 + rank], attrs))
    shape = (x.shape[0], const(-(-attrs.channels // b)), *out, const(b))
    return (TensorType(x.dtype, shape, layout_name(b)),)


def _compute(
    inputs: Sequence[Tensor | None], attrs: ConvWindowsAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    x, w = need(inputs[0]), need(inputs[1])
    strides, dilations, pads, b = attrs.strides, attrs.dilations, attrs.pads, attrs.out_block
    rank, each = len(strides), attrs.channels // attrs.groups
    depth, *window, inner, width = w.shape[1:]
    co, ci = te.reduce_axis(depth, "co"), te.reduce_axis(inner, "ci")
    taps = [te.reduce_axis(extent, f"t{k}") for k, extent in enumerate(window)]
    blocked = x.ndim == rank + 3

    def element(*at: Expr) -> Expr:
        n, k, *place, lane = at
        index = [p * s + t.var * d - z for p, s, t, d, z in zip(place, strides, taps, dilations, pads, strict=False)]
        channel = k * b + lane
        first = const(0) if attrs.groups == 1 else k // (each // b) * depth
        value = x[(n, first + co.var, *index, *([ci.var] if blocked else []))]
        weight = w[(channel // width, co.var, *(t.var for t in taps), ci.var if blocked else const(0), channel % width)]
        axes = [co, *taps, *([ci] if blocked else [])]
        return te.sum(value * weight, axis=axes, where=within(index, x.shape[2 : 2 + rank], pads))  # type: ignore[no-any-return]

    blocks = as_int(w.shape[0] * width)
    assert blocks is not None
    n, _, *out, _ = types[0].shape
    product: Tensor = te.compute((n, const(blocks // b), *out, const(b)), element, name="windows")
    return (cropped(product, types[0].shape),)


def _reference(arrays: Arrays, attrs: ConvWindowsAttrs) -> tuple[Any, ...]:
    x, w = arrays
    rank = len(attrs.strides)
    panels, depth, *window, inner, width = w.shape
    if x.ndim == rank + 3:
        x = UNBLOCK_CHANNELS.reference([x], UnblockAttrs(x.shape[1] * inner))[0]
    full = np.moveaxis(np.moveaxis(w, -1, 1), -1, 3).reshape(panels * width, depth * inner, *window)
    ordinary = ConvAttrs(attrs.strides, attrs.dilations, attrs.pads, attrs.groups)
    return blocked_conv(x, full, ordinary, attrs.channels, attrs.out_block)


CONV_WINDOWS = register(OpDef("lowered.conv_windows", "contraction", ConvWindowsAttrs, _infer, _reference, _compute))
