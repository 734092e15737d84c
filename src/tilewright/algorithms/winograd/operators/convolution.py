"""Winograd convolution F(m x m, r x r) of any stride and dilation over blocked channels (Lavin and Gray 2016).

    U[xi]    = G g G^T                    for each filter, once, in `prepare`, in double precision
    V[xi]    = B^T d B                    for each tile of the input, `reach` a side, which advance by m * stride
    M[xi]    = V[xi] U[xi]                `products`^2 matrix products of tiles x channels x filters
    y        = A^T M A                    for each tile of the output, m x m

Every transform is two separable passes over constant matrices (`correlation.py`). With a dilation of d, every d-th
output row and column depends on separate inputs: these d * d submaps of an image are treated as images. Tiles are
counted in tile rows of the whole batch (`submaps * ceil(rows / m)`) and tile columns. The operator states them one by
one; the plan may state them in blocks that share what they read (`tiles_in_blocks`): then both numbers are padded to
multiples of the block's; data past the map are read as zero and never written. The products process `panels` panels of
filters together, element by element of the tiles, and filters are stored in that order.

    filters   w[K, C, r, r]                    ->  u[groups, size, size, panels, ceil(C/b), b, width], size = `products`
    input     x[N, ceil(C/b), H, W, b]         ->  y[N, ceil(K/b), H', W', b]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.algorithms.winograd.operators.correlation import products, reach
from tilewright.algorithms.winograd.operators.numbers import numbers
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.dtype import dtype, f64, i16
from tilewright.ir.expr import Expr, all_of, as_int, call, cast, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import dim, labelled, need, present
from tilewright.ops.lowered.packed import UNBLOCK_CHANNELS, UnblockAttrs, blocked, cropped, layout_name, panel_rows
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.te import Tensor

Arrays = Sequence[Any]


# -- filters -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackWinogradAttrs(Attrs):
    """Attributes of `lowered.pack_winograd`: outputs of a tile per side, the convolution's stride, channels of a block,
    filters of a panel, and panels that the products process together."""

    tile: int
    stride: int
    block: int
    width: int
    panels: int


def _pack_infer(types: Types, attrs: PackWinogradAttrs) -> tuple[TensorType, ...]:
    w = present(types[0])
    k, c, r, _ = w.shape
    window = as_int(r)
    assert window is not None
    size, b, width = const(products(attrs.tile, window, attrs.stride)), attrs.block, attrs.width
    panels = attrs.panels
    groups, number = ceildiv(k, panels * width), numbers(w.dtype, attrs.tile, window, attrs.stride)
    inner = [const(b), const(width)]
    if number.group > 1:
        inner = [const(b // number.group), const(width), const(number.group)]
    return (TensorType(number.tiles, (groups, size, size, const(panels), ceildiv(c, b), *inner)),)


def _pack_compute(
    inputs: Sequence[Tensor | None], attrs: PackWinogradAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    w, b, width = need(inputs[0]), attrs.block, attrs.width
    window = as_int(w.shape[2])
    assert window is not None
    number = numbers(w.dtype, attrs.tile, window, attrs.stride)
    table = te.const_matrix(number.matrices[1], "f64")
    groups, size, _, together, blocks, *_ = types[0].shape
    panels = groups * together
    r, s = te.reduce_axis(window, "r"), te.reduce_axis(window, "s")

    lead, lanes = (panels, blocks, const(b)), const(width)
    raw = panel_rows(w, width, blocks * b, attrs.panels)
    half: Tensor = te.compute(
        (*lead, size, const(window), lanes),
        lambda p, co, ci, i, j, lane: te.sum(
            table[i, r.var] * cast(raw[p, ((co * b + ci) * window + r.var) * window + j, lane], f64), axis=r
        ),
        name="filter_rows",
    )
    whole: Tensor = te.compute(
        (*lead, size, size, lanes),
        lambda p, co, ci, i, j, lane: te.sum(table[j, s.var] * half[p, co, ci, i, s.var, lane], axis=s),
        name="filter_columns",
    )
    rounded: Tensor = te.compute(
        (panels, blocks, size, size, const(b), lanes),
        lambda p, co, i, j, ci, lane: cast(whole[p, co, ci, i, j, lane], number.tiles),
        name="filter_rounded",
    )

    def element(g: Expr, i: Expr, j: Expr, p: Expr, co: Expr, ci: Expr, lane: Expr, *member: Expr) -> Expr:
        channel = ci * number.group + member[0] if member else ci
        return rounded[g * together + p, co, i, j, channel, lane]

    names = ("g", "i", "j", "p", "co", "ci", "lane", "member")[: len(types[0].shape)]
    packed: Tensor = te.compute(types[0].shape, labelled(element, names), name="pack")
    return (packed,)


def _pack_reference(arrays: Arrays, attrs: PackWinogradAttrs) -> tuple[Any, ...]:
    w, b, width, together = arrays[0], attrs.block, attrs.width, attrs.panels
    k, c, r, _ = w.shape
    number = numbers(dtype(w.dtype), attrs.tile, r, attrs.stride)
    g = np.asarray(number.matrices[1], np.float64)
    padded = np.zeros((-(-k // (together * width)) * together * width, -(-c // b) * b, r, r))
    padded[:k, :c] = w
    u = np.einsum("ir,kcrs,js->kcij", g, padded, g).astype(number.tiles.numpy)
    groups = u.reshape(-1, together, width, u.shape[1] // b, b, *u.shape[2:]).transpose(0, 5, 6, 1, 3, 4, 2)
    if number.group > 1:
        groups = np.swapaxes(groups.reshape(*groups.shape[:5], -1, number.group, width), -1, -2)
    return (np.ascontiguousarray(groups),)


PACK_WINOGRAD = register(
    OpDef(
        "lowered.pack_winograd",
        "injective",
        PackWinogradAttrs,
        _pack_infer,
        _pack_reference,
        _pack_compute,
        prologue=True,
        channels=lambda attrs: 1,
    )
)


# -- convolution -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConvWinogradAttrs(Attrs):
    """Attributes of `lowered.conv_winograd`: outputs of a tile, extent of the window, stride and dilation, each per
    side; pads as of `conv`; channels of the result and of the input, and of a block of the result."""

    tile: int
    window: int
    stride: int
    dilation: int
    pads: Ints
    channels: int
    input_channels: int
    out_block: int


def _conv_infer(types: Types, attrs: ConvWinogradAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.conv_winograd`: blocked `x` and transformed filters to a blocked output of `channels`
    channels."""
    x = present(types[0])
    pads, b, window, stride = attrs.pads, attrs.out_block, attrs.window, attrs.stride
    covered = (window - 1) * attrs.dilation + 1
    out = [dim((x.shape[2 + i] + pads[i] + pads[i + 2] - covered) // stride + 1) for i in range(2)]
    sums = numbers(x.dtype, attrs.tile, window, stride).sums
    return (TensorType(sums, (x.shape[0], const(-(-attrs.channels // b)), *out, const(b)), layout_name(b)),)


def _conv_compute(
    inputs: Sequence[Tensor | None], attrs: ConvWinogradAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    zero = inputs[2] if len(inputs) > 2 else None
    return (tiles_in_blocks(need(inputs[0]), need(inputs[1]), attrs, types[0].shape, 1, 1, zero),)


def tiles_in_blocks(
    x: Tensor,
    u: Tensor,
    attrs: ConvWinogradAttrs,
    out: Sequence[Expr],
    rows: int,
    columns: int,
    zero: Tensor | None = None,
) -> Tensor:
    """The convolution by blocks of `rows` x `columns` tiles: the tiles of a row of a block share a strip of the input,
    and a block's tiles are one dimension of the products. With 0 columns a block is `rows` tiles that follow each
    other, row after row of the map, each with a strip of its own: only the last block is not full, whatever the map's
    size. The stages and their axes are the same for all blocks."""
    consecutive, columns = not columns, columns or 1
    m, window, stride = attrs.tile, attrs.window, attrs.stride
    length, size = reach(m, window, stride), products(m, window, stride)
    number = numbers(x.dtype, m, window, stride)
    at, _, bt = number.matrices
    first, last = te.const_matrix(bt, number.tiles), te.const_matrix(at, number.sums)
    n, _, oh, ow, lanes = out
    groups, _, _, panels, blocks, steps, width, *_ = u.shape
    b = x.shape[-1]
    dilation = attrs.dilation
    maps, down, across = n * dilation**2, ceildiv(ceildiv(oh, dilation), m), ceildiv(ceildiv(ow, dilation), m)
    lines, line = (maps * down * across, const(1)) if consecutive else (maps * down, across)
    row_blocks, column_blocks, count = ceildiv(lines, rows), ceildiv(line, columns), rows * columns
    group = panels * width
    filters = groups * group

    across_strip = const((columns - 1) * m * stride + length)
    shape = (row_blocks, const(rows), column_blocks, blocks, const(length), across_strip, b)
    strip = _strip(x, attrs, shape, lines, down, across if consecutive else const(1), columns, zero)
    i, j = te.reduce_axis(length, "i"), te.reduce_axis(length, "j")
    half: Tensor = te.compute(
        (*shape[:4], const(size), *shape[5:]),
        lambda r, row, c, co, y, v, ci: te.sum(first[y, i.var] * strip[r, row, c, co, i.var, v, ci], axis=i),
        name="input_rows",
    )
    tiles: Tensor = te.compute(
        (row_blocks, column_blocks, size, size, blocks, count, b),
        lambda r, c, y, z, co, t, ci: te.sum(
            first[z, j.var] * half[r, t // columns, c, co, y, t % columns * (m * stride) + j.var, ci], axis=j
        ),
        name="input_columns",
    )
    co, ci = te.reduce_axis(blocks, "co"), te.reduce_axis(steps, "ci")
    members = [te.reduce_axis(number.group, "p")] if number.group > 1 else []

    def products_of(r: Expr, c: Expr, g: Expr, y: Expr, z: Expr, panel: Expr, t: Expr, lane: Expr) -> Expr:
        own = [axis.var for axis in members]
        channel = ci.var * number.group + own[0] if own else ci.var
        a, b = tiles[r, c, y, z, co.var, t, channel], u[(g, y, z, panel, co.var, ci.var, lane, *own)]
        if own:
            a, b = cast(a, number.sums), cast(b, number.sums)
        return te.sum(a * b, axis=[co, ci, *members])  # type: ignore[no-any-return]

    product: Tensor = te.compute(
        (row_blocks, column_blocks, groups, size, size, panels, count, width), products_of, name="product"
    )

    def of_tile(r: Expr, c: Expr, y: Expr, z: Expr, t: Expr, k: Expr) -> Expr:
        return product[r, c, k // group, y, z, k % group // width, t, k % width]

    p, q = te.reduce_axis(size, "p"), te.reduce_axis(size, "q")
    upright: Tensor = te.compute(
        (row_blocks, column_blocks, count, m, size, filters),
        lambda r, c, t, y, z, k: te.sum(last[y, p.var] * of_tile(r, c, p.var, z, t, k), axis=p),
        name="output_rows",
    )
    result: Tensor = te.compute(
        (row_blocks, column_blocks, count, m, m, filters),
        lambda r, c, t, y, z, k: te.sum(last[z, q.var] * upright[r, c, t, y, q.var, k], axis=q),
        name="output_columns",
    )

    def element(image: Expr, k: Expr, h: Expr, w: Expr, lane: Expr) -> Expr:
        submap = (image * dilation + h % dilation) * dilation + w % dilation
        h, w = h // dilation, w // dilation
        row, column = submap * down + h // m, w // m
        if consecutive:
            row, column = row * across + column, const(0)
        tile = row % rows * columns + column % columns
        value: Expr = result[row // rows, column // columns, tile, h % m, w % m, k * lanes + lane]
        if number.shift:
            value = call("shr", value * const(number.inverse, number.sums), const(number.shift, number.sums))
        return value

    whole: Tensor = te.compute((n, filters // lanes, oh, ow, lanes), element, name="conv")
    return cropped(whole, tuple(out))


def _strip(
    x: Tensor,
    attrs: ConvWinogradAttrs,
    shape: tuple[Expr, ...],
    count: Expr,
    down: Expr,
    across: Expr,
    columns: int,
    zero: Tensor | None,
) -> Tensor:
    """The stage `strip` of extents `shape`, which copies the input rows that each of `count` tile rows (or pieces of
    one, `across` per row) reads. A map has `down` tile rows, and a piece `columns` tiles. Past the map and past the
    channels the copy is zero, past a map of codes it is the zero point `zero`."""
    stride, dilation, (top, left, _, _) = attrs.stride, attrs.dilation, attrs.pads
    rows, step = shape[1], attrs.tile * stride
    channels, block = attrs.input_channels, as_int(shape[-1])
    assert block is not None

    def element(r: Expr, part: Expr, column: Expr, co: Expr, i: Expr, v: Expr, ci: Expr) -> Expr:
        piece = r * rows + part
        row, column = piece // across, column + piece % across
        submap, image = row // down, row // (down * dilation**2)
        h = (row % down * step + i) * dilation + submap // dilation % dilation * stride - top
        w = (column * (columns * step) + v) * dilation + submap % dilation * stride - left
        inside = [piece < count, h >= 0, h < x.shape[2], w >= 0, w < x.shape[3]]
        if channels % block and x.dtype.is_float:  # the weights of integers past the channels are zero, and no NaN is
            inside.append(co * block + ci < channels)
        value = select(all_of(inside), x[image, co, h, w, ci], const(0, x.dtype) if zero is None else zero[()])
        return value if x.dtype.is_float else cast(value, i16)

    strip: Tensor = te.compute(shape, element, name="strip")
    return strip


def _conv_reference(arrays: Arrays, attrs: ConvWinogradAttrs) -> tuple[Any, ...]:
    x, u, *zero = arrays
    m, window, stride, (top, left, bottom, right) = attrs.tile, attrs.window, attrs.stride, attrs.pads
    number = numbers(dtype(x.dtype), m, window, stride)
    size, length, step, dilation = u.shape[1], reach(m, window, stride), m * stride, attrs.dilation
    exact = np.float64 if number.sums.is_float else np.int64
    at, _, bt = (np.asarray(t).astype(exact) for t in number.matrices)
    if number.group > 1:
        u = np.swapaxes(u, -1, -2).reshape(*u.shape[:5], -1, u.shape[6]).astype(exact)
    filters = u.transpose(0, 3, 6, 4, 5, 1, 2).reshape(u.shape[0] * u.shape[3] * u.shape[6], -1, size, size)
    channels = attrs.input_channels
    x = UNBLOCK_CHANNELS.reference([x], UnblockAttrs(channels))[0]
    n, _, h, w = x.shape
    covered = (window - 1) * dilation + 1
    oh, ow = (h + top + bottom - covered) // stride + 1, (w + left + right - covered) // stride + 1
    down, across = -(-oh // (dilation * m)), -(-ow // (dilation * m))
    below, after = bottom + (down * step + 1) * dilation, right + (across * step + 1) * dilation
    outside = next((v for v in zero if v is not None), 0)
    x = np.pad(x, ((0, 0), (0, 0), (top, below), (left, after)), constant_values=outside).astype(exact)
    y = np.zeros((n, filters.shape[0], down * m * dilation, across * m * dilation), exact)
    for i, j, ph, pw in np.ndindex(down, across, dilation, dilation):
        above, before = i * step * dilation + ph * stride, j * step * dilation + pw * stride
        d = x[:, :, above : above + length * dilation : dilation, before : before + length * dilation : dilation]
        v = np.einsum("iy,ncyz,jz->ncij", bt, d, bt)
        product = np.einsum("ncij,kcij->nkij", v, filters[:, :channels])
        above, before = i * m * dilation + ph, j * m * dilation + pw
        place = (slice(above, above + m * dilation, dilation), slice(before, before + m * dilation, dilation))
        y[:, :, *place] = np.einsum("py,nkyz,qz->nkpq", at, product, at)
    y = y[:, :, :oh, :ow].astype(number.sums.numpy)
    if number.shift:
        y = y * np.int32(number.inverse) >> number.shift
    return blocked(y, attrs.channels, attrs.out_block)


CONV_WINOGRAD = register(
    OpDef(
        "lowered.conv_winograd",
        "contraction",
        ConvWinogradAttrs,
        _conv_infer,
        _conv_reference,
        _conv_compute,
        widens=True,
    )
)
