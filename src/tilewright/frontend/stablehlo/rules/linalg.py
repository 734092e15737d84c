"""Cholesky's and LU factorisations and triangular systems: StableHLO's operations, and the routines of LAPACK that JAX
calls for them on CPUs (`jaxlib`'s `lapack_*_ffi`; s is f32, d is f64)."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import rule
from tilewright.ir.dtype import i32, i64
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim


def _transposed(call: Call, x: Value) -> Value:
    rank = x.type.rank
    return call.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


@rule("cholesky")
def cholesky(call: Call) -> Value:
    """The factor of the triangle that `lower` names; the other one is zero."""
    x = call.value(0)
    if call.op.attributes.get("lower", False):
        return call.emit("cholesky", x)
    return _transposed(call, call.emit("cholesky", _transposed(call, x)))


@rule("triangular_solve")
def triangular_solve(call: Call) -> Value:
    said = call.op.attributes
    transposed = said.get("transpose_a", "NO_TRANSPOSE") in ("TRANSPOSE", "ADJOINT")
    return _solved(
        call,
        left=bool(said.get("left_side", False)),
        upper=not said.get("lower", False),
        transposed=transposed,
        unit=bool(said.get("unit_diagonal", False)),
    )


def _solved(call: Call, *, left: bool, upper: bool, transposed: bool, unit: bool) -> Value:
    """The solution x of a triangular system op(a) x = b or, unless `left`, x op(a) = b, where op is the transpose if
    `transposed`; a system of the second form is solved as a transposed system. `a` is an `upper` or lower triangle,
    with ones on its diagonal if `unit`."""
    a, b = call.value(0), call.value(1)
    if left is transposed:
        a, upper = _transposed(call, a), not upper
    x = call.emit("triangular_solve", a, b if left else _transposed(call, b), upper=upper, unit=unit)
    return x if left else _transposed(call, x)


# --- LAPACK ---------------------------------------------------------------------------------------------------------


def _letter(call: Call, name: str) -> str:
    """Setting `name` of a LAPACK routine as a letter, such as "U" of `uplo`; the module states the letter's code."""
    return chr(int(call.fields("mhlo.backend_config").get(name, 0)))


@rule("custom_call.lapack_spotrf_ffi", "custom_call.lapack_dpotrf_ffi")
def potrf(call: Call) -> list[Value]:
    """LAPACK's `potrf`: the Cholesky factor, and the order of the first minor that is not positive; 0 if all are."""
    x, upper = call.value(0), _letter(call, "uplo") == "U"
    y = call.emit("cholesky", _transposed(call, x) if upper else x)
    n, rank = y.shape[-1], y.type.rank
    diagonal = call.emit("eq", call.iota(n, i64, rank, rank - 2), call.iota(n, i64, rank, rank - 1))
    positive = call.emit("gt", y, call.size_like(0, y))
    bad = call.cast(call.emit("and", diagonal, call.emit("not", positive)), i32)
    count = call.emit("reduce_sum", bad, axes=(rank - 2, rank - 1), keepdims=False)
    # From the first such minor on the whole diagonal is NaN.
    first = call.emit("sub", call.size_like(dim(n + 1), count), count)
    one = call.size_like(1, count)
    return [_transposed(call, y) if upper else y, call.emit("mul", first, call.emit("min", count, one))]


@rule("custom_call.lapack_sgetrf_ffi", "custom_call.lapack_dgetrf_ffi")
def getrf(call: Call) -> list[Value]:
    """LU factorisation: (both factors in one matrix, pivots counted from 1, LAPACK's `info`). `info` is always 0, as
    JAX only tests whether it is negative."""
    x = call.value(0)
    both, pivots, _ = call.emit_all("lu", x)
    return [both, pivots, call.broadcast(call.constant(np.zeros((), np.int32)), x.shape[:-2])]


@rule("custom_call.lapack_strsm_ffi", "custom_call.lapack_dtrsm_ffi")
def trsm(call: Call) -> Value:
    return _solved(
        call,
        left=_letter(call, "side") == "L",
        upper=_letter(call, "uplo") == "U",
        transposed=_letter(call, "trans_x") != "N",
        unit=_letter(call, "diag") == "U",
    )
