"""Winograd convolution F(m x m, r x r) over blocked channels (Lavin and Gray 2016; Winograd 1980).

    U[xi]    = G g G^T                    for each filter, once, in `prepare`, in double precision
    V[xi]    = B^T d B                    for each tile of the input, alpha x alpha with alpha = m + r - 1; large tiles
                                          by Fourier's transform (`fourier.py`), whose matrices are not square
    M[xi]    = V[xi] U[xi]                alpha^2 matrix products of tiles x channels x filters
    y        = A^T M A                    for each tile of the output, m x m

Every transform is two separable passes over constant matrices. Tiles are counted in tile rows of the whole batch
(`images * ceil(rows / m)`) and tile columns, both padded to the multiples `rows` and `columns` that the plan chose, so
that it works on whole blocks of tiles; what lies past the map is read as zero and never written.

    filters   w[K, C, r, r]                    ->  u[ceil(K/width), alpha, alpha, ceil(C/b), b, width]
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
    return (TensorType(w.dtype, (ceildiv(k, width), size, size, ceildiv(c, b), const(b), const(width))),)


def _pack_compute(inputs: Sequence[Tensor | None], attrs: Attrs, types: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    w, b, width = present(inputs, 0), attrs["block"], attrs["width"]
    window = as_int(w.shape[2])
    assert window is not None
    _, g, _ = transforms(attrs["tile"], window)
    table = te.const_matrix(g, "f64")
    panels, size, _, blocks, _, _ = types[0].shape
    r, s = te.reduce_axis(window, "r"), te.reduce_axis(window, "s")

    lead, lanes = (panels, blocks, const(b)), const(width)
    raw = panel_rows(w, width, blocks * b)
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
        types[0].shape, lambda p, i, j, co, ci, lane: rounded[p, co, i, j, ci, lane], name="pack"
    )
    return (packed,)


def _pack_reference(arrays: Arrays, attrs: Attrs) -> tuple[Any, ...]:
    w, b, width = arrays[0], attrs["block"], attrs["width"]
    k, c, r, _ = w.shape
    g = np.asarray(transforms(attrs["tile"], r)[1], np.float64)
    padded = np.zeros((-(-k // width) * width, -(-c // b) * b, r, r))
    padded[:k, :c] = w
    u = np.einsum("ir,kcrs,js->kcij", g, padded, g).astype(w.dtype)
    panels = u.reshape(-1, width, u.shape[1] // b, b, *u.shape[2:])
    return (np.ascontiguousarray(panels.transpose(0, 4, 5, 2, 3, 1)),)


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
    panels, _, _, blocks, b, width = u.shape
    down, across = ceildiv(oh, m), ceildiv(ow, m)
    rows, columns = attrs["rows"], attrs["columns"]  # tiles of a block
    row_blocks, column_blocks, count = ceildiv(n * down, rows), ceildiv(across, columns), rows * columns
    filters = panels * width

    shape = (row_blocks * rows, column_blocks, blocks, const(reach), const(columns * m + window - 1), b)
    strip = _strip(x, attrs, shape, n * down, down)
    i, j = te.reduce_axis(reach, "i"), te.reduce_axis(reach, "j")
    half: Tensor = te.compute(
        (*shape[:3], const(size), *shape[4:]),
        lambda row, block, co, y, v, ci: te.sum(first[y, i.var] * strip[row, block, co, i.var, v, ci], axis=i),
        name="input_rows",
    )
    tiles: Tensor = te.compute(
        (row_blocks, column_blocks, size, size, count, blocks, b),
        lambda r, c, y, z, t, co, ci: te.sum(
            first[z, j.var] * half[r * rows + t // columns, c, co, y, t % columns * m + j.var, ci], axis=j
        ),
        name="input_columns",
    )
    co, ci = te.reduce_axis(blocks, "co"), te.reduce_axis(b, "ci")
    product: Tensor = te.compute(
        (row_blocks, column_blocks, size, size, count, filters),
        lambda r, c, y, z, t, k: te.sum(
            tiles[r, c, y, z, t, co.var, ci.var] * u[k // width, y, z, co.var, ci.var, k % width], axis=[co, ci]
        ),
        name="product",
    )
    p, q = te.reduce_axis(size, "p"), te.reduce_axis(size, "q")
    upright: Tensor = te.compute(
        (row_blocks, column_blocks, count, m, size, filters),
        lambda r, c, t, y, z, k: te.sum(last[y, p.var] * product[r, c, p.var, z, t, k], axis=p),
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
    filters = u.transpose(0, 5, 3, 4, 1, 2).reshape(u.shape[0] * u.shape[5], -1, size, size)
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
