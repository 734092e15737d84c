"""Winograd convolution F(m x m, r x r) over blocked channels (Lavin and Gray 2016; Winograd 1980).

    U[xi]    = G g G^T                    for each filter, once, in `prepare`, in double precision
    V[xi]    = B^T d B                    for each tile of the input, alpha x alpha with alpha = m + r - 1; large tiles
                                          by Fourier's transform (`fourier.py`), whose matrices are not square
    M[xi]    = V[xi] U[xi]                alpha^2 matrix products of tiles x channels x filters
    y        = A^T M A                    for each tile of the output, m x m

Every transform is two separable passes over constant matrices. Tiles are counted in tile rows of the whole batch
(`images * ceil(rows / m)`) and tile columns, both padded to the multiples `rows` and `columns` that the plan chose, so
that it works on whole blocks of tiles; what lies past the map is read as zero and never written. So many `panels` of
filters go through the products together, element by element of the tiles, and lie in memory in that order.

    filters   w[K, C, r, r]                    ->  u[groups, alpha, alpha, panels, ceil(C/b), b, width]
    input     x[N, ceil(C/b), H, W, b]         ->  y[N, ceil(K/b), H', W', b]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.dtype import f64
from tilewright.ir.expr import Expr, all_of, as_int, cast, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.fourier import inputs, products, transforms
from tilewright.ops.packed import block_reference, cropped, layout_name, only, panel_rows, present, unblock_reference
from tilewright.ops.registry import Attrs, OpDef, Types, register
from tilewright.te import Tensor

Arrays = Sequence[Any]


# -- filters -----------------------------------------------------------------------------------------------------------


def _pack_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    w = only(types)
    k, c, r, _ = w.shape
    window = as_int(r)
    assert window is not None
    size, b, width = const(products(window + attrs["tile"] - 1)), attrs["block"], attrs["width"]
    panels = attrs["panels"]
    groups = ceildiv(k, panels * width)
    return (TensorType(w.dtype, (groups, size, size, const(panels), ceildiv(c, b), const(b), const(width))),)


def _pack_compute(inputs: Sequence[Tensor | None], attrs: Attrs, types: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    w, b, width = present(inputs, 0), attrs["block"], attrs["width"]
    window = as_int(w.shape[2])
    assert window is not None
    _, g, _ = transforms(attrs["tile"], window)
    table = te.const_matrix(g, "f64")
    groups, size, _, together, blocks, _, _ = types[0].shape
    panels = groups * together
    r, s = te.reduce_axis(window, "r"), te.reduce_axis(window, "s")

    lead, lanes = (panels, blocks, const(b)), const(width)
    raw = panel_rows(w, width, blocks * b, attrs["panels"])
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
        lambda p, co, i, j, ci, lane: cast(whole[p, co, ci, i, j, lane], w.dtype),
        name="filter_rounded",
    )
    packed: Tensor = te.compute(
        types[0].shape, lambda g, i, j, p, co, ci, lane: rounded[g * together + p, co, i, j, ci, lane], name="pack"
    )
    return (packed,)


def _pack_reference(arrays: Arrays, attrs: Attrs) -> tuple[Any, ...]:
    w, b, width, together = arrays[0], attrs["block"], attrs["width"], attrs["panels"]
    k, c, r, _ = w.shape
    g = np.asarray(transforms(attrs["tile"], r)[1], np.float64)
    padded = np.zeros((-(-k // (together * width)) * together * width, -(-c // b) * b, r, r))
    padded[:k, :c] = w
    u = np.einsum("ir,kcrs,js->kcij", g, padded, g).astype(w.dtype)
    groups = u.reshape(-1, together, width, u.shape[1] // b, b, *u.shape[2:])
    return (np.ascontiguousarray(groups.transpose(0, 5, 6, 1, 3, 4, 2)),)


register(OpDef("pack_winograd", "injective", _pack_infer, _pack_reference, _pack_compute))


# -- convolution -------------------------------------------------------------------------------------------------------


def _conv_infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """Blocked `x` and transformed filters to a blocked output of `channels` channels."""
    x, u = only(types), only(types, 1)
    window = _window(u.shape, attrs)
    pads, b = attrs["pads"], attrs["out_block"]
    out = [x.shape[2 + i] + pads[i] + pads[i + 2] - (window - 1) for i in range(2)]
    return (TensorType(x.dtype, (x.shape[0], const(-(-attrs["channels"] // b)), *out, const(b)), layout_name(b)),)


def _window(u: Sequence[Expr], attrs: Attrs) -> int:
    size = as_int(u[1])
    assert size is not None
    return inputs(size) - int(attrs["tile"]) + 1


def _conv_compute(inputs: Sequence[Tensor | None], attrs: Attrs, types: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    x, u = present(inputs, 0), present(inputs, 1)
    m, window = attrs["tile"], _window(u.shape, attrs)
    reach = m + window - 1
    size = products(reach)
    at, _, bt = transforms(m, window)
    first, last = te.const_matrix(bt, x.dtype), te.const_matrix(at, x.dtype)
    n, _, oh, ow, lanes = types[0].shape
    groups, _, _, panels, blocks, b, width = u.shape
    down, across = ceildiv(oh, m), ceildiv(ow, m)
    rows, columns = attrs["rows"], attrs["columns"]  # tiles of a block
    row_blocks, column_blocks, count = ceildiv(n * down, rows), ceildiv(across, columns), rows * columns
    group = panels * width
    filters = groups * group

    shape = (row_blocks * rows, column_blocks, blocks, const(reach), const(columns * m + window - 1), b)
    strip = _strip(x, attrs, shape, n * down, down)
    i, j = te.reduce_axis(reach, "i"), te.reduce_axis(reach, "j")
    half: Tensor = te.compute(
        (*shape[:3], const(size), *shape[4:]),
        lambda row, block, co, y, v, ci: te.sum(first[y, i.var] * strip[row, block, co, i.var, v, ci], axis=i),
        name="input_rows",
    )
    tiles: Tensor = te.compute(
        (row_blocks, column_blocks, size, size, blocks, count, b),
        lambda r, c, y, z, co, t, ci: te.sum(
            first[z, j.var] * half[r * rows + t // columns, c, co, y, t % columns * m + j.var, ci], axis=j
        ),
        name="input_columns",
    )
    co, ci = te.reduce_axis(blocks, "co"), te.reduce_axis(b, "ci")
    product: Tensor = te.compute(
        (row_blocks, column_blocks, groups, size, size, panels, count, width),
        lambda r, c, g, y, z, panel, t, lane: te.sum(
            tiles[r, c, y, z, co.var, t, ci.var] * u[g, y, z, panel, co.var, ci.var, lane], axis=[co, ci]
        ),
        name="product",
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
        row, column = image * down + h // m, w // m
        tile = row % rows * columns + column % columns
        return result[row // rows, column // columns, tile, h % m, w % m, k * lanes + lane]

    whole: Tensor = te.compute((n, filters // lanes, oh, ow, lanes), element, name="conv")
    return (cropped(whole, types[0].shape),)


def _strip(x: Tensor, attrs: Attrs, shape: tuple[Expr, ...], rows: Expr, down: Expr) -> Tensor:
    """The rows of the input that each tile row reads, with zeros past the map and past the channels."""
    m, (top, left, _, _) = attrs["tile"], attrs["pads"]
    channels, block = attrs["input_channels"], as_int(shape[5])
    assert block is not None

    def element(row: Expr, column: Expr, co: Expr, i: Expr, v: Expr, ci: Expr) -> Expr:
        image, h, w = row // down, row % down * m + i - top, column * (attrs["columns"] * m) + v - left
        inside = [row < rows, h >= 0, h < x.shape[2], w >= 0, w < x.shape[3]]
        if channels % block:
            inside.append(co * block + ci < channels)
        return select(all_of(inside), x[image, co, h, w, ci], const(0, x.dtype))

    strip: Tensor = te.compute(shape, element, name="strip")
    return strip


def _conv_reference(arrays: Arrays, attrs: Attrs) -> tuple[Any, ...]:
    x, u = arrays
    m, (top, left, bottom, right) = attrs["tile"], attrs["pads"]
    size = u.shape[1]
    reach = inputs(size)
    window = reach - m + 1
    at, _, bt = (np.asarray(t, np.float64) for t in transforms(m, window))
    filters = u.transpose(0, 3, 6, 4, 5, 1, 2).reshape(u.shape[0] * u.shape[3] * u.shape[6], -1, size, size)
    channels = attrs["input_channels"]
    x = unblock_reference([x], {"channels": channels})[0]
    n, _, h, w = x.shape
    oh, ow = h + top + bottom - window + 1, w + left + right - window + 1
    down, across = -(-oh // m), -(-ow // m)
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom + down * m - oh), (left, right + across * m - ow)))
    y = np.zeros((n, filters.shape[0], down * m, across * m), np.float64)
    for i in range(down):
        for j in range(across):
            d = x[:, :, i * m : i * m + reach, j * m : j * m + reach]
            v = np.einsum("iy,ncyz,jz->ncij", bt, d, bt)
            product = np.einsum("ncij,kcij->nkij", v, filters[:, :channels])
            y[:, :, i * m : i * m + m, j * m : j * m + m] = np.einsum("py,nkyz,qz->nkpq", at, product, at)
    b = attrs["out_block"]
    blocks = -(-attrs["channels"] // b) * b
    grown = np.zeros((n, blocks, oh, ow), arrays[0].dtype)
    grown[:, : min(blocks, y.shape[1])] = y[:, :blocks, :oh, :ow]
    return block_reference([grown], {"block": b})


register(OpDef("conv_winograd", "contraction", _conv_infer, _conv_reference, _conv_compute))
