"""Products for dot instructions, which multiply groups of neighbours along the depth and add them up at once.

    matmul   w[..., K, N]   ->   [..., ceil(N/width), K/group, width, group]

A panel holds, for each step of the depth, `group` elements for each of its `width` columns: one vector register of a
dot instruction (`group` 2: bf16 and i16, 4: 8-bit integers). The depth must be a multiple of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.arith import prove_equal
from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import DType, f32, i32
from tilewright.ir.expr import Expr, as_expr, as_int, cast, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import dim, need, present
from tilewright.ops.lowered.index_maps import register_map
from tilewright.ops.lowered.packed import ColumnsAttrs, batch_of, cropped
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


def accumulator(t: DType) -> DType:
    """The type in which products of `t` are summed: f32 of floats, i32 of integers."""
    return f32 if t.is_float else i32


# packing


@dataclass(frozen=True, slots=True)
class PackDotAttrs(Attrs):
    """Attributes of packing weights for dot instructions: columns of a panel (`width`) and neighbours along the depth
    (`group`). The number of panels is rounded up to a multiple of `panels`; `transpose`: whether the weights come as
    [N, K]."""

    width: int
    group: int
    panels: int
    transpose: bool


def _pack_infer(types: Types, attrs: PackDotAttrs) -> Out:
    """The type rule of `lowered.pack_dot`: `w[..., K, N]` (`[..., N, K]` if `transpose`) to panels, their number
    rounded up to a multiple of `panels`; columns past N are zero."""
    w, width, group = present(types[0]), attrs.width, attrs.group
    *batch, k, n = w.shape
    if attrs.transpose:
        k, n = n, k
    steps = dim(ceildiv(k, group))
    if not prove_equal(steps * group, k):
        raise ShapeError("the depth is no multiple of the group", expected=group, got=k)
    count = ceildiv(n, width * attrs.panels) * attrs.panels
    return (TensorType(w.dtype, (*batch, dim(count), steps, const(width), const(group))),)


def _pack_compute(inputs: Tensors, attrs: PackDotAttrs, out: Out) -> tuple[Tensor, ...]:
    w, width, group, transpose = need(inputs[0]), attrs.width, attrs.group, attrs.transpose
    n = w.shape[-2 if transpose else -1]
    whole = (columns := as_int(n)) is not None and columns % (width * attrs.panels) == 0

    def element(*at: Expr) -> Expr:
        *batch, panel, step, lane, inner = at
        column, k = panel * width + lane, step * group + inner
        value = w[(*batch, column, k)] if transpose else w[(*batch, k, column)]
        return value if whole else select(column < n, value, const(0, w.dtype))

    return (te.compute(out[0].shape, element, name="pack"),)


register_map("lowered.pack_dot", PackDotAttrs, _pack_infer, _pack_compute)


# the product


def _matmul_infer(types: Types, attrs: ColumnsAttrs) -> Out:
    """The type rule of `lowered.matmul_dot`: `x[..., M, K]` and panels `w[..., P, K/group, width, group]` to `[..., M,
    columns]` of f32 or i32.

    A batch dimension of w is that of x, or 1, or absent.
    """
    x, w = present(types[0]), present(types[1])
    if not prove_equal(x.shape[-1], w.shape[-3] * w.shape[-1]) or x.dtype.is_float is not w.dtype.is_float:
        raise ShapeError("the packed weights do not fit the rows", expected=w, got=x)
    return (TensorType(accumulator(x.dtype), (*x.shape[:-1], as_expr(attrs.columns))),)


def _matmul_compute(inputs: Tensors, attrs: ColumnsAttrs, out: Out) -> tuple[Tensor, ...]:
    x, w = need(inputs[0]), need(inputs[1])
    *batch, panels, steps, width, group = w.shape
    k, inner = te.reduce_axis(steps, "k"), te.reduce_axis(group, "p")
    acc = out[0].dtype

    def element(*at: Expr) -> Expr:
        *rows, n = at
        weight = w[(*batch_of(rows[:-1], batch), n // width, k.var, n % width, inner.var)]
        value = x[(*rows, k.var * group + inner.var)]
        return te.sum(cast(value, acc) * cast(weight, acc), axis=[k, inner])  # type: ignore[no-any-return]

    product: Tensor = te.compute((*out[0].shape[:-1], panels * width), element, name="matmul")
    return (cropped(product, out[0].shape),)


def product_reference(arrays: Sequence[Any], attrs: Any) -> tuple[Any, ...]:
    """The NumPy reference of products with packed weights: x times panels `[..., P, D/group, width, group]`, where D is
    at least x's depth; the first `attrs.columns` columns."""
    x, w = (np.asarray(a) for a in arrays)
    acc = np.int32 if x.dtype.kind in "iu" else np.float32
    *batch, panels, steps, width, group = w.shape
    full = np.moveaxis(np.moveaxis(w, -1, -2), -4, -2).reshape(*batch, steps * group, panels * width)
    return (np.matmul(x.astype(acc), full[..., : x.shape[-1], : as_int(attrs.columns)].astype(acc)),)


register(OpDef("lowered.matmul_dot", "contraction", ColumnsAttrs, _matmul_infer, product_reference, _matmul_compute))
