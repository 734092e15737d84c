"""The written-out functions against double precision: error bounds over all magnitudes, special values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.codegen.llvm_run import call, native
from tilewright.ir.dtype import DType, bf16, f16, f32
from tilewright.ir.expr import Buffer, Op, Var, const
from tilewright.ir.loops import For, PrimFunc, Store
from tilewright.ir.rewrite import exprs_of, walk, walk_expr
from tilewright.transform.loops.math import EXPANSIONS, expand_math

n = Var("n", lo=0)


def kernel(name: str, arity: int, dtype: DType = f32) -> PrimFunc:
    i = Var("i")
    inputs = [Buffer(f"x{k}", dtype, (n,)) for k in range(arity)]
    out = Buffer("out", dtype, (n,))
    body = For(i, n, Store(out, (i,), Op(name, tuple(b[i] for b in inputs))), "vectorized")
    return expand_math(PrimFunc(name, (*inputs, out), body))


def evaluate(name: str, *x: np.ndarray, dtype: DType = f32) -> np.ndarray:
    out = np.zeros_like(x[0])
    call(native(kernel(name, len(x), dtype)), [*x, out], [x[0].size])
    return out


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(v) for v in x])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


REFERENCE = {"erf": _erf, "sigmoid": _sigmoid} | {
    name: getattr(np, {"pow": "power"}.get(name, name)) for name in EXPANSIONS if name not in ("erf", "sigmoid")
}
BOUND = {"tanh": 3, "sigmoid": 3, "tan": 4, "exp": 1, "exp2": 1, "pow": 1}


def error_in_ulp(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance from the real value in units of the last place of the f32 next to it; 0 where both are not finite."""
    with np.errstate(all="ignore"):
        nearest = want.astype(np.float32)
        same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
        unit = np.spacing(np.abs(nearest)).astype(np.float64)
        return np.where(same, 0.0, np.abs(got.astype(np.float64) - want) / unit)


def arguments() -> np.ndarray:
    """Every magnitude with both signs, and the ranges where the functions bend densely."""
    rng = np.random.default_rng(1)
    bits = np.arange(0, 0x7F800000, 9973, dtype=np.uint32).view(np.float32)
    near = [rng.uniform(-w, w, 60_000) for w in (1.0, 4.0, 20.0, 110.0, 1000.0)]
    special = [0.0, 1.0, 2.0, 0.5, 88.72, 88.73, -87.33, -103.9, -104.1, 1e-45, 1e-38, 3e38, np.inf, np.nan]
    every = np.concatenate([bits, *near, 1 + rng.uniform(-1e-3, 1e-3, 20_000), special]).astype(np.float32)
    return np.concatenate([every, -every])


@pytest.mark.parametrize("name", [x for x in EXPANSIONS if x != "pow"])
def test_error_bound(name: str) -> None:
    x = arguments()
    if name == "erf":
        x = x[::4].copy()
    if name in ("sin", "cos", "tan"):
        x = x[~(np.abs(x) >= 2.0**50)]
    got = evaluate(name, x)
    with np.errstate(all="ignore"):
        want = REFERENCE[name](x.astype(np.float64))
    if name == "sigmoid":
        got, want, x = (a[~(x < -87.3)] for a in (got, want, x))
    error = error_in_ulp(got, want)
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    assert error[worst] <= BOUND.get(name, 2), f"{name}({x[worst]!r}) = {got[worst]!r}, not {want[worst]!r}"


def test_power() -> None:
    rng = np.random.default_rng(2)
    base = np.concatenate([np.exp(rng.uniform(-30, 30, 100_000)), rng.uniform(0.5, 2, 100_000), arguments()[:100_000]])
    exponent = np.concatenate(
        [rng.uniform(-4, 4, 100_000), rng.uniform(-120, 120, 100_000), rng.uniform(-3, 3, 100_000)]
    )
    x, y = base.astype(np.float32), exponent.astype(np.float32)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    assert np.nanmax(error_in_ulp(evaluate("pow", x, y), want)) <= 1


def test_power_of_specials() -> None:
    special = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1e-40, 1e30, np.inf, -np.inf, np.nan, 16777217.0]
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(evaluate("pow", x, y), want)


@pytest.mark.parametrize("name", ["exp", "expm1", "tanh", "sin", "tan", "erf"])
def test_sign_of_zero(name: str) -> None:
    got = evaluate(name, np.array([0.0, -0.0], np.float32))
    if name != "exp":
        assert not got.any()
    if name in ("tanh", "sin", "tan", "erf"):
        assert np.signbit(got).tolist() == [False, True]


def test_beyond_the_range_of_reduction() -> None:
    huge = np.array([2.0**60, 3e38], np.float32)
    assert evaluate("sin", huge).tolist() == [0, 0]
    assert evaluate("cos", huge).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("name", ["tanh", "exp", "log"])
def test_narrow_floats_round_once(name: str, dtype: DType) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    with np.errstate(all="ignore"):
        want = REFERENCE[name](x.astype(np.float64)).astype(np.float32).astype(dtype.numpy)
    got = evaluate(name, x, dtype=dtype)
    different = (got != want) & ~(np.isnan(got.astype(np.float32)) & np.isnan(want.astype(np.float32)))
    assert different.mean() < 1e-3


def test_constant_powers() -> None:
    i = Var("i")
    a, b = Buffer("a", f32, (n,)), Buffer("b", f32, (n,))
    for exponent in (1.0, 2.0, 3.0, -1.0, 0.5):
        func = PrimFunc("f", (a, b), For(i, n, Store(b, (i,), Op("pow", (a[i], const(exponent, f32)))), "vectorized"))
        expanded = expand_math(func)
        nodes = [e for s in walk(expanded.body) for x in exprs_of(s) for e in walk_expr(x)]
        assert not any(isinstance(e, Op) and e.name == "pow" for e in nodes)
        x = np.array([2.0, -0.0, 0.0, np.inf, np.nan, 0.3, -3.0 if exponent != 0.5 else 3.0], np.float32)
        out = np.zeros_like(x)
        call(native(expanded), [x, out], [x.size])
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(out, np.power(x.astype(np.float64), exponent).astype(np.float32), rtol=2e-7)
