"""Transposed convolution over blocked channels: a correlation of stride one for each phase of the output.

With stride s an output position o reads the taps t for which o + pad = i*s + t, so t = phase + j*s where the phase is
(o + pad) % s: every phase has its own ceil((k - phase) / s) taps, and nothing is ever scattered or multiplied by zero.

    weights  w[C, K, k...]  ->  [ceil(K/width), s..., ceil(k/s)..., C/b, b, width]     (b = 1 for an unblocked input)

Each phase reads only the taps that it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Dims, Ints
from tilewright.ir.expr import Expr, all_of, as_expr, as_int, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.conv import ConvTransposeAttrs
from tilewright.ops.dims import dim, need, present, same_dim
from tilewright.ops.lowered.index_maps import register_map
from tilewright.ops.lowered.packed import UNBLOCK_CHANNELS, UnblockAttrs, blocked, cropped, layout_name
from tilewright.ops.registry import OpDef, Types, get, register
from tilewright.support.classes import dataclass
from tilewright.te import Tensor

Arrays = Sequence[Any]


@dataclass(frozen=True, slots=True)
class PackTransposedAttrs(Attrs):
    """Attributes of packing the filters of `conv_transpose`: channels of a block, filters of a panel, strides."""

    block: int
    width: int
    strides: Ints


def _pack_infer(types: Types, attrs: PackTransposedAttrs) -> tuple[TensorType, ...]:
    w, b, width, strides = present(types[0]), attrs.block, attrs.width, attrs.strides
    c, k, *window = w.shape
    taps = [ceildiv(size, s) for size, s in zip(window, strides, strict=True)]
    shape = (ceildiv(k, width), *(const(s) for s in strides), *taps, ceildiv(c, b), const(b), const(width))
    return (TensorType(w.dtype, shape),)


def _pack_compute(
    inputs: Sequence[Tensor | None], attrs: PackTransposedAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    w, b, width, strides = need(inputs[0]), attrs.block, attrs.width, attrs.strides
    filters, rank = as_int(w.shape[1]), len(attrs.strides)
    assert filters is not None

    def element(*at: Expr) -> Expr:
        panel, *steps, outer, inner, lane = at
        channel = panel * width + lane
        tap = [steps[k] + steps[rank + k] * s for k, s in enumerate(strides)]
        inside = [t < size for t, size, s in zip(tap, w.shape[2:], strides, strict=True) if (as_int(size) or 0) % s]
        if filters % width:
            inside.append(channel < filters)
        value = w[(outer * b + inner, channel, *tap)]
        return select(all_of(inside), value, const(0, w.dtype)) if inside else value

    return (te.compute(types[0].shape, element, name="pack"),)


register_map("lowered.pack_transposed", PackTransposedAttrs, _pack_infer, _pack_compute)


@dataclass(frozen=True, slots=True)
class ConvTransposedAttrs(Attrs):
    """Attributes of a transposed convolution with packed weights: strides and pads of `conv_transpose`, the sizes of
    its window, and for the result its `channels`, spatial `size` and block of channels `out_block`."""

    strides: Ints
    pads: Ints
    window: Ints
    channels: int
    size: Dims
    out_block: int


def _infer(types: Types, attrs: ConvTransposedAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.conv_transposed`: x blocked or NCHW and packed weights to a blocked output of
    `channels` channels and `size` spatial extents."""
    x, b = present(types[0]), attrs.out_block
    shape = (x.shape[0], const(-(-attrs.channels // b)), *map(as_expr, attrs.size), const(b))
    return (TensorType(x.dtype, shape, layout_name(b)),)


def _compute(
    inputs: Sequence[Tensor | None], attrs: ConvTransposedAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    x, w = need(inputs[0]), need(inputs[1])
    window, strides, b, out = attrs.window, attrs.strides, attrs.out_block, types[0].shape
    rank = len(strides)
    pads = attrs.pads[:rank]
    taps = w.shape[1 + rank : 1 + 2 * rank]
    depth, inner, width = w.shape[-3:]
    # Positions of a phase, counted from the first that the padding cuts off.
    size = [dim((out[2 + k] - 1 + pads[k]) // strides[k] + 1) for k in range(rank)]
    x = grown(x, [(as_int(t) or 1) - 1 for t in taps], size)
    steps = [te.reduce_axis(t, f"t{k}") for k, t in enumerate(taps)]
    co, ci = te.reduce_axis(depth, "co"), te.reduce_axis(inner, "ci")

    def element(*at: Expr) -> Expr:
        n, k, *places, lane = at
        phase, place = places[:rank], places[rank:]
        row = [q - j.var + (extent - 1) for q, j, extent in zip(place, steps, taps, strict=True)]
        channel = k * b + lane
        weight = w[(channel // width, *phase, *(j.var for j in steps), co.var, ci.var, channel % width)]
        exists = [
            p + j.var * s < length for p, j, s, length in zip(phase, steps, strides, window, strict=True) if length % s
        ]
        value = x[(n, co.var, *row, *([ci.var] if x.ndim == rank + 3 else []))] * weight
        return te.sum(value, axis=[*steps, co, ci], where=all_of(exists))  # type: ignore[no-any-return]

    blocks = as_int(w.shape[0] * width)
    assert blocks is not None
    shape = (out[0], const(blocks // b), *(const(s) for s in strides), *size, const(b))
    product: Tensor = te.compute(shape, element, name="transposed")

    def interleaved(*at: Expr) -> Expr:
        n, k, *place, lane = at
        shifted = [p + before for p, before in zip(place, pads, strict=True)]
        phase = [p % s for p, s in zip(shifted, strides, strict=True)]
        return product[(n, k, *phase, *(p // s for p, s in zip(shifted, strides, strict=True)), lane)]

    full = (*out[:1], const(blocks // b), *out[2:])
    return (cropped(te.compute(full, interleaved, name="interleave"), out),)


def grown(x: Tensor, before: Sequence[int], size: Sequence[Expr]) -> Tensor:
    """`x` zero-padded in its spatial dimensions so that `size` windows of `before` + 1 pixels fit."""
    rank = len(size)
    whole = x.shape[2 : 2 + rank]
    if not any(before) and all(same_dim(a, b) for a, b in zip(size, whole, strict=True)):
        return x
    shape = (*x.shape[:2], *(a + b for a, b in zip(size, before, strict=True)), *x.shape[2 + rank :])

    def element(*at: Expr) -> Expr:
        n, c, *place = at
        rest = place[rank:]
        moved = [p - b for p, b in zip(place[:rank], before, strict=True)]
        inside = all_of([t for m, extent in zip(moved, whole, strict=True) for t in (m >= 0, m < extent)])
        return select(inside, x[(n, c, *moved, *rest)], const(0, x.dtype))

    result: Tensor = te.compute(shape, element, name="pad")
    return result


def _reference(arrays: Arrays, attrs: ConvTransposedAttrs) -> tuple[Any, ...]:
    x, w = arrays
    strides, window, b, rank = attrs.strides, attrs.window, attrs.out_block, len(attrs.strides)
    panels, width = w.shape[0], w.shape[-1]
    channels = w.shape[-3] * w.shape[-2]
    if x.ndim == rank + 3:
        x = UNBLOCK_CHANNELS.reference([x], UnblockAttrs(channels))[0]
    taps = itertools.chain(*((1 + rank + k, 1 + k) for k in range(rank)))
    full = w.transpose(2 * rank + 1, 2 * rank + 2, 0, 2 * rank + 3, *taps)
    full = full.reshape(channels, panels * width, *(t * s for t, s in zip(w.shape[1 + rank :], strides, strict=False)))
    full = full[(..., *map(slice, window))]
    ordinary = ConvTransposeAttrs(strides, (1,) * rank, (0,) * 2 * rank, 1, (0,) * rank)
    (y,) = get("conv_transpose").reference([x, full], ordinary)
    size = [as_int(d) or 0 for d in attrs.size]
    whole: Any = np.pad(y, [(0, 0), (0, 0), *((0, d) for d in size)])
    at = (slice(p, p + d) for p, d in zip(attrs.pads, size, strict=False))
    return blocked(whole[(..., *at)], attrs.channels, b)


CONV_TRANSPOSED = register(
    OpDef("lowered.conv_transposed", "contraction", ConvTransposedAttrs, _infer, _reference, _compute)
)
