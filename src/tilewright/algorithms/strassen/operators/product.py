"""Strassen's products: seven products of quarters instead of eight (V. Strassen, Gaussian Elimination is not Optimal,
Numerische Mathematik 13, 1969).

    a = | a0 a1 |    b = | b0 b1 |    c = | c0 c1 |
        | a2 a3 |        | b2 b3 |        | c2 c3 |

    p[t] = (sum over q of LEFT[t, q] a[q]) @ (sum over q of RIGHT[t, q] b[q])        for seven t
    c[q] = sum over t of MERGE[q, t] p[t]

Sums of a weight's quarters are computed once, in `prepare`, and packed into panels; the seven of a panel are
contiguous. If a dimension is odd, the second half ends in zeros.

    strassen_sums     w[K, N]                                         ->  t[7, ceil(K/2), ceil(N/2)]
    matmul_strassen   x[..., M, K] (leading dimensions are 1)
                      and panels t[P, 7, ceil(K/2), width]            ->  c[..., M, N]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Expr, all_of, as_expr, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import need, number, present
from tilewright.ops.lowered.packed import ColumnsAttrs
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.te import Tensor

LEFT = ((1, 0, 0, 1), (0, 0, 1, 1), (1, 0, 0, 0), (0, 0, 0, 1), (1, 1, 0, 0), (-1, 0, 1, 0), (0, 1, 0, -1))
RIGHT = ((1, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, -1), (-1, 0, 1, 0), (0, 0, 0, 1), (1, 1, 0, 0), (0, 0, 1, 1))
MERGE = ((1, 0, 0, 1, -1, 0, 1), (0, 0, 1, 0, 1, 0, 0), (0, 1, 0, 1, 0, 0, 0), (1, -1, 1, 0, 0, 1, 0))
PRODUCTS = len(LEFT)


@dataclass(frozen=True, slots=True)
class SumsAttrs(Attrs):
    """Attributes of `lowered.strassen_sums`, the sums of a weight's quarters: whether the weight is stored as [N,
    K]."""

    transpose: bool


def _sums_infer(types: Types, attrs: SumsAttrs) -> tuple[TensorType, ...]:
    """The type rule of the sums. With `transpose` the weight is stored as [N, K], and so are its sums."""
    *_, rows, columns = present(types[0]).shape
    return (TensorType(present(types[0]).dtype, (const(PRODUCTS), ceildiv(rows, 2), ceildiv(columns, 2))),)


def _right(attrs: SumsAttrs) -> tuple[tuple[int, ...], ...]:
    """`RIGHT`, the factors of the weight's quarters, with its columns in the order in which the quarters are stored."""
    return tuple((a, c, b, d) for a, b, c, d in RIGHT) if attrs.transpose else RIGHT


def _sums_compute(
    inputs: Sequence[Tensor | None], attrs: SumsAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    return (_sums(need(inputs[0]), _right(attrs)),)


def _sums(x: Tensor, factors: tuple[tuple[int, ...], ...]) -> Tensor:
    *lead, rows, columns = x.shape
    half, across = ceildiv(rows, 2), ceildiv(columns, 2)
    table, q = te.const_matrix(factors, x.dtype), te.reduce_axis(4, "q")

    def quarter(q: Expr, i: Expr, j: Expr) -> Expr:
        row, column = q // 2 * half + i, q % 2 * across + j
        inside = [
            at < size for at, size, part in ((row, rows, half), (column, columns, across)) if part * 2 is not size
        ]
        return select(all_of(inside), x[(*(const(0) for _ in lead), row, column)], const(0, x.dtype))

    quarters: Tensor = te.compute((4, half, across), quarter, name="quarters")
    sums: Tensor = te.compute(
        (PRODUCTS, half, across), lambda t, i, j: te.sum(table[t, q.var] * quarters[q.var, i, j], axis=q), name="sums"
    )
    return sums


def _sums_reference(arrays: Sequence[Any], attrs: SumsAttrs) -> tuple[Any, ...]:
    return (_sums_of(arrays[0], _right(attrs)),)


def _sums_of(x: Any, factors: tuple[tuple[int, ...], ...]) -> Any:
    x = x.reshape(x.shape[-2:])
    x = np.pad(x, [(0, size % 2) for size in x.shape])
    quarters = x.reshape(2, x.shape[0] // 2, 2, x.shape[1] // 2).swapaxes(1, 2).reshape(4, x.shape[0] // 2, -1)
    return np.tensordot(np.asarray(factors, x.dtype), quarters, 1)


STRASSEN_SUMS = register(
    OpDef("lowered.strassen_sums", "injective", SumsAttrs, _sums_infer, _sums_reference, _sums_compute)
)


def _matmul_infer(types: Types, attrs: ColumnsAttrs) -> tuple[TensorType, ...]:
    x = present(types[0])
    return (TensorType(x.dtype, (*x.shape[:-1], as_expr(attrs.columns))),)


def _matmul_compute(
    inputs: Sequence[Tensor | None], attrs: ColumnsAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    sums, w = _sums(need(inputs[0]), LEFT), need(inputs[1])
    panels, _, depth, width = w.shape
    half, across = sums.shape[1], ceildiv(types[0].shape[-1], 2)
    k, t = te.reduce_axis(depth, "k"), te.reduce_axis(PRODUCTS, "t")
    product: Tensor = te.compute(
        (panels, PRODUCTS, half, width),
        lambda p, t, i, lane: te.sum(sums[t, i, k.var] * w[p, t, k.var, lane], axis=k),
        name="product",
    )
    table = te.const_matrix(MERGE, product.dtype)
    merged: Tensor = te.compute(
        (4, half, panels * width),
        lambda q, i, j: te.sum(table[q, t.var] * product[j // width, t.var, i, j % width], axis=t),
        name="merged",
    )

    def element(*at: Expr) -> Expr:
        *_, i, j = at
        return merged[i // half * 2 + j // across, i % half, j % across]

    whole: Tensor = te.compute(types[0].shape, element, name="matmul")
    return (whole,)


def _matmul_reference(arrays: Sequence[Any], attrs: ColumnsAttrs) -> tuple[Any, ...]:
    x, w = arrays
    right = w.transpose(1, 2, 0, 3).reshape(PRODUCTS, w.shape[2], -1)
    rows, columns = x.shape[-2], number(attrs.columns)
    products = np.matmul(_sums_of(x, LEFT), right)[..., : -(-columns // 2)]
    quarters = np.tensordot(np.asarray(MERGE, x.dtype), products, 1).reshape(2, 2, *products.shape[1:])
    whole = quarters.swapaxes(1, 2).reshape(2 * products.shape[1], 2 * products.shape[2])
    return (np.ascontiguousarray(whole[:rows, :columns]).reshape(*x.shape[:-1], columns),)


MATMUL_STRASSEN = register(
    OpDef("lowered.matmul_strassen", "contraction", ColumnsAttrs, _matmul_infer, _matmul_reference, _matmul_compute)
)
