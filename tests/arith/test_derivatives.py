"""Derivatives of scalar expressions: every operator's against differences, corners by hand, both modes alike."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import numpy as np
import pytest

from tests.arith.evaluate import evaluate
from tilewright.arith.adjoint import adjoints
from tilewright.arith.derivative import RULES, STEPS, derivative
from tilewright.ir.dtype import boolean, f32, f64, i64
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var, call, cast, const, is_const, select
from tilewright.ir.scalar_ops import OPS
from tilewright.support.errors import UnsupportedError

X, Y, Z = (Var(n, f64) for n in "xyz")
G = Var("g", f64)
STEP = 1e-6
POINTS = {
    "log": (0.3, 2.5), "log2": (0.3, 2.5), "log1p": (-0.6, 2.5), "sqrt": (0.3, 2.5), "rsqrt": (0.3, 2.5),
    "arcsin": (-0.7, 0.4), "arccos": (-0.7, 0.4), "arctanh": (-0.7, 0.4), "arccosh": (1.4, 3.0),
    "exp_nonpositive": (-2.5, -0.3),
}  # fmt: skip
"""Where an operator is not defined everywhere."""


def number(e: Expr, values: Mapping[Var, float]) -> float:
    return float(evaluate(e, values))


def slope(e: Expr, x: Var, values: Mapping[Var, float]) -> float:
    """The central difference."""
    return (number(e, {**values, x: values[x] + STEP}) - number(e, {**values, x: values[x] - STEP})) / (2 * STEP)


def check(e: Expr, values: Mapping[Var, float], rel: float = 1e-6) -> None:
    """Both modes against differences, by each variable."""
    result = adjoints(e, G, list(values))
    for x in values:
        want = slope(e, x, values)
        assert number(derivative(e, x), values) == pytest.approx(want, rel=rel, abs=1e-7), (e, x)
        back = number(result[x], {**values, G: 3.0}) if x in result else 0.0
        assert back == pytest.approx(3 * want, rel=rel, abs=1e-6), (e, x)


@pytest.mark.parametrize("name", [n for n in RULES if OPS[n].arity == 1])
def test_functions_of_one_number(name: str) -> None:
    for at in POINTS.get(name, (-1.3, 0.45, 2.1)):
        check(call(name, X), {X: at})


BINARY = [(1.3, 0.4), (-0.7, 1.9), (2.2, -1.5), (-2.5, -0.6), (0.8, 2.6)]


@pytest.mark.parametrize("name", [n for n in RULES if OPS[n].arity == 2 and n not in ("pow", "scaleb")])
def test_functions_of_two_numbers(name: str) -> None:
    for a, b in BINARY:
        check(call(name, X, Y), {X: a, Y: b})


def test_products_and_sums_powers_and_scales() -> None:
    check(call("fma", X, Y, Z), {X: 1.3, Y: -0.4, Z: 0.9})
    for a, b in ((1.3, 0.4), (0.6, -1.7), (2.5, 3.0), (0.2, 0.5)):
        check(call("pow", X, Y), {X: a, Y: b})
    for n in (-2.0, 0.0, 3.5):
        values = {X: 1.3, Y: n}
        e = call("scaleb", X, Y)
        assert number(derivative(e, X), values) == 2.0 ** math.floor(n) and is_const(derivative(e, Y), 0)


def at(e: Expr, **values: float) -> float:
    with np.errstate(all="ignore"):
        return number(e, {Var(n, f64): x for n, x in values.items()})


def test_corners() -> None:
    """The choices of PyTorch: halves where two are equal, nothing at the corner of abs, no NaN of powers at zero."""
    for name in ("min", "max", "larger"):
        e = call(name, X, Y)
        assert at(derivative(e, X), x=1.5, y=1.5) == at(derivative(e, Y), x=1.5, y=1.5) == 0.5
    assert [at(derivative(call("abs", X), X), x=x) for x in (-2.0, 0.0, 0.5)] == [-1, 0, 1]
    power = call("pow", X, Y)
    assert at(derivative(power, X), x=0.0, y=0.0) == 0.0 and at(derivative(power, X), x=0.0, y=1.0) == 1.0
    assert at(derivative(power, X), x=-2.0, y=3.0) == 12.0
    assert at(derivative(power, Y), x=0.0, y=0.0) == 0.0 and at(derivative(power, Y), x=0.0, y=2.0) == 0.0
    assert math.isnan(at(derivative(power, Y), x=-1.0, y=2.0))  # a negative base has no logarithm
    assert at(derivative(power, Y), x=0.0, y=-1.0) == -math.inf
    angle = call("atan2", X, Y)  # nothing where the squares of both vanish
    for x, y in ((0.0, 0.0), (0.0, -0.0), (1e-170, 1e-170), (-1e-200, 0.0)):
        assert at(derivative(angle, X), x=x, y=y) == at(derivative(angle, Y), x=x, y=y) == 0.0
    assert at(derivative(angle, X), x=0.0, y=-1e-100) == pytest.approx(-1e100, rel=1e-14)


def test_what_has_no_slope() -> None:
    flat = [call(name, X) for name in sorted(STEPS)]
    flat += [const(2.0, f64), Y, Load(Buffer("a", f64, (const(4),)), (cast(X, i64),))]
    flat += [select(X > Y, Y, const(1.0, f64)), cast(cast(X, i64), f64), cast(Y, f64) + Y]
    table = tuple(const(v, f64) for v in (1.0, 5.0))
    flat.append(Op("lookup", (cast(X, i64), *table)))
    for e in flat:
        assert is_const(derivative(e, X), 0) and derivative(e, X).dtype is e.dtype, e
        assert X not in adjoints(e, G, [X, Y]), e
    assert is_const(derivative(X, X), 1)
    assert str(adjoints(X, G, [X, Y])) == str({X: G})


def test_operators_without_a_derivative_are_named() -> None:
    shifted = Op("bitcast", (X,), f64)
    with pytest.raises(UnsupportedError, match="the scalar operator bitcast has no derivative"):
        derivative(shifted * Y, X)
    assert is_const(derivative(shifted, Y), 0)  # not asked for there
    assert adjoints(shifted, G, [X]) == {}  # the bits of a number have none


def test_conditions_choose_the_branch() -> None:
    e = select(const(1.0, f64) < X * Y, X * X * Y, call("sin", X) - Y)
    for values in ({X: 1.5, Y: 2.0}, {X: 0.3, Y: -0.5}):
        check(e, values)
    half = select(X > Y, Y, X * X)  # one branch alone has X
    for values in ({X: 1.5, Y: 2.0}, {X: 2.5, Y: -0.5}):
        check(half, values)


def test_casts_between_floats() -> None:
    narrow = Var("n", f32)
    e = cast(narrow, f64) * X
    by = derivative(e, X)
    assert by.dtype is f64 and number(by, {X: 2.0, narrow: 1.5}) == 1.5
    result = adjoints(e, G, [narrow, X])
    assert result[narrow].dtype is f32 and number(result[narrow], {G: 3.0, X: 2.0, narrow: 1.5}) == 6.0
    inner = derivative(cast(cast(X, f32), f64) * X, X)
    assert number(inner, {X: 2.0}) == 4.0


def test_a_derivative_has_the_type_of_its_expression() -> None:
    x, p = Var("x", f32), Var("p", boolean)
    wide = cast(x, f64)
    for e in (const(2.0, f64), wide, select(p, wide, const(1.0, f64)), select(p, const(1.0, f64), wide * wide)):
        assert derivative(e, x).dtype is f64, e
    assert derivative(select(p, x, const(1.0, f32)), x).dtype is derivative(cast(x, i64), x).dtype is f32


def test_loads_are_leaves() -> None:
    a = Buffer("a", f64, (const(8),))
    first, second = Load(a, (const(0),)), Load(a, (cast(X, i64),))
    result = adjoints(first * second + first, G, [first, second])
    assert str(result[first]) == "g + g * a[i64(x)]" and str(result[second]) == "g * a[0]"
    assert adjoints(second, G, [X]) == {}


def random_expression(rng: random.Random, depth: int) -> Expr:
    if not depth:
        return rng.choice((X, Y, Z, const(rng.choice((-1.5, 0.5, 2.0)), f64)))
    part = [random_expression(rng, depth - 1) for _ in range(3)]
    match rng.randrange(8):
        case 0:
            return part[0] + part[1]
        case 1:
            return part[0] - part[1]
        case 2:
            return part[0] * part[1]
        case 3:
            return part[0] / (part[1] * part[1] + const(1.0, f64))
        case 4:
            return call(rng.choice(("sin", "tanh", "sigmoid", "arctan", "erf", "gelu")), part[0])
        case 5:
            return call(rng.choice(("min", "max")), part[0], part[1])
        case 6:
            return call("fma", part[0], part[1], part[2])
    return select(part[0] < part[1], part[1], part[2])


@pytest.mark.parametrize("seed", range(60))
def test_expressions_of_all_kinds(seed: int) -> None:
    """A shared expression flows back from all its places; both modes agree wherever the function is smooth."""
    rng = random.Random(seed)
    e = random_expression(rng, rng.choice((2, 3, 4)))
    values = {v: rng.uniform(-2, 2) for v in (X, Y, Z)}
    check(e + e * X, values, rel=1e-4)
