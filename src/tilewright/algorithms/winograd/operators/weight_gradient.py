"""The gradient of a convolution by its weight by Winograd's transforms, stride one, over channels in blocks.

    V[xi]  = B^T d B                      for each tile of the data, tile + window - 1 a side, which advance by `tile`
    U[xi]  = G g G^T                      for each tile of the result's gradient, tile x tile
    M[xi]  = sum over tiles of V[xi] U[xi]    matrix products of channels x tiles x filters
    d      = A^T M A                      once, window x window

It is the correlation of F(window, tile): the weights are its outputs and the tiles of the gradient its taps. Its data
are those of the convolution by F(tile, window), whose `B^T` is the same (`toomcook.py`). All sums are computed before
the inverse transform, which is linear. Tiles are counted in tile rows of the whole batch, as in `convolution.py`; the
plan may state the sum in chunks of `rows` of them (`sums_in_chunks`).

    data      x[N, C/b, H, W, b]
    gradient  g[N, F/b, H', W', b]      ->   d[F/b, C/b, window, window, b (of C), b (of F)]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.algorithms.winograd.operators.toomcook import winograd_matrices
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.expr import Expr, all_of, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import need, present
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.te import Tensor


@dataclass(frozen=True, slots=True)
class WinogradWeightAttrs(Attrs):
    """Attributes of `lowered.winograd_weight`: pixels of a tile of the result's gradient and taps of the window, per
    side; pads of the convolution."""

    tile: int
    window: int
    pads: Ints


def _infer(types: Types, attrs: WinogradWeightAttrs) -> tuple[TensorType, ...]:
    x, g = present(types[0]), present(types[1])
    window = const(attrs.window)
    return (TensorType(x.dtype, (g.shape[1], x.shape[1], window, window, x.shape[-1], g.shape[-1])),)


def _compute(
    inputs: Sequence[Tensor | None], attrs: WinogradWeightAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    return (sums_in_chunks(need(inputs[0]), need(inputs[1]), attrs, 1),)


def sums_in_chunks(x: Tensor, g: Tensor, attrs: WinogradWeightAttrs, rows: int) -> Tensor:
    """The gradient as sums over chunks of `rows` tile rows, which may belong to several images; the tiles of a chunk
    are one dimension of the products. The stages and their axes are the same for all chunks."""
    m, window = attrs.tile, attrs.window
    size = m + window - 1
    at, taps, bt = winograd_matrices(window, m)
    of_data, of_gradient, back = (te.const_matrix(matrix, x.dtype) for matrix in (bt, taps, at))
    down, across = ceildiv(g.shape[2], m), ceildiv(g.shape[3], m)
    lines, count = g.shape[0] * down, across * rows
    chunks = ceildiv(lines, rows)

    def strips(of: Tensor, name: str, height: int, width: Expr, before: tuple[int, int]) -> Tensor:
        """The stage `<name>_strip`, which copies the `height` rows of `width` columns of the map `of` that each row of
        tiles reads, with zeros outside of the map. `before`: the rows and columns of padding before the map."""

        def element(chunk: Expr, row: Expr, block: Expr, i: Expr, v: Expr, lane: Expr) -> Expr:
            line = chunk * rows + row
            h, w = line % down * m + i - before[0], v - before[1]
            inside = [line < lines, h >= 0, h < of.shape[2], w >= 0, w < of.shape[3]]
            return select(all_of(inside), of[line // down, block, h, w, lane], const(0, of.dtype))

        shape = (chunks, const(rows), of.shape[1], const(height), width, of.shape[-1])
        tensor: Tensor = te.compute(shape, element, name=f"{name}_strip")
        return tensor

    def tiles(of: Tensor, name: str, matrix: te.ConstMatrix, length: int, strip: Tensor) -> Tensor:
        """The stage `<name>_columns` with the transformed tiles of each chunk: `matrix` is applied to the `length` rows
        of each tile of `strip`, which was copied from the map `of`, and then to its `length` columns."""
        i, j = te.reduce_axis(length, "i"), te.reduce_axis(length, "j")
        half: Tensor = te.compute(
            (*strip.shape[:3], const(size), *strip.shape[4:]),
            lambda c, r, block, y, v, lane: te.sum(matrix[y, i.var] * strip[c, r, block, i.var, v, lane], axis=i),
            name=f"{name}_rows",
        )
        tensor: Tensor = te.compute(
            (chunks, const(size), const(size), of.shape[1], count, of.shape[-1]),
            lambda c, y, z, block, t, lane: te.sum(
                matrix[z, j.var] * half[c, t // across, block, y, t % across * m + j.var, lane], axis=j
            ),
            name=f"{name}_columns",
        )
        return tensor

    data = tiles(
        x, "data", of_data, size, strips(x, "data", size, across * m + window - 1, (attrs.pads[0], attrs.pads[1]))
    )
    gradient = tiles(g, "gradient", of_gradient, m, strips(g, "gradient", m, across * m, (0, 0)))
    c, t = te.reduce_axis(chunks, "c"), te.reduce_axis(count, "t")
    product: Tensor = te.compute(
        (const(size), const(size), g.shape[1], x.shape[1], x.shape[-1], g.shape[-1]),
        lambda y, z, fo, co, ci, lane: te.sum(
            data[c.var, y, z, co, t.var, ci] * gradient[c.var, y, z, fo, t.var, lane], axis=[c, t]
        ),
        name="product",
    )
    p, q = te.reduce_axis(size, "p"), te.reduce_axis(size, "q")
    upright: Tensor = te.compute(
        (g.shape[1], x.shape[1], const(window), const(size), x.shape[-1], g.shape[-1]),
        lambda fo, co, k, z, ci, lane: te.sum(back[k, p.var] * product[p.var, z, fo, co, ci, lane], axis=p),
        name="weight_rows",
    )
    weight: Tensor = te.compute(
        (g.shape[1], x.shape[1], const(window), const(window), x.shape[-1], g.shape[-1]),
        lambda fo, co, k, l, ci, lane: te.sum(back[l, q.var] * upright[fo, co, k, q.var, ci, lane], axis=q),
        name="weight_columns",
    )
    return weight


def _reference(arrays: Sequence[Any], attrs: WinogradWeightAttrs) -> tuple[Any, ...]:
    """The NumPy reference of `lowered.winograd_weight`: in double precision, tile by tile."""
    x, g = (np.asarray(a, np.float64) for a in arrays)
    m, window, (top, left, _, _) = attrs.tile, attrs.window, attrs.pads
    size = m + window - 1
    at, taps, bt = (np.asarray(matrix, np.float64) for matrix in winograd_matrices(window, m))
    down, across = -(-g.shape[2] // m), -(-g.shape[3] // m)
    following = (
        max(0, n * m + window - 1 - before - extent)
        for n, before, extent in ((down, top, x.shape[2]), (across, left, x.shape[3]))
    )
    enclosing = [(0, 0), (0, 0), *zip((top, left), following, strict=True), (0, 0)]
    x = np.pad(x, enclosing)
    g = np.pad(g, [(0, 0), (0, 0), (0, down * m - g.shape[2]), (0, across * m - g.shape[3]), (0, 0)])
    total = np.zeros((size, size, g.shape[1], x.shape[1], x.shape[-1], g.shape[-1]))
    for i, j in np.ndindex(down, across):
        data = x[:, :, i * m : i * m + size, j * m : j * m + size]
        tile = g[:, :, i * m : (i + 1) * m, j * m : (j + 1) * m]
        v = np.einsum("yi,ncijl,zj->nyzcl", bt, data, bt)
        u = np.einsum("yi,nfijl,zj->nyzfl", taps, tile, taps)
        total += np.einsum("nyzci,nyzfl->yzfcil", v, u)
    return (np.einsum("py,yzfcil,qz->fcpqil", at, total, at).astype(arrays[0].dtype),)


WINOGRAD_WEIGHT = register(
    OpDef("lowered.winograd_weight", "contraction", WinogradWeightAttrs, _infer, _reference, _compute)
)
