"""Operators that layout assignment introduces: channel-blocked tensors and packed weights.

A blocked tensor holds `NCHW` data as `[N, ceil(C/b), H, W, b]` ("NCHW16c" for b = 16). The lanes past C hold arbitrary
finite numbers, which have no effect on results. Packed weights are panels of `width` output channels, each panel
contiguous in the order in which the register tile walks it:

    matmul   w[..., K, N]      ->  [..., ceil(N/width), K, width]
    conv     w[K, C, kh, kw]   ->  [ceil(K/width), C/b, kh, kw, b, width]     (b = 1 for an unblocked input)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Dim, Ints
from tilewright.ir.dtype import i32
from tilewright.ir.expr import Expr, all_of, as_expr, as_int, cast, ceildiv, const, is_const, product, select
from tilewright.ir.graph import TensorType
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.dims import dim, need, present
from tilewright.ops.lowered.index_maps import register_map
from tilewright.ops.minifloat import decoded
from tilewright.ops.registry import OpDef, Types, get, register
from tilewright.support.classes import dataclass
from tilewright.te import Tensor

Arrays = Sequence[Any]


def layout_name(block: int) -> str:
    return f"NCHW{block}c"


# -- blocking ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockAttrs(Attrs):
    """Attributes of `lowered.block_channels`: the number of channels of a block."""

    block: int


def _block_infer(types: Types, attrs: BlockAttrs) -> tuple[TensorType, ...]:
    x, b = present(types[0]), attrs.block
    n, c, *spatial = x.shape
    blocks = const(1) if as_int(c) == 1 else ceildiv(c, b)
    return (TensorType(x.dtype, (n, blocks, *spatial, const(1 if as_int(c) == 1 else b)), layout_name(b)),)


def _block_compute(
    inputs: Sequence[Tensor | None], attrs: BlockAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    x, b = need(inputs[0]), attrs.block
    channels = as_int(x.shape[1])
    assert channels is not None

    def element(*at: Expr) -> Expr:
        n, outer, *spatial, inner = at
        if channels == 1:
            return x[(n, outer, *spatial)]
        c = outer * b + inner
        value = x[(n, c, *spatial)]
        return value if channels % b == 0 else select(c < channels, value, const(0, x.dtype))

    return (te.compute(types[0].shape, element, name="block_channels"),)


BLOCK_CHANNELS = register_map("lowered.block_channels", BlockAttrs, _block_infer, _block_compute)


@dataclass(frozen=True, slots=True)
class UnblockAttrs(Attrs):
    """Attributes of `lowered.unblock_channels`: the number of channels of the result; the last block may have padding
    lanes."""

    channels: int


def _unblock_infer(types: Types, attrs: UnblockAttrs) -> tuple[TensorType, ...]:
    n, _, *spatial, _ = present(types[0]).shape
    return (TensorType(present(types[0]).dtype, (n, const(attrs.channels), *spatial)),)


def _unblock_compute(
    inputs: Sequence[Tensor | None], attrs: UnblockAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    x = need(inputs[0])
    b = x.shape[-1]

    def element(*at: Expr) -> Expr:
        n, c, *spatial = at
        return x[(n, c // b, *spatial, c % b)]

    return (te.compute(types[0].shape, element, name="unblock_channels"),)


UNBLOCK_CHANNELS = register_map("lowered.unblock_channels", UnblockAttrs, _unblock_infer, _unblock_compute)


# -- matmul with packed weights ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackMatmulAttrs(Attrs):
    """Attributes of `lowered.pack_matmul`: the columns of a panel, and whether the weights come as [N, K]."""

    width: int
    transpose: bool


def _pack_matmul_infer(types: Types, attrs: PackMatmulAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.pack_matmul`: `w[..., K, N]` (`[..., N, K]` if `transpose`) to `[..., ceil(N/width), K,
    width]`."""
    w, width = present(types[0]), attrs.width
    *batch, k, n = w.shape
    if attrs.transpose:
        k, n = n, k
    return (TensorType(w.dtype, (*batch, ceildiv(n, width), k, const(width))),)


def _pack_matmul_compute(
    inputs: Sequence[Tensor | None], attrs: PackMatmulAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    w, width = need(inputs[0]), attrs.width
    n = w.shape[-2 if attrs.transpose else -1]
    whole = (columns := as_int(n)) is not None and columns % width == 0

    def element(*at: Expr) -> Expr:
        *batch, panel, k, lane = at
        column = panel * width + lane
        value = w[(*batch, column, k)] if attrs.transpose else w[(*batch, k, column)]
        return value if whole else select(column < n, value, const(0, w.dtype))

    return (te.compute(types[0].shape, element, name="pack"),)


register_map(
    "lowered.pack_matmul",
    PackMatmulAttrs,
    _pack_matmul_infer,
    _pack_matmul_compute,
    prologue=True,
)


@dataclass(frozen=True, slots=True)
class ColumnsAttrs(Attrs):
    """Attributes of products with packed weights: the columns of the result; the last panel may have more columns."""

    columns: Dim


def _matmul_infer(types: Types, attrs: ColumnsAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.matmul_packed`: `x[..., M, K]` and panels `w[..., P, K, width]` to `[..., M, columns]`.

    A batch dimension of w is that of x, or 1, or absent. Weights may be narrower than x: they are converted on the way
    into registers. Integers narrower than 32 bits give i32.
    """
    x = present(types[0])
    result = i32 if x.dtype.is_int and x.dtype.bits < 32 else x.dtype
    return (TensorType(result, (*x.shape[:-1], as_expr(attrs.columns))),)


def _matmul_compute(
    inputs: Sequence[Tensor | None], attrs: ColumnsAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    x, w = need(inputs[0]), need(inputs[1])
    *batch, panels, depth, width = w.shape
    k = te.reduce_axis(depth, "k")

    def element(*at: Expr) -> Expr:
        *rows, n = at
        stored = w[(*batch_of(rows[:-1], batch), n // width, k.var, n % width)]
        weight = cast(decoded(stored) if stored.dtype.is_minifloat else stored, types[0].dtype)
        return te.sum(cast(x[(*rows, k.var)], types[0].dtype) * weight, axis=k)  # type: ignore[no-any-return]

    product: Tensor = te.compute((*types[0].shape[:-1], panels * width), element, name="matmul")
    return (cropped(product, types[0].shape),)


def batch_of(lead: Sequence[Expr], batch: Sequence[Expr]) -> list[Expr]:
    """The indices into the `batch` dimensions of a product's second factor, of the matrix that multiplies the rows at
    the indices `lead` of the first."""
    own = lead[len(lead) - len(batch) :]
    return [const(0) if is_const(d, 1) else i for d, i in zip(batch, own, strict=True)]


def cropped(x: Tensor, shape: Sequence[Expr]) -> Tensor:
    """The first elements of a tensor along each dimension, as many as `shape` says. Contractions compute whole panels,
    so that all register tiles are full; this drops the excess."""
    if all(a is b for a, b in zip(x.shape, shape, strict=True)):
        return x
    result: Tensor = te.compute(shape, lambda *at: x[at], name="crop")
    return result


def _matmul_reference(arrays: Arrays, attrs: ColumnsAttrs) -> tuple[Any, ...]:
    x, w = arrays
    *batch, panels, k, width = w.shape
    full = np.swapaxes(w, -2, -3).reshape(*batch, k, panels * width)
    if x.dtype.kind in "iu" and x.dtype.itemsize < 4:
        x = x.astype(np.int32)
    return (np.matmul(x, full.astype(x.dtype))[..., : as_int(attrs.columns)],)


register(OpDef("lowered.matmul_packed", "contraction", ColumnsAttrs, _matmul_infer, _matmul_reference, _matmul_compute))


# -- convolution over blocked channels ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackConvAttrs(Attrs):
    """Attributes of `lowered.pack_conv`: the channels of a block (1 for an input without blocks) and the filters of a
    panel."""

    block: int
    width: int


def _pack_conv_infer(types: Types, attrs: PackConvAttrs) -> tuple[TensorType, ...]:
    w = present(types[0])
    k, c, *window = w.shape
    b, width = attrs.block, attrs.width
    return (TensorType(w.dtype, (ceildiv(k, width), ceildiv(c, b), *window, const(b), const(width))),)


def _pack_conv_compute(
    inputs: Sequence[Tensor | None], attrs: PackConvAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    w, b, width = need(inputs[0]), attrs.block, attrs.width
    _, outer_extent, *window_extents, _, _ = types[0].shape
    rows = panel_rows(w, width, outer_extent * b)

    def element(*at: Expr) -> Expr:
        panel, outer, *window, inner, lane = at
        place = outer * b + inner
        for i, size in zip(window, window_extents, strict=True):
            place = place * size + i
        return rows[panel, place, lane]

    return (te.compute(types[0].shape, element, name="pack"),)


def panel_rows(w: Tensor, width: int, channels: Expr, group: int = 1) -> Tensor:
    """The filters `w[K, C, ...]` as panels `[ceil(K/width), channels * ..., width]`, each filter's elements in
    row-major order; zeros past K, and past C if `channels` is larger. The number of panels is rounded up to a multiple
    of `group`."""
    filters, own, *window = w.shape
    size = product(window)

    def element(panel: Expr, place: Expr, lane: Expr) -> Expr:
        filter_ = panel * width + lane
        at = []
        rest = place
        for d in reversed(window):
            at.append(rest % d)
            rest = rest // d
        whole = as_int(filters % (group * width)) == 0
        inside = [*([] if whole else [filter_ < filters]), *([] if own is channels else [place < own * size])]
        return select(all_of(inside), w[(filter_, rest, *reversed(at))], const(0, w.dtype))

    panels = ceildiv(filters, group * width) * group
    rows: Tensor = te.compute((panels, channels * size, const(width)), element, name="rows")
    return rows


register_map(
    "lowered.pack_conv",
    PackConvAttrs,
    _pack_conv_infer,
    _pack_conv_compute,
    prologue=True,
    channels=lambda attrs: attrs.block,
)


@dataclass(frozen=True, slots=True)
class ConvBlockedAttrs(Attrs):
    """Attributes of a convolution over blocked channels: those of `conv`; the channels of the result and of a block of
    it; `flat`: whether the result's pixels form one dimension of the product."""

    strides: Ints
    dilations: Ints
    pads: Ints
    channels: int
    out_block: int
    flat: bool


def _conv_infer(types: Types, attrs: ConvBlockedAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.conv_blocked`: `x` blocked (rank 5) or NCHW (rank 4) and packed weights to a blocked
    output of `channels` channels."""
    x, w = present(types[0]), present(types[1])
    out = convolved(x.shape[2:4], w.shape[2:4], attrs.strides, attrs.dilations, attrs.pads)
    b = attrs.out_block
    return (TensorType(x.dtype, (x.shape[0], const(-(-attrs.channels // b)), *out, const(b)), layout_name(b)),)


def convolved(
    space: Sequence[Expr], window: Sequence[Expr], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> list[Expr]:
    """The height and width of the result of a convolution of an image of extents `space` by windows of extents
    `window`, with `strides` and `dilations`; `pads` is (top, left, bottom, right)."""
    return [
        dim((size + pads[i] + pads[i + 2] - (extent - 1) * dilations[i] - 1) // strides[i] + 1)
        for i, (size, extent) in enumerate(zip(space, window, strict=True))
    ]


def pad_spatial(x: Tensor, pads: Sequence[int], fill: Any) -> Tensor:
    """`x` whose dimensions 2 and 3 are padded by `pads` = (top, left, bottom, right) with `fill`, a number or an
    element; `x` itself if all pads are 0."""
    if not any(pads):
        return x
    enclosing = fill if isinstance(fill, Expr) else const(fill, x.dtype)
    h, w = x.shape[2], x.shape[3]
    shape = (*x.shape[:2], h + pads[0] + pads[2], w + pads[1] + pads[3], *x.shape[4:])

    def element(*at: Expr) -> Expr:
        n, c, i, j, *rest = at
        inside = (i >= pads[0]) & (i < h + pads[0]) & (j >= pads[1]) & (j < w + pads[1])
        return select(inside, x[(n, c, i - pads[0], j - pads[1], *rest)], enclosing)

    padded: Tensor = te.compute(shape, element, name="pad")
    return padded


def _conv_compute(
    inputs: Sequence[Tensor | None], attrs: ConvBlockedAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    """The convolution as a product over blocks of channels. With `flat`, the output's pixels are one dimension of the
    product, `h * width + v`, so that a register tile may continue on the next row; for a window of one pixel, the
    pixels it reads are put into that order too."""
    w = need(inputs[1])
    outer_extent, kh_extent, kw_extent, inner_extent, width = w.shape[1:]
    n, _, oh, ow, _ = types[0].shape
    b, flat = attrs.out_block, attrs.flat
    pixel = is_const(kh_extent, 1) and is_const(kw_extent, 1)
    x = pad_spatial(need(inputs[0]), attrs.pads, 0)
    (sh, sw), (dh, dw) = attrs.strides, attrs.dilations
    if flat and pixel and ((sh, sw) != (1, 1) or as_int(oh * ow) is None):
        x, sh, sw = _sampled(x, attrs, oh, ow), 1, 1
    co, ci = te.reduce_axis(outer_extent, "co"), te.reduce_axis(inner_extent, "ci")
    kh, kw = te.reduce_axis(kh_extent, "kh"), te.reduce_axis(kw_extent, "kw")
    blocked = need(inputs[0]).ndim == 5

    def element(*at: Expr) -> Expr:
        n, k, *pixel_at, lane = at
        h, v = (pixel_at[0] // ow, pixel_at[0] % ow) if flat else pixel_at
        where: tuple[Any, ...] = (h * sh + kh.var * dh, v * sw + kw.var * dw)
        if x.ndim < need(inputs[0]).ndim:
            where = (pixel_at[0],)
        inner = ci.var if blocked else const(0)
        channel = k * b + lane
        weight = w[channel // width, co.var, kh.var, kw.var, inner, channel % width]
        axes = [co, kh, kw, ci] if blocked else [co, kh, kw]
        last = (ci.var,) if blocked else ()
        return te.sum(x[(n, co.var, *where, *last)] * weight, axis=axes)  # type: ignore[no-any-return]

    blocks = as_int(w.shape[0] * width)
    assert blocks is not None
    spatial = (oh * ow,) if flat else (oh, ow)
    product: Tensor = te.compute((n, const(blocks // b), *spatial, const(b)), element, name="conv")
    if not flat:
        return (cropped(product, types[0].shape),)

    def line(n: Expr, k: Expr, h: Expr, v: Expr, lane: Expr) -> Expr:
        return product[n, k, h * ow + v, lane]

    return (te.compute(types[0].shape, line, name="lines"),)


def _sampled(x: Tensor, attrs: ConvBlockedAttrs, oh: Expr, ow: Expr) -> Tensor:
    """The stage `sample`: the pixels of `x` that a window of one pixel reads at each stride, flattened to one dimension
    in the order of the output's `oh` x `ow` pixels."""
    sh, sw = attrs.strides
    shape = (*x.shape[:2], oh * ow, *x.shape[4:])

    def element(n: Expr, c: Expr, f: Expr, *rest: Expr) -> Expr:
        return x[(n, c, f // ow * sh, f % ow * sw, *rest)]

    sampled: Tensor = te.compute(shape, element, name="sample")
    return sampled


def _conv_reference(arrays: Arrays, attrs: ConvBlockedAttrs) -> tuple[Any, ...]:
    x, w = arrays
    panels, outer, kh, kw, inner, width = w.shape
    if x.ndim == 5:
        x = UNBLOCK_CHANNELS.reference([x], UnblockAttrs(outer * inner))[0]
    full = w.transpose(0, 5, 1, 4, 2, 3).reshape(panels * width, outer * inner, kh, kw)
    return blocked_conv(
        x, full, ConvAttrs(attrs.strides, attrs.dilations, attrs.pads, 1), attrs.channels, attrs.out_block
    )


def blocked_conv(x: Any, w: Any, attrs: ConvAttrs, channels: int, block: int) -> tuple[Any, ...]:
    """The result, by NumPy, of a convolution over blocks of channels: that of `conv`, cut or zero-padded to `channels`
    channels, and blocked."""
    (y,) = get("conv").reference([x, w], attrs)
    return blocked(y.astype(x.dtype), channels, block)


def blocked(y: Any, channels: int, block: int) -> tuple[Any, ...]:
    """An NCHW array, cut or zero-padded to `channels` channels, as blocks."""
    size = -(-channels // block) * block
    grown = np.zeros((y.shape[0], size, *y.shape[2:]), y.dtype)
    grown[:, : y.shape[1]] = y[:, :size]
    return (np.moveaxis(grown.reshape(y.shape[0], -1, block, *y.shape[2:]), 2, -1),)


CONV_BLOCKED = register(
    OpDef(
        "lowered.conv_blocked",
        "contraction",
        ConvBlockedAttrs,
        _conv_infer,
        _conv_reference,
        _conv_compute,
        prologue=True,
        widens=True,
    )
)
