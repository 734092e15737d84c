"""Rules for the incomplete gamma functions P(a, x) and Q(a, x) = 1 - P(a, x).

They are computed in f64, by three loops over all elements, each of which ends when the slowest element has converged:
the power series of P left of a, Legendre's continued fraction of Q right of it (DLMF 8.7.1 and 8.9.2; Cephes, igam.c),
and for x of about 1 and less a series of Q itself. Beyond LARGEST the normal approximation is accurate enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.control import repeated_while
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import boolean, f64, i32
from tilewright.ir.expr import as_int, product
from tilewright.ir.graph import Value

LARGEST = 1e10
"""From this a on, the normal approximation has relative errors below 1e-5."""
_SMALL = 1.1
_EPSILON = 2.0**-53
_BIG = 2.0**52
_ROUNDS = 200_000.0
_STIRLING = (
    1.0, 1 / 12, 1 / 288, -139 / 51840, -571 / 2488320, 163879 / 209018880, 5246819 / 75246796800,
    -534703531 / 902961561600,
)  # fmt: skip
"""Coefficients of gamma(a) over Stirling's approximation, in 1 / a (DLMF 5.11.3)."""
_LOGARITHM = (-0.5772156649015329, math.pi**2 / 12, -1.2020569031595943 / 3, math.pi**4 / 360)
"""Coefficients of log(gamma(1 + a)): minus Euler's constant, and zeta(k) / k with alternating signs (DLMF 5.7.3)."""


class _Numbers:
    """Emits arithmetic on f64 values: an operand may be a value or a Python number."""

    def __init__(self, n: Call) -> None:
        self.n = n

    def __call__(self, op: str, *operands: Value | float) -> Value:
        return self.n.emit(op, *(o if isinstance(o, Value) else self.n.constant(o, f64) for o in operands))

    def sum(self, *terms: Value | float) -> Value:
        result = self("add", *terms[:2])
        for term in terms[2:]:
            result = self("add", result, term)
        return result

    def pick(self, condition: Value, a: Value | float, b: Value | float) -> Value:
        return self("select", condition, a, b)


@rule("igamma", "special_gammainc")
def igamma(n: Call, a: Value, x: Value) -> Value:
    return _incomplete(n, a, x, upper=False)


@rule("igammac", "special_gammaincc")
def igammac(n: Call, a: Value, x: Value) -> Value:
    return _incomplete(n, a, x, upper=True)


def _incomplete(n: Call, a: Value, x: Value, upper: bool) -> Value:
    m = _Numbers(n)
    a, x = (n.broadcast(n.operand(v, f64), n.shape) for v in (a, x))
    if as_int(product(n.shape)) == 0:
        return n.cast(a, n.dtype)
    infinite_a, infinite_x = (m("eq", v, math.inf) for v in (a, x))
    finite = m("and", m("lt", a, math.inf), m("lt", x, math.inf))
    ordinary = m("and", m("and", m("gt", a, 0.0), m("gt", x, 0.0)), finite)
    lower, above = _both(m, m.pick(ordinary, a, 1.0), m.pick(ordinary, x, 1.0))
    zero, one = (1.0, 0.0) if upper else (0.0, 1.0)  # where P is 0, and where it is 1
    result = above if upper else lower
    edge = m.pick(m("eq", x, 0.0), zero, m.pick(infinite_a, m.pick(infinite_x, math.nan, zero), one))
    at_zero = m.pick(m("gt", x, 0.0), one, math.nan)
    result = m.pick(ordinary, result, m.pick(m("eq", a, 0.0), at_zero, edge))
    wrong = m("not", m("and", m("ge", a, 0.0), m("ge", x, 0.0)))
    return n.cast(m.pick(wrong, math.nan, result), n.dtype)


def _both(m: _Numbers, a: Value, x: Value) -> tuple[Value, Value]:
    """(P(a, x), Q(a, x)) of positive finite `a` and `x`: by the method, series or continued fraction, that does not
    cancel there."""
    huge = m("gt", a, LARGEST)
    left = m("lt", x, a)
    little = m("and", m("not", left), m("le", x, _SMALL))
    right = m("and", m("not", left), m("gt", x, _SMALL))

    def only(condition: Value, default: float) -> tuple[Value, Value]:
        there = m("and", condition, m("not", huge))
        return m.pick(there, a, 1.0), m.pick(there, x, default)

    prefix = _prefix(m, a, x)
    p = m("div", m("mul", _series(m, *only(left, 0.5)), prefix), a)
    q = m("mul", _fraction(m, *only(right, 2.0)), prefix)
    small = _small(m, *only(little, 1.0))
    q = m.pick(little, small, q)
    spread = m("div", m("sub", x, a), a)
    distance = m("sub", spread, m("log1p", spread))
    at = m("sqrt", m("mul", a, m("max", distance, 0.0)))
    at = m.pick(left, m("neg", at), at)
    below, beyond = m("mul", m("erfc", m("neg", at)), 0.5), m("mul", m("erfc", at), 0.5)
    return (
        m.pick(huge, below, m.pick(left, p, m("sub", 1.0, q))),
        m.pick(huge, beyond, m.pick(left, m("sub", 1.0, p), q)),
    )


def _prefix(m: _Numbers, a: Value, x: Value) -> Value:
    """x^a e^-x / gamma(a): of large a by Stirling's series, so that nothing large cancels."""
    small = m("exp", m("sub", m("sub", m("mul", a, m("log", x)), x), m("lgamma", a)))
    spread = m("div", m("sub", x, a), a)
    # Of a ratio near 0 the logarithm itself is exact where log1p of nearly -1 is not.
    logarithm = m.pick(m("lt", spread, -0.5), m("log", m("div", x, a)), m("log1p", spread))
    power = m("exp", m("mul", a, m("sub", logarithm, spread)))
    y, series = m("div", 1.0, a), m("mul", a, 0.0)
    for coefficient in reversed(_STIRLING):
        series = m("add", m("mul", series, y), coefficient)
    large = m("div", m("mul", power, m("sqrt", m("mul", a, 1 / (2 * math.pi)))), series)
    return m.pick(m("lt", a, 20.0), small, large)


def _loop(m: _Numbers, start: Sequence[Value], step: Callable[..., tuple[list[Value], Value]]) -> list[Value]:
    """The values that `start` has after `step` was repeated until all elements have converged, or `_ROUNDS` times.
    `step` gets the iteration's number and the values, and returns the new ones and a mask of elements that have not
    converged."""
    going = m("eq", start[0], start[0])
    first = m.n.cast(m("or", going, m("not", going)), boolean)

    def goes_on(carried: list[Value]) -> Value:
        rest, count = carried[0], carried[1]
        any_ = m.n.emit(
            "reduce_max", m.n.cast(m.n.reshape(rest, (product(rest.shape),)), i32), axes=(0,), keepdims=False
        )
        return m("and", m.n.cast(any_, boolean), m("lt", count, _ROUNDS))

    def body(carried: list[Value]) -> list[Value]:
        after, rest = step(carried[1], *carried[2:])
        return [m("and", carried[0], rest), m("add", carried[1], 1.0), *after]

    return repeated_while(m.n, goes_on, body, [first, m.n.constant(1.0, f64), *start])[2:]


def _series(m: _Numbers, a: Value, x: Value) -> Value:
    """The sum of x^k / ((a + 1) ... (a + k)) from k = 0."""

    def step(k: Value, term: Value, total: Value) -> tuple[list[Value], Value]:
        term = m("div", m("mul", term, x), m("add", a, k))
        total = m("add", total, term)
        return [term, total], m("gt", term, m("mul", total, _EPSILON))

    one = m("add", m("mul", a, 0.0), 1.0)
    return _loop(m, [one, one], step)[1]


def _fraction(m: _Numbers, a: Value, x: Value) -> Value:
    """Q divided by x^a e^-x / gamma(a), by Legendre's continued fraction."""
    y, z = m("sub", 1.0, a), m.sum(x, m("sub", 1.0, a), 1.0)
    p1, q1 = m("add", x, 1.0), m("mul", z, x)
    start = [y, z, m("add", m("mul", a, 0.0), 1.0), x, p1, q1, m("div", p1, q1)]

    def step(k: Value, *carried: Value) -> tuple[list[Value], Value]:
        y, z, p2, q2, p1, q1, result = carried
        y, z = m("add", y, 1.0), m("add", z, 2.0)
        yk = m("mul", y, k)
        p, q = (m("sub", m("mul", one, z), m("mul", two, yk)) for one, two in ((p1, p2), (q1, q2)))
        usable = m("ne", q, 0.0)
        ratio = m("div", p, m.pick(usable, q, 1.0))
        change = m.pick(usable, m("abs", m("sub", result, ratio)), math.inf)
        result = m.pick(usable, ratio, result)
        scale = m.pick(m("gt", m("abs", p), _BIG), 1 / _BIG, 1.0)
        p2, q2, p1, q1 = (m("mul", v, scale) for v in (p1, q1, p, q))
        return [y, z, p2, q2, p1, q1, result], m("gt", change, m("mul", m("abs", result), _EPSILON))

    return _loop(m, start, step)[6]


def _small(m: _Numbers, a: Value, x: Value) -> Value:
    """Q(a, x) for x up to about 1 and a at most x, by the power series of the lower incomplete gamma function."""

    def step(k: Value, factor: Value, total: Value) -> tuple[list[Value], Value]:
        factor = m("mul", factor, m("div", m("neg", x), k))
        term = m("div", factor, m("add", a, k))
        total = m("add", total, term)
        return [factor, total], m("gt", m("abs", term), m("mul", m("abs", total), _EPSILON))

    zero = m("mul", a, 0.0)
    total = _loop(m, [m("add", zero, 1.0), zero], step)[1]
    power = m("mul", a, m("log", x))
    first = m("neg", m("expm1", m("sub", power, _logarithm(m, a))))
    return m("sub", first, m("mul", m("exp", m("sub", power, m("lgamma", a))), total))


def _logarithm(m: _Numbers, a: Value) -> Value:
    """log(gamma(1 + a)); for a near 0 by its power series, as 1 + a would lose digits."""
    series = m("mul", a, 0.0)
    for coefficient in reversed(_LOGARITHM):
        series = m("mul", m("add", series, coefficient), a)
    return m.pick(m("lt", a, 1e-3), series, m("lgamma", m("add", a, 1.0)))
