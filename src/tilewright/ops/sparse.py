"""Products with sparse weights: the pattern, which is a part of the program, says which blocks of the weights are
stored.

    values[P, J, V]   the blocks of V columns of each panel, as many as the fullest one has; 0 where one has fewer
    index[P, J]       i32, the row of the weights of each block
    y[m, p V + v] = sum over j of x[m, index[p, j]] * values[p, j, v]

With V = 1 single zeros are skipped, with wider blocks 1xV of them. The index says which activation a block multiplies,
so that only stored blocks cost time. Panels are filled up with blocks of zeros, whose index is arbitrary.

For a single row of activations, elements are arranged in windows: V columns advance together, and at each step each
column contributes an element from the W rows of the panel's current window.

    values[P, J, V]   elements; 0 where a column has none in the window
    index[P, J]       u16, the first row of each window
    place[P, J, V]    u8, the row of each element in its window
    y[m, p V + v] = sum over j of x[m, index[p, j] + place[p, j, v]] * values[p, j, v]

W rows of the activations are one or two vectors, from which one or two instructions pick the elements of all V lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Dim
from tilewright.ir.dtype import f32, i32, i64, u8, u16
from tilewright.ir.expr import Expr, as_expr, as_int, call, cast, const, minimum
from tilewright.ir.graph import TensorType
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import DTypeError, ShapeError
from tilewright.te import Tensor


@dataclass(frozen=True, slots=True)
class SparseAttrs(Attrs):
    """Attributes of a product with sparse weights. `columns`: the number of columns of the result; the last panel of
    the weights may have more. `transposed`: x is [.., K, M] and the result [.., columns, M]; else x is [.., M, K] and
    the result [.., M, columns]."""

    columns: Dim
    transposed: bool = False


def _infer(types: Types, attrs: SparseAttrs) -> tuple[TensorType, ...]:
    x, values, index = types
    assert x is not None and values is not None and index is not None
    if (x.dtype, values.dtype, index.dtype) != (f32, f32, i32):
        got = [str(t) for t in (x, values, index)]
        raise DTypeError("a sparse product has values of f32 and indices of i32", expected="f32, f32, i32", got=got)
    if values.rank != 3 or index.shape != values.shape[:2] or x.rank < 2:
        got = [str(t) for t in (x, values, index)]
        raise ShapeError("the parts of a sparse product do not fit", expected="[.., M, K], [P, J, V], [P, J]", got=got)
    columns = as_expr(attrs.columns)
    shape = (*x.shape[:-2], columns, x.shape[-1]) if attrs.transposed else (*x.shape[:-1], columns)
    return (TensorType(f32, shape),)


def _compute(inputs: Sequence[Tensor | None], attrs: SparseAttrs, types: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    x, values, index = inputs
    assert x is not None and values is not None and index is not None
    width = as_int(values.shape[2]) or 1
    j = te.reduce_axis(values.shape[1], "j")

    def element(*at: Expr) -> Expr:
        *rows, column = (*at[:-2], at[-1], at[-2]) if attrs.transposed else at
        row = cast(index[(column // width, j.var)], i64)
        read = x[(*rows[:-1], row, rows[-1])] if attrs.transposed else x[(*rows, row)]
        return te.sum(read * values[(column // width, j.var, column % width)], axis=j)  # type: ignore[no-any-return]

    return (te.compute(types[0].shape, element, name="sparse"),)


def _reference(arrays: Sequence[Any], attrs: SparseAttrs) -> tuple[Any, ...]:
    x, values, index = arrays
    columns = as_int(attrs.columns)
    panels, _, width = values.shape
    rows = x.swapaxes(-1, -2) if attrs.transposed else x
    dense = np.zeros((rows.shape[-1], panels * width), np.float32)
    for panel in range(panels):
        np.add.at(dense, (index[panel][:, None], panel * width + np.arange(width)), values[panel])
    y = np.matmul(rows, dense)[..., :columns]
    return (np.ascontiguousarray(y.swapaxes(-1, -2)) if attrs.transposed else y,)


SPARSE_MATMUL = register(OpDef("sparse_matmul", "contraction", SparseAttrs, _infer, _reference, _compute))


@dataclass(frozen=True, slots=True)
class WindowAttrs(Attrs):
    """Attributes of a product of one row with sparse weights in windows: at each step the columns of a panel read
    elements of one window of `window` rows, a power of two."""

    window: int


def _infer_windows(types: Types, attrs: WindowAttrs) -> tuple[TensorType, ...]:
    x, values, index, place = types
    assert x is not None and values is not None and index is not None and place is not None
    if (x.dtype, values.dtype, index.dtype, place.dtype) != (f32, f32, u16, u8):
        got = [str(t) for t in types]
        raise DTypeError("a product by windows has other types", expected="f32, f32, u16, u8", got=got)
    depth = as_int(x.shape[-1]) if x.rank > 1 else None
    fit = values.rank == 3 and index.shape == values.shape[:2] and place.shape == values.shape
    if not fit or depth is None or not 0 < attrs.window <= depth or attrs.window & (attrs.window - 1):
        got = [*(str(t) for t in types), f"windows of {attrs.window}"]
        expected = "[.., M, K], [P, J, V], [P, J], [P, J, V], and a power of two up to K"
        raise ShapeError("the parts of a product by windows do not fit", expected=expected, got=got)
    return (TensorType(f32, (*x.shape[:-1], values.shape[0] * values.shape[2])),)


def _compute_windows(
    inputs: Sequence[Tensor | None], attrs: WindowAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    """The tensor expression of `sparse_window_matmul`; indices are clamped so that whole windows can be read whatever
    the numbers are."""
    x, values, index, place = inputs
    assert x is not None and values is not None and index is not None and place is not None
    width = as_int(values.shape[2]) or 1
    last = const((as_int(x.shape[-1]) or 0) - attrs.window)
    j = te.reduce_axis(values.shape[1], "j")

    def element(*at: Expr) -> Expr:
        *rows, column = at
        panel, lane = column // width, column % width
        first = minimum(cast(index[(panel, j.var)], i64), last)
        inside = call("bitand", cast(place[(panel, j.var, lane)], i32), const(attrs.window - 1, i32))
        read = x[(*rows, first + cast(inside, i64))]
        return te.sum(read * values[(panel, j.var, lane)], axis=j)  # type: ignore[no-any-return]

    return (te.compute(types[0].shape, element, name="sparse"),)


def _reference_windows(arrays: Sequence[Any], attrs: WindowAttrs) -> tuple[Any, ...]:
    x, values, index, place = arrays
    first = np.minimum(index.astype(np.int64), x.shape[-1] - attrs.window)
    rows = first[:, :, None] + place % attrs.window
    y = np.einsum("...pjv,pjv->...pv", x[..., rows], values)
    return (np.ascontiguousarray(y.reshape(*x.shape[:-1], -1)),)


WINDOW_MATMUL = register(
    OpDef("sparse_window_matmul", "contraction", WindowAttrs, _infer_windows, _reference_windows, _compute_windows)
)
