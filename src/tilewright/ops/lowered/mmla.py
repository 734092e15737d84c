"""Matrix products by instructions that multiply two rows by two columns and add 2x2 sums in one vector (Arm's smmla,
usmmla, bfmmla; see `targets/isa.py`).

    matmul   x[..., M, K]   w[..., P, D/group, 2, group]   ->   [..., M, columns]

The second factor is packed as for dot instructions (`dots.py`), two columns to a panel, a depth of whole groups. Rows
of x are copied in pairs, a group of one beside a group of the other, padded with zeros in depth, and by a row of zeros
if their number is odd.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import te
from tilewright.ir.expr import Expr, as_expr, as_int, cast, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import need, present, static
from tilewright.ops.lowered.dots import accumulator, product_reference
from tilewright.ops.lowered.packed import ColumnsAttrs, batch_of
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]

SIDE = 2
"""The number of rows, and of columns, whose sums one instruction updates."""


def _infer(types: Types, attrs: ColumnsAttrs) -> Out:
    """The type rule of `lowered.matmul_mmla`: `x[..., M, K]` and panels `w[..., P, D/group, 2, group]`, D at least K,
    to `[..., M, columns]` of f32 or i32. A batch dimension of w is that of x, or 1, or absent."""
    x, w = present(types[0]), present(types[1])
    fits = 4 <= w.rank <= x.rank + 2 and as_int(w.shape[-2]) == SIDE and x.dtype.is_float is w.dtype.is_float
    if not fits or static(x.shape[-1], "the depth") > static(w.shape[-3] * w.shape[-1], "the depth"):
        raise ShapeError("the packed weights do not fit the rows", expected=w, got=x)
    return (TensorType(accumulator(x.dtype), (*x.shape[:-1], as_expr(attrs.columns))),)


def _compute(inputs: Tensors, attrs: ColumnsAttrs, out: Out) -> tuple[Tensor, ...]:
    x, w = need(inputs[0]), need(inputs[1])
    *batch, panels, steps, _, group = w.shape
    k, inner = te.reduce_axis(steps, "k"), te.reduce_axis(group, "p")
    acc, (*lead, count, own) = out[0].dtype, x.shape
    couples, side = ceildiv(count, SIDE), const(SIDE)
    even, deep = as_int(count % SIDE) == 0, as_int(own) == as_int(steps * group)

    def pair(*at: Expr) -> Expr:
        *place, couple, step, row, member = at
        m, d = couple * SIDE + row, step * group + member
        value = x[(*place, m, d)]
        if even and deep:
            return value
        known = (d < own) if even else (m < count) if deep else (m < count) & (d < own)
        return select(known, value, const(0, x.dtype))

    pairs = te.compute((*lead, couples, steps, side, group), pair, name="pairs")

    def element(*at: Expr) -> Expr:
        *place, panel, row, column = at
        weight = w[(*batch_of(place[:-1], batch), panel, k.var, column, inner.var)]
        value = pairs[(*place, k.var, row, inner.var)]
        return te.sum(cast(value, acc) * cast(weight, acc), axis=[k, inner])  # type: ignore[no-any-return]

    squares = te.compute((*lead, couples, panels, side, side), element, name="squares")

    def in_rows(*at: Expr) -> Expr:
        *place, m, n = at
        return squares[(*place, m // SIDE, n // SIDE, m % SIDE, n % SIDE)]  # type: ignore[no-any-return]

    return (te.compute(out[0].shape, in_rows, name="matmul"),)


MATMUL_MMLA = register(OpDef("lowered.matmul_mmla", "contraction", ColumnsAttrs, _infer, product_reference, _compute))

__all__ = ["MATMUL_MMLA", "SIDE"]
