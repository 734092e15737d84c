"""Convolutions by dot instructions (see `dots.py`), with channels in blocks of neighbours that one instruction
multiplies.

    conv     w[K, C, kh, kw]   ->  [ceil(K/width), ceil(C/b), kh, kw, b/group, width, group]

The input is blocked, `x[N, ceil(C/b), H, W, b]`; weights past C and K are zero, so that the input's padding lanes do
not matter (integers have no NaN, and blocks of floats are always full). With a zero point, x represents `x - zero`: the
padding around the image has its value, an operand of one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.expr import Expr, as_int, cast, ceildiv, const
from tilewright.ir.graph import TensorType
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.dims import need, present
from tilewright.ops.lowered.dots import accumulator
from tilewright.ops.lowered.index_maps import register_map
from tilewright.ops.lowered.packed import blocked_conv, convolved, cropped, layout_name, pad_spatial, panel_rows
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


# packing


@dataclass(frozen=True, slots=True)
class PackConvDotAttrs(Attrs):
    """Attributes of packing filters for dot instructions: channels of a block, filters of a panel (`width`), and
    neighbouring channels that one instruction multiplies (`group`). The number of panels is rounded up to a multiple of
    `panels`."""

    block: int
    width: int
    group: int
    panels: int


def _pack_infer(types: Types, attrs: PackConvDotAttrs) -> Out:
    """The type rule of `lowered.pack_conv_dot`: `w[K, C, kh, kw]` to panels. Raises ShapeError if groups do not divide
    a block."""
    w, block, width, group = present(types[0]), attrs.block, attrs.width, attrs.group
    if block % group:
        raise ShapeError("a block of channels is no multiple of the group", expected=group, got=block)
    filters, channels, *window = w.shape
    count = ceildiv(filters, width * attrs.panels) * attrs.panels
    inner = (const(block // group), const(width), const(group))
    return (TensorType(w.dtype, (count, ceildiv(channels, block), *window, *inner)),)


def _pack_compute(inputs: Tensors, attrs: PackConvDotAttrs, out: Out) -> tuple[Tensor, ...]:
    w, (type,) = need(inputs[0]), out
    _, blocks, *window, _, _, group = type.shape
    rows = panel_rows(w, attrs.width, blocks * attrs.block, attrs.panels)

    def element(*at: Expr) -> Expr:
        panel, outer, *where, step, lane, member = at
        place = outer * attrs.block + step * group + member
        for i, size in zip(where, window, strict=True):
            place = place * size + i
        return rows[panel, place, lane]

    return (te.compute(type.shape, element, name="pack"),)


register_map("lowered.pack_conv_dot", PackConvDotAttrs, _pack_infer, _pack_compute)


# the convolution


@dataclass(frozen=True, slots=True)
class ConvDotAttrs(Attrs):
    """Attributes of `conv`, and the channels of the result."""

    strides: Ints
    dilations: Ints
    pads: Ints
    channels: int


def _conv_infer(types: Types, attrs: ConvDotAttrs) -> Out:
    """The type rule of `lowered.conv_dot`: blocked `x`, packed `w`, and a zero point `[]` of x's type or None, to
    blocks as wide as the panels, of i32 or f32."""
    x, w = present(types[0]), present(types[1])
    if (
        x.rank != 5
        or w.rank != 7
        or as_int(x.shape[1]) != as_int(w.shape[1])
        or x.shape[4] is not w.shape[4] * w.shape[6]
    ):
        raise ShapeError("the packed weights do not fit the blocks of channels", expected=w, got=x)
    space = convolved(x.shape[2:4], w.shape[2:4], attrs.strides, attrs.dilations, attrs.pads)
    width = as_int(w.shape[5]) or 1
    shape = (x.shape[0], const(-(-attrs.channels // width)), *space, const(width))
    return (TensorType(accumulator(x.dtype), shape, layout_name(width)),)


def _conv_compute(inputs: Tensors, attrs: ConvDotAttrs, out: Out) -> tuple[Tensor, ...]:
    w, (type,) = need(inputs[1]), out
    panels, blocks, height, width, steps, _, group = w.shape
    zero = inputs[2][()] if len(inputs) > 2 and inputs[2] is not None else 0
    x = pad_spatial(need(inputs[0]), attrs.pads, zero)
    (sh, sw), (dh, dw) = attrs.strides, attrs.dilations
    kinds = ((blocks, "co"), (height, "kh"), (width, "kw"), (steps, "ci"), (group, "p"))
    axes = [te.reduce_axis(size, name) for size, name in kinds]
    co, kh, kw, ci, member = (axis.var for axis in axes)

    def element(n: Expr, k: Expr, h: Expr, v: Expr, lane: Expr) -> Expr:
        value = x[n, co, h * sh + kh * dh, v * sw + kw * dw, ci * group + member]
        weight = w[k, co, kh, kw, ci, lane, member]
        return te.sum(cast(value, type.dtype) * cast(weight, type.dtype), axis=axes)  # type: ignore[no-any-return]

    whole = (type.shape[0], panels, *type.shape[2:])
    product: Tensor = te.compute(whole, element, name="conv")
    return (cropped(product, type.shape),)


def conv_of_panels(x: Any, w: Any, zero: Sequence[Any], attrs: ConvAttrs, channels: int, block: int) -> tuple[Any, ...]:
    """The result, by NumPy, of a convolution with `channels` output channels and filters `w` packed in panels: `conv`
    of blocked x, in i32 or f32, where x is padded with the zero point, if there is one. The result is in blocks of
    `block` channels."""
    acc = np.int32 if x.dtype.kind in "iu" else np.float32
    full = w.astype(acc).transpose(0, 5, 1, 4, 6, 2, 3).reshape(w.shape[0] * w.shape[5], -1, *w.shape[2:4])
    depth = min(full.shape[1], x.shape[1] * x.shape[4] // attrs.groups)
    x = np.moveaxis(x, 4, 2).reshape(x.shape[0], -1, *x.shape[2:4])[:, : depth * attrs.groups]
    margins = [(0, 0), (0, 0), *zip(attrs.pads[:2], attrs.pads[2:], strict=True)]
    x = np.pad(x, margins, constant_values=next((v for v in zero if v is not None), 0)).astype(acc)
    return blocked_conv(x, full[:, :depth], replace(attrs, pads=(0,) * 4), channels, block)


def _conv_reference(arrays: Sequence[Any], attrs: ConvDotAttrs) -> tuple[Any, ...]:
    x, w, *zero = arrays
    width = w.shape[5]
    ordinary = ConvAttrs(attrs.strides, attrs.dilations, attrs.pads, 1)
    return conv_of_panels(x, w, zero, ordinary, -(-attrs.channels // width) * width, width)


CONV_DOT = register(OpDef("lowered.conv_dot", "contraction", ConvDotAttrs, _conv_infer, _conv_reference, _conv_compute))
