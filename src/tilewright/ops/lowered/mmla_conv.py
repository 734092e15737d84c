"""Convolutions by instructions that multiply two rows by two columns (`mmla.py`): two pixels of a line by two filters.

    conv_mmla   x[N, ceil(C/b), H, W, b]   w[P, D/group, kh, kw, 1, 2, group]   ->   [N, ceil(K/block), oh, ow, block]

Weights are packed as for dot instructions (`dot_conv.py`), two filters to a panel. The input is copied in blocks of a
group of channels, each phase of the strides separately, so that neighbouring pixels of the output read neighbouring
pixels of the copy. In a convolution with groups, each block has channels of one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.expr import Expr, as_int, cast, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.dims import need, present
from tilewright.ops.lowered.dot_conv import ConvDotAttrs, conv_of_panels
from tilewright.ops.lowered.dots import accumulator
from tilewright.ops.lowered.mmla import SIDE
from tilewright.ops.lowered.packed import convolved, layout_name
from tilewright.ops.lowered.tiles import phases_of
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class ConvMmlaAttrs(ConvDotAttrs):
    """The attributes of `ConvDotAttrs`, and `block`: the channels in a block of the result; `depth`: the input channels
    that a filter sums over; `groups`: of the convolution."""

    block: int
    depth: int
    groups: int = 1


def _infer(types: Types, attrs: ConvMmlaAttrs) -> Out:
    """The type rule of `lowered.conv_mmla`: blocked `x`, packed `w` and a zero point `[]` of x's type, or none, to
    blocks of i32 or f32. If there are several groups, the filters of each are whole panels."""
    x, w = present(types[0]), present(types[1])
    if w.rank != 7 or x.rank != 5 or (as_int(w.shape[4]), as_int(w.shape[5])) != (1, SIDE):
        raise ShapeError("the packed weights do not fit the blocks of channels", expected=w, got=x)
    deep, filters = (as_int(w.shape[1]) or 0) * (as_int(w.shape[6]) or 0), (as_int(w.shape[0]) or 0) * SIDE
    channels, written = (as_int(x.shape[1]) or 0) * (as_int(x.shape[4]) or 0), -(-attrs.channels // attrs.block)
    several = attrs.groups > 1 and (filters != attrs.channels or filters % (SIDE * attrs.groups))
    if attrs.depth > deep or attrs.depth * attrs.groups > channels or written * attrs.block > filters or several:
        raise ShapeError("the packed weights do not fit the blocks of channels", expected=w, got=x)
    space = convolved(x.shape[2:4], w.shape[2:4], attrs.strides, attrs.dilations, attrs.pads)
    shape = (x.shape[0], const(written), *space, const(attrs.block))
    return (TensorType(accumulator(x.dtype), shape, layout_name(attrs.block)),)


def _compute(inputs: Tensors, attrs: ConvMmlaAttrs, out: Out) -> tuple[Tensor, ...]:
    x, w, (type,) = need(inputs[0]), need(inputs[1]), out
    zero = inputs[2][()] if len(inputs) > 2 and inputs[2] is not None else const(0, x.dtype)
    panels, blocks, *window, _, _, group = w.shape
    images, _, h, v, b = x.shape
    sh, sw = attrs.strides
    top, left, *_ = attrs.pads
    height, width = (as_int(d) or 1 for d in window)
    reach = (height - 1) * attrs.dilations[0], (width - 1) * attrs.dilations[1]
    phases = [
        phases_of(size, stride, dilation)
        for size, stride, dilation in zip((height, width), attrs.strides, attrs.dilations, strict=True)
    ]
    side, couples = const(SIDE), ceildiv(type.shape[3], SIDE)
    each = as_int(panels // attrs.groups) or 1

    def pixel(n: Expr, outer: Expr, above: Expr, line: Expr, before: Expr, q: Expr, member: Expr) -> Expr:
        inner = outer % blocks * group + member
        c = outer // blocks * attrs.depth + inner
        y, z = line * sh + above - top, q * sw + before - left
        inside = (y >= 0) & (y < h) & (z >= 0) & (z < v)
        value = x[n, c // b, y, z, c % b]
        if as_int(blocks * group) != attrs.depth:
            value = select(inner < attrs.depth, value, const(0, x.dtype))
        return select(inside, value, zero)

    lines, columns = type.shape[2] + reach[0] // sh, couples * SIDE + reach[1] // sw
    shape = (images, blocks * attrs.groups, const(phases[0]), lines, const(phases[1]), columns, group)
    pairs = te.compute(shape, pixel, name="pairs")
    sizes = ((blocks, "co"), (window[0], "kh"), (window[1], "kw"), (group, "p"))
    axes = [te.reduce_axis(size, name) for size, name in sizes]
    co, kh, kw, member = (axis.var for axis in axes)

    def element(n: Expr, panel: Expr, i: Expr, couple: Expr, row: Expr, column: Expr) -> Expr:
        down, across = kh * attrs.dilations[0], kw * attrs.dilations[1]
        above, before = (f % k if k > 1 else const(0) for f, k in zip((down, across), phases, strict=True))
        outer = co if attrs.groups == 1 else panel // each * blocks + co
        q = couple * SIDE + row + across // sw
        value = pairs[n, outer, above, i + down // sh, before, q, member]
        weight = w[panel, co, kh, kw, 0, column, member]
        return te.sum(cast(value, type.dtype) * cast(weight, type.dtype), axis=axes)  # type: ignore[no-any-return]

    squares = te.compute((images, panels, type.shape[2], couples, side, side), element, name="squares")

    def in_order(n: Expr, k: Expr, i: Expr, j: Expr, lane: Expr) -> Expr:
        column = k * attrs.block + lane
        return squares[n, column // SIDE, i, j // SIDE, j % SIDE, column % SIDE]  # type: ignore[no-any-return]

    return (te.compute(type.shape, in_order, name="conv"),)


def _reference(arrays: Sequence[Any], attrs: ConvMmlaAttrs) -> tuple[Any, ...]:
    x, w, *zero = arrays
    channels = np.moveaxis(x, 4, 2).reshape(x.shape[0], -1, *x.shape[2:4])[:, : attrs.groups * attrs.depth]
    ordinary = ConvAttrs(attrs.strides, attrs.dilations, attrs.pads, attrs.groups)
    return conv_of_panels(channels[..., None], w, zero, ordinary, attrs.channels, attrs.block)


CONV_MMLA = register(OpDef("lowered.conv_mmla", "contraction", ConvMmlaAttrs, _infer, _reference, _compute))
