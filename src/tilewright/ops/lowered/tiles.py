"""Products for instructions that multiply matrices in registers: 16 rows of 64 bytes at once (see `targets/isa.py`).

Weights are packed as for dot instructions (`dots.py`, `dot_conv.py`), a depth of whole registers, past which they are
zero. Rows are rounded up to whole registers too: what is computed there is dropped. Rows that are not whole are copied
first, with zeros behind them, so that no register reads past them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.expr import Expr, as_expr, as_int, cast, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import static
from tilewright.ops.lowered.dot_conv import CONV_DOT, ConvDotAttrs
from tilewright.ops.lowered.dots import accumulator
from tilewright.ops.lowered.packed import convolved, cropped, layout_name, only, present
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


# products


@dataclass(frozen=True, slots=True)
class MatmulTilesAttrs(Attrs):
    """Columns of the result, rows of a register."""

    columns: int
    rows: int


def _matmul_infer(types: Types, attrs: MatmulTilesAttrs) -> Out:
    """`x[..., M, K]` and panels `w[P, D/group, width, group]`, D at least K, to `[..., M, columns]` of f32 or i32."""
    x, w = only(types), only(types, 1)
    depth, own = static(w.shape[-3] * w.shape[-1], "the depth"), static(x.shape[-1], "the depth")
    if w.rank != 4 or x.rank < 2 or own > depth or x.dtype.is_float is not w.dtype.is_float:
        raise ShapeError("the packed weights do not fit the rows", expected=w, got=x)
    return (TensorType(accumulator(x.dtype), (*x.shape[:-1], as_expr(attrs.columns))),)


def _matmul_compute(inputs: Tensors, attrs: MatmulTilesAttrs, out: Out) -> tuple[Tensor, ...]:
    x, w = present(inputs, 0), present(inputs, 1)
    panels, steps, width, group = w.shape
    k, inner = te.reduce_axis(steps, "k"), te.reduce_axis(group, "p")
    acc, (*lead, count, own) = out[0].dtype, x.shape
    rows, depth = ceildiv(count, attrs.rows) * attrs.rows, steps * group
    whole = as_int(count) is not None and as_int(count) == as_int(rows) and as_int(own) == as_int(depth)

    def padded(*at: Expr) -> Expr:
        *_, m, d = at
        return select((m < count) & (d < own), x[at], const(0, x.dtype))

    values = x if whole else te.compute((*lead, rows, depth), padded, name="pad")

    def element(*at: Expr) -> Expr:
        *place, n = at
        weight = w[n // width, k.var, n % width, inner.var]
        value = values[(*place, k.var * group + inner.var)]
        return te.sum(cast(value, acc) * cast(weight, acc), axis=[k, inner])  # type: ignore[no-any-return]

    product: Tensor = te.compute((*lead, rows, panels * width), element, name="matmul")
    return (cropped(product, out[0].shape),)


def _matmul_reference(arrays: Sequence[Any], attrs: MatmulTilesAttrs) -> tuple[Any, ...]:
    x, w = (np.asarray(a) for a in arrays)
    acc = np.int32 if x.dtype.kind in "iu" else np.float32
    panels, steps, width, group = w.shape
    full = w.transpose(1, 3, 0, 2).reshape(steps * group, panels * width)[: x.shape[-1], : attrs.columns]
    return (np.matmul(x.astype(acc), full.astype(acc)),)


MATMUL_TILES = register(
    OpDef("lowered.matmul_tiles", "contraction", MatmulTilesAttrs, _matmul_infer, _matmul_reference, _matmul_compute)
)


# convolutions


@dataclass(frozen=True, slots=True)
class ConvTilesAttrs(Attrs):
    """Those of `conv`; channels of the result; pixels of a register."""

    strides: Ints
    dilations: Ints
    pads: Ints
    channels: int
    rows: int


def _conv_infer(types: Types, attrs: ConvTilesAttrs) -> Out:
    """Blocked `x[N, ceil(C/b), H, W, b]`, packed `w[P, 1, kh, kw, D/group, width, group]` with D at least the channels
    in x's blocks, and a zero point `[]` of x's type or none, to blocks as wide as the panels, of i32 or f32."""
    x, w = only(types), only(types, 1)
    channels = static(x.shape[1] * x.shape[4], "channels") if x.rank == 5 else 0
    if w.rank != 7 or as_int(w.shape[1]) != 1 or not 0 < channels <= static(w.shape[4] * w.shape[6], "the depth"):
        raise ShapeError("the packed weights do not fit the blocks of channels", expected=w, got=x)
    space = convolved(x.shape[2:4], w.shape[2:4], attrs.strides, attrs.dilations, attrs.pads)
    width = as_int(w.shape[5]) or 1
    shape = (x.shape[0], const(-(-attrs.channels // width)), *space, const(width))
    return (TensorType(accumulator(x.dtype), shape, layout_name(width)),)


def together(lines: int) -> int:
    """Lines of the product: an even number, so that two of them share weights, where that adds a seventh at most."""
    return lines if lines < 7 else lines + lines % 2


def _conv_compute(inputs: Tensors, attrs: ConvTilesAttrs, out: Out) -> tuple[Tensor, ...]:
    """The input is copied with its channels side by side, what surrounds the map, and every `stride`-th column apart,
    so that neighbouring pixels of the output read neighbours."""
    x, w, (type,) = present(inputs, 0), present(inputs, 1), out
    zero = inputs[2][()] if len(inputs) > 2 and inputs[2] is not None else const(0, x.dtype)
    panels, _, height, width, steps, lanes, group = w.shape
    (sh, sw), (dh, dw), (top, left, *_) = attrs.strides, attrs.dilations, attrs.pads
    images, blocks, h, v, block = x.shape
    lines, columns = const(together(static(type.shape[2], "lines"))), ceildiv(type.shape[3], attrs.rows) * attrs.rows
    reach = (static(width, "a window") - 1) * dw // sw

    def spread(*at: Expr) -> Expr:
        n, i, phase, j, c = at
        y, z = i - top, j * sw + phase - left
        inside = (y >= 0) & (y < h) & (z >= 0) & (z < v)
        known = select(c < blocks * block, x[n, c // block, y, z, c % block], const(0, x.dtype))
        return select(inside, known, zero)

    shape = (images, (lines - 1) * sh + (height - 1) * dh + 1, const(sw), columns + reach, steps * group)
    pixels = te.compute(shape, spread, name="pad")
    kinds = ((height, "kh"), (width, "kw"), (steps, "ci"), (group, "p"))
    axes = [te.reduce_axis(size, name) for size, name in kinds]
    kh, kw, ci, member = (axis.var for axis in axes)

    def element(n: Expr, k: Expr, i: Expr, j: Expr, lane: Expr) -> Expr:
        value = pixels[n, i * sh + kh * dh, kw * dw % sw, j + kw * dw // sw, ci * group + member]
        weight = w[k, 0, kh, kw, ci, lane, member]
        return te.sum(cast(value, type.dtype) * cast(weight, type.dtype), axis=axes)  # type: ignore[no-any-return]

    product: Tensor = te.compute((images, panels, lines, columns, lanes), element, name="conv")
    return (cropped(product, type.shape),)


def _conv_reference(arrays: Sequence[Any], attrs: ConvTilesAttrs) -> tuple[Any, ...]:
    """That of `lowered.conv_dot`, with all channels in one block as deep as the weights."""
    x, w, *zero = arrays
    images, blocks, h, v, block = x.shape
    together = np.moveaxis(x, 1, 3).reshape(images, 1, h, v, blocks * block)
    whole = np.pad(together, (*[(0, 0)] * 4, (0, w.shape[4] * w.shape[6] - blocks * block)))
    same = ConvDotAttrs(attrs.strides, attrs.dilations, attrs.pads, attrs.channels)
    return CONV_DOT.reference([whole, w, *zero], same)


CONV_TILES = register(
    OpDef("lowered.conv_tiles", "contraction", ConvTilesAttrs, _conv_infer, _conv_reference, _conv_compute)
)
