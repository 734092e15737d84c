"""Factorisations of small matrices by loops: Cholesky's, LU with partial pivoting, and triangular systems.

Sums are formed in f64 whatever the element type, each element of a factor from one dot product (Golub and Van Loan,
Matrix Computations, 3.2, 3.4, 4.2). The matrices of a batch are independent. Nothing is blocked: for matrices of
hundreds of rows, a library of linear algebra is faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import f64, i32, i64
from tilewright.ir.expr import call, cast, minimum
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import check_kind, dim, present, rank_at_least, same_dim, same_dtype, scalar
from tilewright.ops.loopnest import Nest, buffers
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError

Out = tuple[TensorType, ...]


def _matrix(types: Types, square: bool) -> TensorType:
    t = present(types[0])
    check_kind(t.dtype, ("float",))
    rank_at_least(t, 2)
    if square and not same_dim(t.shape[-1], t.shape[-2]):
        raise ShapeError("the matrices must be square", got=t)
    return t


# --- Cholesky -------------------------------------------------------------------------------------------------------


def _cholesky_infer(types: Types, attrs: Attrs) -> Out:
    """The type rule of Cholesky's factorisation: x [..., n, n] to the lower triangle L with L L^T = x. Only the lower
    triangle of x is read; L is NaN where x is not positive definite."""
    return (_matrix(types, square=True),)


def _cholesky_loops(types: Types, attrs: Attrs, out: Out) -> PrimFunc:
    (x,), (y,) = buffers(types, out)
    assert x is not None
    *lead, n, _ = x.shape
    nest = Nest("cholesky", [x, y])
    with nest.loops("b", lead, parallel=True) as b, nest.loop("i", n) as i, nest.loop("j", n) as j:
        with nest.local("total", f64) as total:
            with nest.when(j > i):
                nest.store(y, (*b, i, j), scalar(0, x.dtype))
            with nest.when(j <= i):
                total.set(cast(x[(*b, i, j)], f64))
                with nest.loop("k", j) as k:
                    total.set(total.value - cast(y[(*b, i, k)], f64) * cast(y[(*b, j, k)], f64))
                with nest.when(j < i):
                    nest.store(y, (*b, i, j), cast(total.value / cast(y[(*b, j, j)], f64), x.dtype))
                with nest.when(call("eq", i, j)):
                    nest.store(y, (*b, i, j), cast(call("sqrt", total.value), x.dtype))
    return nest.finish()


def _cholesky_numpy(arrays: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    array = np.asarray(arrays[0])
    x, y = array.astype(np.float64), np.zeros(array.shape, np.float64)
    with np.errstate(all="ignore"):
        for j in range(x.shape[-1]):
            rest = x[..., j:, j] - np.einsum("...ik,...k->...i", y[..., j:, :j], y[..., j, :j])
            y[..., j:, j] = rest / np.sqrt(rest[..., :1])
            y[..., j, j] = np.sqrt(rest[..., 0])
    return (y.astype(array.dtype),)


register(OpDef("cholesky", "opaque", Attrs, _cholesky_infer, _cholesky_numpy, loops=_cholesky_loops))


# --- LU -------------------------------------------------------------------------------------------------------------


def _lu_infer(types: Types, attrs: Attrs) -> Out:
    """The type rule of LU: x [..., m, n] to both factors in one matrix, without the unit diagonal; LAPACK's pivots
    [..., min(m, n)], counted from 1; and for each row of the product the number of the row of x that it is, [...,
    m]."""
    t = _matrix(types, square=False)
    *lead, m, n = t.shape
    return t, TensorType(i32, (*lead, dim(minimum(m, n)))), TensorType(i64, (*lead, m))


def _lu_loops(types: Types, attrs: Attrs, out: Out) -> PrimFunc:
    """A loop over columns: subtract the contributions of the columns before, select the greatest element below as
    pivot, exchange two rows."""
    (x,), (y, pivots, rows) = buffers(types, out)
    assert x is not None
    *lead, m, n = x.shape
    nest = Nest("lu", [x, y, pivots, rows])
    with nest.loops("b", lead, parallel=True) as b:
        with nest.loop("i0", m) as i:
            nest.store(rows, (*b, i), i)
            with nest.loop("j0", n) as j:
                nest.store(y, (*b, i, j), x[(*b, i, j)])
        with nest.loop("j", n) as j:
            with nest.loop("i", m) as i, nest.local("total", f64) as total:
                total.set(cast(y[(*b, i, j)], f64))
                with nest.loop("k", minimum(i, j)) as k:
                    total.set(total.value - cast(y[(*b, i, k)], f64) * cast(y[(*b, k, j)], f64))
                nest.store(y, (*b, i, j), cast(total.value, x.dtype))
            with nest.when(j < m), nest.local("best", i64) as best, nest.local("size", f64) as size:
                best.set(j)
                size.set(call("abs", cast(y[(*b, j, j)], f64)))
                with nest.loop("p", m) as p, nest.let("found", call("abs", cast(y[(*b, p, j)], f64))) as result:
                    with nest.when((p > j) & (result > size.value)):
                        best.set(p)
                        size.set(result)
                with nest.let("pivot", best.value) as pivot:
                    nest.store(pivots, (*b, j), cast(pivot + 1, i32))
                    with nest.let("row", rows[(*b, pivot)]) as row:
                        nest.store(rows, (*b, pivot), rows[(*b, j)])
                        nest.store(rows, (*b, j), row)
                    with nest.loop("c", n) as c, nest.let("held", y[(*b, pivot, c)]) as held:
                        nest.store(y, (*b, pivot, c), y[(*b, j, c)])
                        nest.store(y, (*b, j, c), held)
                with nest.when(size.value > 0.0), nest.loop("d", m) as d, nest.when(d > j):
                    quotient = cast(y[(*b, d, j)], f64) / cast(y[(*b, j, j)], f64)
                    nest.store(y, (*b, d, j), cast(quotient, x.dtype))
    return nest.finish()


def _lu_numpy(arrays: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    array = np.asarray(arrays[0])
    *lead, m, n = array.shape
    y = array.astype(np.float64).reshape(math.prod(lead), m, n)
    pivots, rows = np.zeros((len(y), min(m, n)), np.int32), np.zeros((len(y), m), np.int64)
    for one, pivot, row in zip(y, pivots, rows, strict=True):
        row[:] = np.arange(m)
        for j in range(min(m, n)):
            p = j + int(np.argmax(np.abs(one[j:, j])))
            pivot[j] = p + 1
            one[[j, p]], row[[j, p]] = one[[p, j]], row[[p, j]]
            if one[j, j]:
                one[j + 1 :, j] /= one[j, j]
            one[j + 1 :, j + 1 :] -= np.outer(one[j + 1 :, j], one[j, j + 1 :])
    return y.reshape(array.shape).astype(array.dtype), pivots.reshape(*lead, min(m, n)), rows.reshape(*lead, m)


register(OpDef("lu", "opaque", Attrs, _lu_infer, _lu_numpy, loops=_lu_loops))


# --- triangular systems ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TriangularAttrs(Attrs):
    """Attributes of a triangular operand: which triangle is read; with `unit` its diagonal counts as ones."""

    upper: bool
    unit: bool = False


def _triangular_infer(types: Types, attrs: TriangularAttrs) -> Out:
    """The type rule of `triangular_solve`: a [..., n, n] and b [..., n, m] to x with a x = b, of b's type."""
    a, b = _matrix(types, square=True), present(types[1])
    same_dtype([a, b])
    if b.rank != a.rank or not all(same_dim(p, q) for p, q in zip(a.shape[:-1], b.shape[:-1], strict=True)):
        raise ShapeError("the right sides do not fit the matrices", expected=a, got=b)
    return (b,)


def _triangular_loops(types: Types, attrs: TriangularAttrs, out: Out) -> PrimFunc:
    (a, right), (x,) = buffers(types, out)
    assert a is not None and right is not None
    *lead, n, m = right.shape
    nest = Nest("triangular_solve", [a, right, x])
    with nest.loops("b", lead, parallel=True) as b, nest.loop("step", n) as step, nest.loop("c", m) as c:
        i = n - 1 - step if attrs.upper else step
        with nest.local("total", f64) as total:
            total.set(cast(right[(*b, i, c)], f64))
            with nest.loop("k", step) as k:
                at = n - 1 - k if attrs.upper else k
                total.set(total.value - cast(a[(*b, i, at)], f64) * cast(x[(*b, at, c)], f64))
            value = total.value if attrs.unit else total.value / cast(a[(*b, i, i)], f64)
            nest.store(x, (*b, i, c), cast(value, right.dtype))
    return nest.finish()


def _triangular_numpy(arrays: Sequence[Any], attrs: TriangularAttrs) -> tuple[Any, ...]:
    a, right = (np.asarray(v).astype(np.float64) for v in arrays)
    x, n = np.zeros_like(right), a.shape[-1]
    with np.errstate(all="ignore"):
        for step in range(n):
            i = n - 1 - step if attrs.upper else step
            known = slice(i + 1, n) if attrs.upper else slice(0, i)
            total = right[..., i, :] - np.einsum("...k,...km->...m", a[..., i, known], x[..., known, :])
            x[..., i, :] = total if attrs.unit else total / a[..., i, i, None]
    return (x.astype(np.asarray(arrays[1]).dtype),)


register(
    OpDef("triangular_solve", "opaque", TriangularAttrs, _triangular_infer, _triangular_numpy, loops=_triangular_loops)
)
