"""Strassen's products in a 1x1 convolution: the pixels of a map are the rows of a product (`product.py`).

Quarters of the input are the first or second half of the pixels, and of the blocks of channels; those of the filters,
halves of the filters and of the channels. Different images are never added. The operator states half of a map's pixels
at once; the plan may restate it in strips (`pixels_in_strips`). If a strip ends past the half, or the half past the
map, other pixels of the map are read instead, and nothing reads their results. `panels` panels of filters are a group,
for which the seven products are computed one after the other.

    sums      strassen_sums(w[K, C], transpose)          ->  t[7, K/2, C/2]
    filters   pack_matmul, a dimension of groups first   ->  u[groups, 7, panels, C/2, width]
    input     x[N, C/b, H, W, b]                         ->  y[N, K/b, H', W', b]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.algorithms.strassen.operators.product import LEFT, MERGE, PRODUCTS
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.expr import Expr, as_int, ceildiv, const, minimum
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import need, present
from tilewright.ops.lowered.packed import UNBLOCK_CHANNELS, UnblockAttrs, blocked, layout_name
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.te import Tensor


@dataclass(frozen=True, slots=True)
class ConvStrassenAttrs(Attrs):
    """Attributes of `lowered.conv_strassen`: strides as of `conv`, and the number of channels of the result."""

    strides: Ints
    channels: int


def _infer(types: Types, attrs: ConvStrassenAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.conv_strassen`: blocked `x` and sums of filters to a blocked output of `channels`
    channels."""
    x = present(types[0])
    n, _, *size, b = x.shape
    out = [ceildiv(d, s) for d, s in zip(size, attrs.strides, strict=True)]
    block = as_int(b)
    assert block is not None
    return (TensorType(x.dtype, (n, const(attrs.channels // block), *out, b), layout_name(block)),)


def _compute(
    inputs: Sequence[Tensor | None], attrs: ConvStrassenAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    _, _, oh, ow, _ = types[0].shape
    half = as_int(ceildiv(oh * ow, 2))
    assert half is not None
    return (pixels_in_strips(need(inputs[0]), need(inputs[1]), attrs, types[0].shape, half),)


def pixels_in_strips(x: Tensor, u: Tensor, attrs: ConvStrassenAttrs, out: Sequence[Expr], strip: int) -> Tensor:
    """The convolution of `x` with the filters `u`, of the output shape `out`, in strips: each has `strip` pixels of
    each half of a map's pixels. Its stages and their axes do not depend on the size of strips."""
    n, _, oh, ow, b = out
    groups, _, panels, depth, width = u.shape
    (sh, sw), pixels = attrs.strides, oh * ow
    half, blocks, across = ceildiv(pixels, 2), depth // b, groups * panels * width
    strips, group = ceildiv(half, strip), panels * width
    known = as_int(pixels), as_int(strips)
    assert known[0] is not None and known[1] is not None
    past = -(-known[0] // 2) + known[1] * strip > known[0]

    def quarter(image: Expr, s: Expr, q: Expr, co: Expr, row: Expr, ci: Expr) -> Expr:
        pixel = q // 2 * half + s * strip + row
        if past:
            pixel = minimum(pixel, pixels - 1)
        return x[image, q % 2 * blocks + co, pixel // ow * sh, pixel % ow * sw, ci]

    table, q = te.const_matrix(LEFT, x.dtype), te.reduce_axis(4, "q")
    quarters: Tensor = te.compute((n, strips, 4, blocks, strip, b), quarter, name="quarters")
    sums: Tensor = te.compute(
        (n, strips, PRODUCTS, blocks, strip, b),
        lambda image, s, t, co, row, ci: te.sum(table[t, q.var] * quarters[image, s, q.var, co, row, ci], axis=q),
        name="sums",
    )
    co, ci, t = te.reduce_axis(blocks, "co"), te.reduce_axis(b, "ci"), te.reduce_axis(PRODUCTS, "t")
    product: Tensor = te.compute(
        (n, strips, groups, PRODUCTS, panels, strip, width),
        lambda image, s, g, t, panel, row, lane: te.sum(
            sums[image, s, t, co.var, row, ci.var] * u[g, t, panel, co.var * b + ci.var, lane], axis=[co, ci]
        ),
        name="product",
    )
    merging = te.const_matrix(MERGE, x.dtype)
    merged: Tensor = te.compute(
        (n, strips, 4, strip, across),
        lambda image, s, q, row, k: te.sum(
            merging[q, t.var] * product[image, s, k // group, t.var, k % group // width, row, k % width], axis=t
        ),
        name="merged",
    )

    def element(image: Expr, k: Expr, h: Expr, w: Expr, lane: Expr) -> Expr:
        pixel, filter_ = h * ow + w, k * b + lane
        row, which = pixel % half, pixel // half * 2 + filter_ // across
        return merged[image, row // strip, which, row % strip, filter_ % across]

    whole: Tensor = te.compute(tuple(out), element, name="conv")
    return whole


def _reference(arrays: Sequence[Any], attrs: ConvStrassenAttrs) -> tuple[Any, ...]:
    x, u = arrays
    (sh, sw), b = attrs.strides, x.shape[-1]
    ordinary = UNBLOCK_CHANNELS.reference([x], UnblockAttrs(x.shape[1] * b))[0][:, :, ::sh, ::sw]
    n, channels, h, w = ordinary.shape
    rows = ordinary.reshape(n, channels, h * w).swapaxes(1, 2)
    half = -(-h * w // 2)
    rows = np.pad(rows, ((0, 0), (0, 2 * half - h * w), (0, 0)))
    quarters = rows.reshape(n, 2, half, 2, channels // 2).transpose(0, 1, 3, 2, 4).reshape(n, 4, half, channels // 2)
    right = u.transpose(1, 3, 0, 2, 4).reshape(PRODUCTS, channels // 2, -1)
    products = np.matmul(np.einsum("tq,nqrc->ntrc", np.asarray(LEFT, x.dtype), quarters), right)
    merged = np.einsum("qt,ntrk->nqrk", np.asarray(MERGE, x.dtype), products).reshape(n, 2, 2, half, -1)
    y = merged.transpose(0, 2, 4, 1, 3).reshape(n, attrs.channels, 2 * half)[:, :, : h * w]
    return blocked(y.reshape(n, -1, h, w), attrs.channels, b)


CONV_STRASSEN = register(OpDef("lowered.conv_strassen", "contraction", ConvStrassenAttrs, _infer, _reference, _compute))
