"""The written-out functions against higher precision: error bounds over all magnitudes, special values."""

from __future__ import annotations

import ctypes
import inspect
import math
import platform
import re
from ctypes.util import find_library
from pathlib import Path

import numpy as np
import pytest

from tests.codegen.llvm.llvm_run import call, native
from tests.transform.math.ulp import (
    COMPOSED,
    RELATIVE_TO_ARGUMENT,
    compiled,
    errors,
    kernel,
    reference,
    sample,
    wide_errors,
    wide_sample,
    worst_of,
)
from tests.transform.math.ulp import N as n
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.dtype import DType, bf16, f16, f32, f64
from tilewright.ir.expr import Buffer, Op, Var, const, maximum, minimum
from tilewright.ir.expr import call as call_op
from tilewright.ir.loops import For, PrimFunc, Store
from tilewright.ir.rewrite import exprs_of, walk, walk_expr
from tilewright.targets.target import Target
from tilewright.transform.math.expand import (
    ACCURACY,
    ACCURACY_DOUBLE,
    DOUBLE,
    NONPOSITIVE,
    NONPOSITIVE_DOUBLE,
    OF_ARGUMENT,
    OF_ARGUMENT_DOUBLE,
    SINGLE,
    TABLES,
    expand,
    expand_math,
)
from tilewright.transform.math.parts import fma, greatest, polynomial, single


def evaluate(name: str, *x: np.ndarray, dtype: DType = f32) -> np.ndarray:
    return compiled(name, len(x), dtype)(*x)


WAYS = ("host", "x86-64-v3") if Target.host().isa.tables else ("host",)
"""Targets of which this machine can run the code, one for each way in which functions are written out."""


def test_every_function_states_its_error() -> None:
    assert ACCURACY.keys() | NONPOSITIVE.keys() | OF_ARGUMENT.keys() == SINGLE.keys()
    assert ACCURACY_DOUBLE.keys() | NONPOSITIVE_DOUBLE.keys() | OF_ARGUMENT_DOUBLE.keys() == DOUBLE.keys()


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", [x for x in {**ACCURACY, **COMPOSED} if x != "pow"])
def test_error_bound(name: str) -> None:
    """`make ulp` does the same for every f32 there is."""
    worst = worst_of(name, [sample()])
    assert worst.error <= {**ACCURACY, **COMPOSED}[name], f"{name}: {worst}"


@pytest.mark.parametrize("target", WAYS[1:])
@pytest.mark.parametrize("name", [name for name in TABLES if name in ACCURACY])
def test_error_bound_without_tables(name: str, target: str) -> None:
    worst = worst_of(name, [sample()], target=Target.parse(target))
    assert worst.error <= ACCURACY[name], f"{name}: {worst}"


@pytest.mark.parametrize("target", WAYS)
@pytest.mark.parametrize("name", NONPOSITIVE)
def test_error_bound_of_functions_of_what_is_not_positive(name: str, target: str) -> None:
    x = sample()
    x = x[~(x > 0)]
    base, slope = NONPOSITIVE[name]
    got = compiled(name, target=Target.parse(target))(x)
    with np.errstate(all="ignore"):
        error = errors(got, np.where(got == 0, 0, reference(name)(x.astype(np.float64))))
    bound = base + slope * np.where(x > -104, np.abs(x), 0)
    assert np.all(got[x < -87] == 0) and np.all(got[x > -86.9] > 0)
    assert np.all((error <= bound) | np.isnan(bound)), x[error > bound][:10]
    assert np.array_equal(np.isnan(got), np.isnan(x)) and np.all(got[np.isneginf(x)] == 0)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no type is wider than f64 here")
@pytest.mark.parametrize("name", NONPOSITIVE_DOUBLE)
def test_error_bound_of_such_functions_of_double(name: str) -> None:
    x = wide_sample()
    x = x[~(x > 0)]
    got = compiled(name, 1, f64)(x)
    with np.errstate(all="ignore"):
        error = wide_errors(got, np.where(got == 0, 0, reference(name)(x.astype(np.longdouble))))
    assert np.all(got[x < -709] == 0) and np.all(got[x > -708] > 0)
    assert np.max(error) <= NONPOSITIVE_DOUBLE[name][0]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags are those of x86-64's MXCSR")
@pytest.mark.parametrize("type", [f32, f64])
@pytest.mark.parametrize("target", WAYS)
@pytest.mark.parametrize("name", ["exp", "exp2", "exp_nonpositive"])
def test_what_vanishes_underflows_nowhere(name: str, target: str, type: DType) -> None:
    """A core takes some hundred cycles for a vector in which a result underflows: what a mask moved far down, or to
    minus infinity, has to be zero without."""
    function, libm, underflow = compiled(name, 1, type, Target.parse(target)), ctypes.CDLL(find_library("m")), 0x10
    x = np.array([-1100, -5000, -1e9, -1e30, -np.inf, 0, -1, -80], type.numpy)
    if type is f32:
        x = np.concatenate([x, np.arange(-300, -151, 0.25, np.float32)])
    if name == "exp_nonpositive":
        x = np.concatenate([x, np.linspace(-900, -1, 5000).astype(type.numpy)])
    libm.feclearexcept(underflow)
    got = function(x)
    assert not libm.fetestexcept(underflow)
    assert np.all(got[x < (-1075 if type is f64 else -151)] == 0) and np.all(got[x > -80.5] > 0)


def test_a_last_factor_of_one_is_an_addition() -> None:
    x = Buffer("x", f32, (1,))[0]
    assert polynomial(x, [3.0, 2.0, 1.0]) == fma(x + 2.0, x, single(3.0))


def test_tables_stand_in_registers() -> None:
    for name in TABLES:
        wide, narrow = (
            assembly(emit_llvm(kernel(name, 1, target=target), target), target)
            for target in map(Target.parse, ("znver4", "haswell"))
        )
        assert re.search("vperm(ps|d)", wide) and "gather" not in wide
        scaling = re.findall(r"vscalefps.*", wide)
        assert bool(scaling) == name.startswith("exp")  # sigmoid's exponential stays normal
        assert all("{z}" in line for line in scaling)  # what vanishes is left out
        assert "perm" not in narrow and "gather" not in narrow and "call" not in narrow


@pytest.mark.costly(2)
@pytest.mark.parametrize("target", WAYS)
@pytest.mark.parametrize("name", RELATIVE_TO_ARGUMENT)
def test_error_of_activations_that_cancel(name: str, target: str) -> None:
    function = compiled(name, target=Target.parse(target))
    x = sample()
    x = x[(np.abs(x) < 1e18) & (np.abs(x) > 1e-30)]
    error = np.abs(function(x) - reference(name)(x.astype(np.float64))) / np.abs(x)
    assert np.max(error) <= RELATIVE_TO_ARGUMENT[name]
    assert np.array_equal(function(np.array([np.inf, 200, -200, 0], np.float32)), [np.inf, 200, 0, 0])


def test_the_document_states_the_errors() -> None:
    text = (Path(__file__).parents[3] / "docs" / "accuracy.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, re.MULTILINE))
    for name in {**ACCURACY, **COMPOSED}:
        double = f"{ACCURACY_DOUBLE[name]:g}" if name in DOUBLE else "C library" if name in SINGLE else None
        stated = f"{ {**ACCURACY, **COMPOSED}[name]:g}"
        assert rows[name] == stated, name
        assert double is None or f"| `{name}` | {stated} | {double} |" in text, name


@pytest.mark.daily(4)
@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no type is wider than f64 here")
@pytest.mark.parametrize("name", ACCURACY_DOUBLE)
def test_error_bound_of_double(name: str) -> None:
    worst = worst_of(name, [wide_sample()], f64)
    assert worst.error <= ACCURACY_DOUBLE[name], f"{name}: {worst}"


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no type is wider than f64 here")
def test_gelu_of_double() -> None:
    x = np.concatenate([np.linspace(-12, 12, 10_001), np.geomspace(1e-300, 1e300, 2001)])
    wide = x.astype(np.longdouble)
    inner = np.sqrt(2 / np.longdouble("3.14159265358979323846")) * (wide + np.longdouble("0.044715") * wide**3)
    erf = np.array([math.erf(v) for v in (x * math.sqrt(0.5)).tolist()])
    for name, function in (("gelu", erf), ("gelu_tanh", np.tanh(inner))):
        error = np.abs(evaluate(name, x, dtype=f64) - wide * (1 + function) / 2) / np.maximum(np.abs(wide), 1e-300)
        assert np.max(error) <= OF_ARGUMENT_DOUBLE[name], name


def test_exponential_of_what_is_bounded() -> None:
    """exp(min(x, 0)) takes fewer operations than exp(x), and is as exact down to the last denormal."""
    i = Var("i")
    a, b = Buffer("a", f32, (n,)), Buffer("b", f32, (n,))
    low = minimum(a[i], single(0.0))
    short, general = (expand_math(PrimFunc("f", (a, b), For(i, n, Store(b, (i,), call_op("exp", x)), "vectorized")))
                      for x in (low, a[i]))  # fmt: skip
    count = [sum(isinstance(e, Op) for s in walk(f.body) for x in exprs_of(s) for e in walk_expr(x))
             for f in (short, general)]  # fmt: skip
    assert count[0] < count[1]
    x = sample()
    out = np.zeros_like(x)
    call(native(short), [x, out], [x.size])
    with np.errstate(all="ignore"):
        assert np.max(errors(out, np.exp(np.minimum(x, 0).astype(np.float64)))) <= ACCURACY["exp"]


def test_greatest_value() -> None:
    x = Var("x", f32)
    size = call_op("abs", x)
    assert greatest(x) == np.inf and greatest(-size) == 0
    assert greatest(minimum(maximum(x, single(-1.0)), single(3.0))) == 3
    assert greatest(-maximum(x, single(-1.0))) == 1 and greatest(maximum(-size, single(2.0))) == 2
    assert greatest(-minimum(size, single(2.0))) == 0


def test_power() -> None:
    rng = np.random.default_rng(2)
    base = np.concatenate([np.exp(rng.uniform(-30, 30, 100_000)), rng.uniform(0.5, 2, 100_000), sample()[:100_000]])
    exponent = np.concatenate(
        [rng.uniform(-4, 4, 100_000), rng.uniform(-120, 120, 100_000), rng.uniform(-3, 3, 100_000)]
    )
    x, y = base.astype(np.float32), exponent.astype(np.float32)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    assert np.nanmax(errors(evaluate("pow", x, y), want)) <= 1


def test_power_of_specials() -> None:
    special = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1e-40, 1e30, np.inf, -np.inf, np.nan, 16777217.0]
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(evaluate("pow", x, y), want)


def remainders(dtype: DType) -> list[tuple[np.ndarray, np.ndarray]]:
    """Numbers of all magnitudes, quotients up to where one product no longer tells, multiples and their neighbours,
    subnormal numbers, and all pairs of special values."""
    rng, kind, digits, count = np.random.default_rng(5), dtype.numpy.type, 23 if dtype is f32 else 52, 50_003
    some = lambda scale=1.0: (rng.standard_normal(count) * scale).astype(kind)  # noqa: E731
    word = np.uint32 if dtype is f32 else np.uint64
    anything = [rng.integers(0, np.iinfo(word).max, count, word, endpoint=True).view(kind) for _ in range(2)]
    small, y = np.finfo(kind).smallest_subnormal, some()
    multiples = np.floor(np.exp2(rng.uniform(0, digits, count))).astype(kind) * y
    least = [(rng.integers(-most, most, count) * small).astype(kind) for most in (1000, 50)]
    special = np.array([0.0, 1.0, 3.5, np.inf, np.nan, small, np.finfo(kind).tiny, np.finfo(kind).max, 2.0**digits])
    signed = np.concatenate([special, -special]).astype(kind)
    pairs = [np.resize(a, count) for a in np.meshgrid(signed, signed)]
    with np.errstate(all="ignore"):
        rounded = [np.nextafter(multiples, kind(end * np.inf)) for end in (-1, 1)]
    return [
        (anything[0], anything[1]),
        (some(10.0), y),
        (some(2.0**digits), y),
        *((x, y) for x in (multiples, *rounded)),
        (np.nextafter(y, kind(0)), y),
        (least[0], least[1]),
        (some(float(np.finfo(kind).tiny)), least[1]),
        (least[0], some(float(np.finfo(kind).tiny))),
        (pairs[0], pairs[1]),
    ]


@pytest.mark.daily(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_remainders_are_exact(dtype: DType, way: str) -> None:
    """Bit for bit those of C, signs of zeros too."""
    word = np.uint32 if dtype is f32 else np.uint64
    function = compiled("fmod", 2, dtype, Target.parse(way) if way != "host" else None)
    for x, y in remainders(dtype):
        with np.errstate(all="ignore"):
            want = np.fmod(x, y)
        result = function(x, y)
        assert (np.isnan(want) & np.isnan(result) | (want.view(word) == result.view(word))).all()


def test_only_great_quotients_take_the_library() -> None:
    """A vector of usual numbers is divided as one."""
    nodes = [e for s in walk(kernel("fmod", 2).body) for x in exprs_of(s) for e in walk_expr(x) if isinstance(e, Op)]
    (remainder,) = {e for e in nodes if e.name == "fmod"}
    assert any(e.name == "select" and e.args[2] is remainder for e in nodes)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", ["expm1", "log1p", "tanh", "sin", "tan", "erf"])
def test_sign_of_zero(name: str, dtype: DType) -> None:
    got = evaluate(name, np.array([0.0, -0.0], dtype.numpy), dtype=dtype)
    assert not got.any() and np.signbit(got).tolist() == [False, True]


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_one_great_argument_among_small_ones(name: str, dtype: DType) -> None:
    """Lanes that need the long way do not disturb the others."""
    x = np.linspace(-3, 3, 61).astype(dtype.numpy)
    usual = evaluate(name, x, dtype=dtype)
    for k, value in ((5, 1e9), (33, np.inf), (60, np.nan)):
        x[k] = value
    got = evaluate(name, x, dtype=dtype)
    changed = [5, 33, 60]
    assert np.array_equal(np.delete(got, changed), np.delete(usual, changed))
    assert np.isnan(got[changed]).tolist() == [False, True, True]


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("name", ["tanh", "exp", "log"])
def test_narrow_floats_round_once(name: str, dtype: DType) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    with np.errstate(all="ignore"):
        want = reference(name)(x.astype(np.float64)).astype(np.float32).astype(dtype.numpy)
    got = evaluate(name, x, dtype=dtype)
    different = (got != want) & ~(np.isnan(got.astype(np.float32)) & np.isnan(want.astype(np.float32)))
    assert different.mean() < 1e-3


@pytest.mark.parametrize("dtype", [f16, f32, f64])
def test_nothing_is_left_to_the_c_library(dtype: DType) -> None:
    table = DOUBLE if dtype is f64 else SINGLE
    outer = {"sin", "cos", "tan"} if dtype is f64 else set()  # of great arguments, which it reduces
    for name, function in table.items():
        arity = len(inspect.signature(function).parameters)
        inputs = tuple(Var(f"x{k}", dtype) for k in range(arity))
        left = {e.name for e in walk_expr(expand(Op(name, inputs))) if isinstance(e, Op)}
        assert not left & table.keys() - outer, name


def test_constant_powers() -> None:
    i = Var("i")
    a, b = Buffer("a", f32, (n,)), Buffer("b", f32, (n,))
    y = np.random.default_rng(0).lognormal(size=1000).astype(np.float32)
    exactly = {1.0: y, 2.0: y * y, 3.0: y * y * y, -1.0: 1 / y, 0.5: np.sqrt(y)}
    for exponent in exactly:
        func = PrimFunc("f", (a, b), For(i, n, Store(b, (i,), Op("pow", (a[i], const(exponent, f32)))), "vectorized"))
        expanded = expand_math(func)
        nodes = [e for s in walk(expanded.body) for x in exprs_of(s) for e in walk_expr(x)]
        assert not any(isinstance(e, Op) and e.name == "pow" for e in nodes)
        x = np.array([2.0, -0.0, 0.0, np.inf, np.nan, 0.3, -3.0 if exponent != 0.5 else 3.0], np.float32)
        out = np.zeros_like(x)
        call(native(expanded), [x, out], [x.size])
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(out, np.power(x.astype(np.float64), exponent).astype(np.float32), rtol=2e-7)
        out = np.zeros_like(y)
        call(native(expanded), [y, out], [y.size])
        np.testing.assert_array_equal(out, exactly[exponent])
