"""Rules for linear algebra: determinants, inverses and solutions from three factorisations.

Eager PyTorch raises an error for matrices that are singular or not positive definite. Here the results are infinite or
NaN, and operators with an `info` result return it.
"""

from __future__ import annotations

from typing import Any

from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.frontend.torch.rules.strided import diagonal
from tilewright.ir.dtype import i32, i64
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import Value
from tilewright.ops.dims import broadcast_shapes


def _transposed(n: Call, x: Value) -> Value:
    rank = x.type.rank
    return n.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def _solved(n: Call, a: Value, b: Value, *, upper: bool, unit: bool = False) -> Value:
    """The solution x of a x = b for `a`, an `upper` or lower triangle, with ones on the diagonal if `unit`; its batch
    dimensions are broadcast with the ones of `b`."""
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = n.broadcast(a, (*lead, *a.shape[-2:])), n.broadcast(b, (*lead, *b.shape[-2:]))
    return n.emit("triangular_solve", a, b, upper=upper, unit=unit)


def _first_bad(n: Call, bad: Value) -> Value:
    """LAPACK's `info`, i32: the position, from 1, of the first true entry of `bad` along the last axis; 0 if there is
    none."""
    if as_int(bad.shape[-1]) == 0:
        return n.filled(0, i32, bad.shape[:-1])
    axis = bad.type.rank - 1
    flags = n.cast(bad, i32)
    place = n.cast(n.emit("argmax", flags, axis=axis, keepdims=False, select_last_index=False), i32)
    some = n.emit("reduce_max", flags, axes=(axis,), keepdims=False)
    return n.emit("mul", n.emit("add", place, n.like(1, place)), some)


# --- Cholesky -------------------------------------------------------------------------------------------------------


@rule("linalg_cholesky", "cholesky", "linalg_cholesky_ex")
def cholesky(n: Call, x: Value, upper: bool = False, check_errors: bool = False) -> Any:
    """The lower Cholesky factor of `x`, computed from the lower triangle; with `upper`, from the upper triangle and
    transposed. For `cholesky_ex` it is [the factor, which row fails first]; `check_errors` has no effect."""
    y = n.emit("cholesky", _transposed(n, x) if upper else x)
    result = _transposed(n, y) if upper else y
    if not n.name.endswith("_ex"):
        return result
    middle = diagonal(n, y, 0, -2, -1)
    return [result, _first_bad(n, n.emit("not", n.emit("gt", middle, n.like(0, middle))))]


@rule("cholesky_solve")
def cholesky_solve(n: Call, b: Value, factor: Value, upper: bool = False) -> Value:
    lower = _transposed(n, factor) if upper else factor
    half = _solved(n, lower, b, upper=False)
    return _solved(n, _transposed(n, lower), half, upper=True)


@rule("cholesky_inverse")
def cholesky_inverse(n: Call, factor: Value, upper: bool = False) -> Value:
    return cholesky_solve(n, _identity(n, factor), factor, upper)


def _identity(n: Call, x: Value) -> Value:
    size = x.shape[-1]
    return n.broadcast(n.emit("eye", rows=size, columns=size, k=0, dtype=x.dtype), x.shape)


# --- LU -------------------------------------------------------------------------------------------------------------


@rule("linalg_lu_factor", "linalg_lu_factor_ex")
def lu_factor(n: Call, x: Value, *, pivot: bool = True, check_errors: bool = False) -> list[Value]:
    if not pivot:
        raise n.unsupported("without pivots")
    both, pivots, _ = n.emit_all("lu", x)
    zero = _zero_pivot(n, both)
    return [both, pivots, zero]


def _zero_pivot(n: Call, both: Value) -> Value:
    middle = diagonal(n, both, 0, -2, -1)
    return _first_bad(n, n.emit("eq", middle, n.like(0, middle)))


def _permuted(n: Call, b: Value, rows: Value) -> Value:
    """The matrices `b` with their rows permuted by `rows`."""
    lead = broadcast_shapes(b.shape[:-2], rows.shape[:-1])
    shape = (*lead, *b.shape[-2:])
    places = n.reshape(rows, (*rows.shape, 1))
    return n.emit("gather_elements", n.broadcast(b, shape), n.broadcast(places, shape), axis=len(shape) - 2)


def _solution(n: Call, a: Value, b: Value) -> tuple[Value, Value, Value]:
    """(x with a x = b, LU factors of `a` in one matrix, pivots)."""
    both, pivots, rows = n.emit_all("lu", a)
    if as_int(b.type.size) == 0:
        lead = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return n.filled(0, b.dtype, (*lead, *b.shape[-2:])), both, pivots
    half = _solved(n, both, _permuted(n, b, rows), upper=False, unit=True)
    return _solved(n, both, half, upper=True), both, pivots


@rule("linalg_inv", "inverse", "linalg_inv_ex")
def inverse(n: Call, x: Value, *, check_errors: bool = False) -> Any:
    result, both, _ = _solution(n, x, _identity(n, x))
    return [result, _zero_pivot(n, both)] if n.name.endswith("_ex") else result


@rule("linalg_solve", "linalg_solve_ex", "_linalg_solve_ex")
def solve(n: Call, a: Value, b: Value, *, left: bool = True, check_errors: bool = False) -> Any:
    """Solve a x = b, or with `left` false x a = b by the transposed system. A vector b is treated as one column."""
    vector = b.type.rank == 1 or (b.type.rank == a.type.rank - 1 and _same_shape(b.shape, a.shape[:-1]))
    right = n.reshape(b, (*b.shape, 1)) if vector else b
    matrix = a if left else _transposed(n, a)
    right = right if left or vector else _transposed(n, right)
    x, both, pivots = _solution(n, matrix, right)
    x = x if left or vector else _transposed(n, x)
    x = n.reshape(x, x.shape[:-1]) if vector else x
    zero = _zero_pivot(n, both)
    match n.name:
        case "aten.linalg_solve":
            return x
        case "aten.linalg_solve_ex":
            return [x, zero]
    if not left and n.read & {1, 2}:
        raise n.unsupported("from the right with its factors")
    return [x, both, pivots, zero]


def _same_shape(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> bool:
    return len(a) == len(b) and all(p is q or as_int(p) == as_int(q) is not None for p, q in zip(a, b, strict=True))


def _sign(n: Call, pivots: Value, both: Value) -> Value:
    """The sign of the permutation that `pivots` describe, in the type of `both`: -1 for an odd number of row
    exchanges."""
    places = n.emit("range", start=1, step=1, size=pivots.shape[-1], dtype=i32)
    moved = n.cast(n.emit("ne", pivots, places), both.dtype)
    signs = n.emit("sub", n.like(1, moved), n.emit("mul", n.like(2, moved), moved))
    return n.emit("reduce_prod", signs, axes=(signs.type.rank - 1,), keepdims=False)


@rule("linalg_det", "det", "_linalg_det")
def determinant(n: Call, x: Value) -> Any:
    both, pivots, _ = n.emit_all("lu", x)
    middle = diagonal(n, both, 0, -2, -1)
    product = n.emit("reduce_prod", middle, axes=(middle.type.rank - 1,), keepdims=False)
    result = n.emit("mul", product, _sign(n, pivots, both))
    return [result, both, pivots] if n.name == "aten._linalg_det" else result


@rule("linalg_slogdet", "slogdet", "_linalg_slogdet", "logdet")
def log_determinant(n: Call, x: Value) -> Any:
    """The sign and the logarithm of the absolute value of a determinant."""
    both, pivots, _ = n.emit_all("lu", x)
    middle = diagonal(n, both, 0, -2, -1)
    axes = {"axes": (middle.type.rank - 1,), "keepdims": False}
    size = n.emit("reduce_sum", n.emit("log", n.emit("abs", middle)), **axes)
    sign = n.emit("mul", n.emit("reduce_prod", n.emit("sign", middle), **axes), _sign(n, pivots, both))
    if n.name == "aten.logdet":
        below = n.emit("lt", sign, n.like(0, sign))
        return n.emit("select", below, n.like(float("nan"), size), size)
    return [sign, size, both, pivots] if n.name == "aten._linalg_slogdet" else [sign, size]


# --- triangular systems ---------------------------------------------------------------------------------------------


@rule("linalg_solve_triangular")
def solve_triangular(
    n: Call, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    if left:
        return _solved(n, a, b, upper=upper, unit=unitriangular)
    x = _solved(n, _transposed(n, a), _transposed(n, b), upper=not upper, unit=unitriangular)
    return _transposed(n, x)


@rule("triangular_solve")
def triangular_solve(
    n: Call, b: Value, a: Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> list[Value]:
    """The solution x of `a` x = `b` for `a`, an `upper` or lower triangle, with ones on the diagonal if `unitriangular`
    (with `transpose`, for its transpose), and `a` itself, as PyTorch returns both."""
    matrix = _transposed(n, a) if transpose else a
    x = _solved(n, matrix, b, upper=upper is not transpose, unit=unitriangular)
    return [x, n.broadcast(a, (*x.shape[:-2], *a.shape[-2:]))]


@rule("linalg_lu_solve")
def lu_solve(n: Call, both: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False) -> Value:
    """The solution of linear systems with right sides `b` from their LU factors `both`; `pivots`, PyTorch's list of row
    exchanges, becomes a permutation first."""
    if not left or adjoint:
        raise n.unsupported("from the right, or transposed")
    return _solved(n, both, _solved(n, both, _permuted(n, b, _order(n, pivots)), upper=False, unit=True), upper=True)


def _order(n: Call, pivots: Value) -> Value:
    """The permutation that the row exchanges `pivots`, in order, amount to."""
    count = as_int(pivots.shape[-1])
    if count is None or count > 16:
        raise n.unsupported("of more than 16 rows, by pivots")
    axis = pivots.type.rank - 1
    shape = pivots.shape
    order = n.broadcast(n.emit("range", start=0, step=1, size=count, dtype=i64), shape)
    for k in range(count):
        pivot = n.emit("sub", n.cast(n.slice(pivots, axis, k, 1), i64), n.constant(1, i64))
        here = n.slice(order, axis, k, 1)
        there = n.emit("gather_elements", order, pivot, axis=axis)
        places = n.emit("range", start=0, step=1, size=count, dtype=i64)
        order = n.emit("select", n.emit("eq", places, pivot), here, order)
        order = n.emit("select", n.emit("eq", places, n.constant(k, i64)), there, order)
    return order
