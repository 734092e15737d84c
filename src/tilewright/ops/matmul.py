"""Matrix multiplication: `matmul` with NumPy's batch broadcasting, and `einsum` as the general contraction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import DType, f32, i32
from tilewright.ir.expr import Expr, cast
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import (
    accumulator,
    broadcast_index,
    broadcast_shapes,
    labelled,
    narrow,
    need,
    or_identity,
    present,
    same_dim,
    wide,
)
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import DTypeError, ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


def product_type(a: DType, b: DType) -> DType:
    """Element type of sums of products: integers narrower than 32 bits give i32; others keep their type."""
    if a.is_int and b.is_int and a.bits < 32 and b.bits < 32:
        return i32
    if a is not b or a.kind == "bool":
        raise DTypeError("the element types cannot be multiplied", got=f"{a} and {b}")
    return a


Exactness = Literal["", "x3", "x6", "f32"]
"""The least accuracy of an f32 product: that of three or six products of bf16 pieces (`ops/lowered/split.py`), or of
f32 products; "": as the options of the compile say."""


@dataclass(frozen=True, slots=True)
class MatmulAttrs(Attrs):
    """Attributes of `matmul`. `transpose_a` and `transpose_b`: the last two dimensions of the first or the second
    operand are swapped. `dtype`: the result's element type if it is wider than the factors' (f32 for 16-bit floats,
    whose sums are then used before they are rounded), else None. `exactness`: the least accuracy of the product,
    whatever options allow; "" if the options decide."""

    transpose_a: bool = False
    transpose_b: bool = False
    dtype: DType | None = None
    exactness: Exactness = ""


def _matmul_infer(types: Types, attrs: MatmulAttrs) -> Out:
    """The type rule of `matmul`: a [..., M, K] and b [..., K, N] to [..., M, N]. `transpose_a`, `transpose_b` swap the
    last two dimensions of an operand; `dtype` is f32 if sums of 16-bit floats are not rounded. Ranks are at least 2."""
    a, b = present(types[0]), present(types[1])
    if a.rank < 2 or b.rank < 2:
        raise ShapeError("matmul needs matrices", got=f"{a} and {b}")
    m, k = a.shape[-2:][:: -1 if attrs.transpose_a else 1]
    k_b, n = b.shape[-2:][:: -1 if attrs.transpose_b else 1]
    if not same_dim(k, k_b):
        raise ShapeError("the inner dimensions of a matrix product differ", expected=k, got=k_b)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    t = product_type(a.dtype, b.dtype)
    if attrs.dtype is not None and not (t.is_float and t.bits == 16 and attrs.dtype is f32):
        raise DTypeError("a product has no sums of this type", expected="f32, of floats of 16 bits", got=attrs.dtype)
    return (TensorType(attrs.dtype or t, (*batch, m, n)),)


def _matmul_compute(inputs: Tensors, attrs: MatmulAttrs, out: Out) -> tuple[Tensor, ...]:
    a, b = need(inputs[0]), need(inputs[1])
    (type,) = out
    acc = accumulator(type.dtype)
    swap_a, swap_b = attrs.transpose_a, attrs.transpose_b
    k = te.reduce_axis(a.shape[-2 if swap_a else -1], "k")
    batch = type.shape[:-2]

    def operand(t: Tensor, lead: Sequence[Expr], row: Expr, column: Expr, swap: bool) -> Expr:
        rank = t.ndim - 2
        index = _batch_index(t, lead, batch) if rank else ()
        return cast(t[(*index, *((column, row) if swap else (row, column)))], acc)

    def element(*point: Expr) -> Expr:
        *lead, i, j = point
        left = operand(a, lead, i, k.var, swap_a)
        right = operand(b, lead, k.var, j, swap_b)
        return or_identity(te.sum(left * right, axis=k))  # type: ignore[no-any-return]

    axes = (*(f"b{d}" for d in range(len(batch))), "i", "j")
    return (narrow(te.compute(type.shape, labelled(element, axes), name="matmul"), type.dtype, "rounded"),)


def _batch_index(t: Tensor, lead: Sequence[Expr], batch: Sequence[Expr]) -> tuple[Expr, ...]:
    view = Tensor(t.name, t.dtype, t.shape[:-2])
    return broadcast_index(view, lead, batch)


def _matmul_numpy(arrays: Sequence[Any], attrs: MatmulAttrs) -> tuple[Any, ...]:
    from tilewright.ir.dtype import dtype

    a, b = (np.asarray(x) for x in arrays)
    result = (attrs.dtype or product_type(dtype(a.dtype), dtype(b.dtype))).numpy
    a, b = wide(a), wide(b)
    if not np.issubdtype(a.dtype, np.floating):
        a, b = a.astype(result), b.astype(result)
    if attrs.transpose_a:
        a = np.swapaxes(a, -1, -2)
    if attrs.transpose_b:
        b = np.swapaxes(b, -1, -2)
    return (np.matmul(a, b).astype(result),)


register(OpDef("matmul", "contraction", MatmulAttrs, _matmul_infer, _matmul_numpy, compute=_matmul_compute))


# --- einsum ---------------------------------------------------------------------------------------------------------


def _terms(equation: str) -> tuple[list[str], str]:
    left, right = equation.split("->")
    return left.split(","), right


def _einsum_extents(types: Sequence[Any], equation: str) -> dict[str, Expr]:
    extents: dict[str, Expr] = {}
    for t, term in zip(types, _terms(equation)[0], strict=True):
        if len(term) != len(t.shape):
            raise ShapeError(f"einsum term {term!r} does not fit its operand", got=t)
        for label, d in zip(term, t.shape, strict=True):
            known = extents.setdefault(label, d)
            if not same_dim(known, d):
                raise ShapeError(f"einsum label {label!r} has two extents", expected=known, got=d)
    return extents


@dataclass(frozen=True, slots=True)
class EinsumAttrs(Attrs):
    """Attributes of `einsum`: an explicit `equation` with one letter for each dimension and without ellipsis, such as
    "ij,jk->ik"."""

    equation: str


def _einsum_infer(types: Types, attrs: EinsumAttrs) -> Out:
    """The type rule of `einsum`. `equation` is explicit ("ij,jk->ik"): one letter a dimension, no ellipsis; extents
    agree exactly."""
    input_types = [present(t) for t in types]
    left, right = _terms(attrs.equation)
    if len(left) != len(input_types):
        raise ShapeError("einsum needs one term for each operand", expected=len(left), got=len(input_types))
    extents = _einsum_extents(input_types, attrs.equation)
    if not set(right) <= set(extents) or len(set(right)) != len(right):
        raise ShapeError("einsum's result names unknown or repeated labels", got=right)
    result = input_types[0].dtype
    for t in input_types[1:]:
        if t.dtype is not result:
            raise DTypeError("einsum's operands differ in type", expected=result, got=t.dtype)
    return (TensorType(result, tuple(extents[c] for c in right)),)


def _einsum_compute(inputs: Tensors, attrs: EinsumAttrs, out: Out) -> tuple[Tensor, ...]:
    tensors = [need(t) for t in inputs]
    left, right = _terms(attrs.equation)
    extents = _einsum_extents(tensors, attrs.equation)
    (type,) = out
    acc = accumulator(type.dtype)
    summed = {c: te.reduce_axis(d, c) for c, d in extents.items() if c not in right}

    def element(*point: Expr) -> Expr:
        where: dict[str, Expr] = dict(zip(right, point, strict=True)) | {c: axis.var for c, axis in summed.items()}
        factors = [cast(t[tuple(where[c] for c in term)], acc) for t, term in zip(tensors, left, strict=True)]
        value = factors[0]
        for factor in factors[1:]:
            value = value * factor
        return or_identity(te.sum(value, axis=list(summed.values()))) if summed else value

    return (narrow(te.compute(type.shape, element, name="einsum"), type.dtype, "rounded"),)


def _einsum_numpy(arrays: Sequence[Any], attrs: EinsumAttrs) -> tuple[Any, ...]:
    return (np.einsum(attrs.equation, *(wide(a) for a in arrays)).astype(np.asarray(arrays[0]).dtype),)


register(OpDef("einsum", "contraction", EinsumAttrs, _einsum_infer, _einsum_numpy, compute=_einsum_compute))
