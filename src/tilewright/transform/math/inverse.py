"""Hyperbolic and inverse functions of f32, by functions of `f32.py`; each states its greatest error in ulp."""

from __future__ import annotations

import math

from tilewright.ir.expr import Expr, call, minimum, select
from tilewright.transform.math.f32 import exp_of_reduced, log1p, reduced
from tilewright.transform.math.parts import as_float, fma, polynomial, single, with_sign, word

# arctan(t) = t + t^3 q(t^2), 0 <= t <= 1
_ARCTAN = (
    -0.33333298563957214, 0.1999853402376175, -0.14264102280139923, 0.10951505601406097, -0.08401575684547424,
    0.05792704597115517, -0.031148666515946388, 0.010899501852691174, -0.001790350885130465,
)  # fmt: skip
# arcsin(t) = t + t^3 q(t^2), 0 <= t <= 1/2
_ARCSIN = (
    0.16666659712791443, 0.0750051736831665, 0.04451479762792587, 0.03182365745306015, 0.01438403595238924,
    0.03758690878748894,
)  # fmt: skip
_HALF_PI, _HALF_PI_REST = 1.5707963705062866, -4.371138828673793e-08
_LN2 = 0.6931471824645996


def _quarter(size: Expr) -> tuple[Expr, Expr]:
    """(e^r - 1, 2^(n - 2)) with size = n ln 2 + r. Neither overflows if e^size / 2 is finite."""
    n, r = reduced(minimum(single(89.5), size), 125)
    return exp_of_reduced(r), as_float(n << word(23))


def sinh(x: Expr) -> Expr:
    """Hyperbolic sine, 3 ulp: u + u / (2u + 1) with u = (exp(|x|) - 1) / 2."""
    part, power = _quarter(call("abs", x))
    half = fma(part, power, power - 0.25)
    u = half + half
    return with_sign(u + u / minimum(single(3e38), fma(u, single(2.0), single(1.0))), x)


def cosh(x: Expr) -> Expr:
    """Hyperbolic cosine, 2 ulp: h + 1 / (4h) with h = exp(|x|) / 2."""
    part, power = _quarter(call("abs", x))
    half = fma(part, power, power)
    return fma(half, single(2.0), 0.125 / half)


def arctan(x: Expr) -> Expr:
    """Arctangent, 2 ulp: a polynomial up to 1, beyond it pi/2 less that of 1 / x."""
    size = call("abs", x)
    beyond = size > 1.0
    t = select(beyond, 1.0 / size, size)
    square = t * t
    inner = fma(square * t, polynomial(square, _ARCTAN), t)
    outer = single(_HALF_PI) - (inner - _HALF_PI_REST)
    return with_sign(select(beyond, outer, inner), x)


def _arcsin_of_half(x: Expr) -> tuple[Expr, Expr]:
    """(whether |x| <= 1/2, arcsin(t)) with t = |x| if so, else t = sqrt((1 - |x|) / 2)."""
    size = call("abs", x)
    within = size <= 0.5
    square = select(within, size * size, fma(size, single(-0.5), single(0.5)))
    t = select(within, size, call("sqrt", square))
    return within, fma(square * t, polynomial(square, _ARCSIN), t)


def arcsin(x: Expr) -> Expr:
    """Arcsine, 3 ulp; NaN beyond 1."""
    within, angle = _arcsin_of_half(x)
    outer = single(_HALF_PI) - fma(angle, single(2.0), single(-_HALF_PI_REST))
    return with_sign(select(within, angle, outer), x)


def arccos(x: Expr) -> Expr:
    """Arccosine, 2 ulp; NaN beyond 1."""
    within, angle = _arcsin_of_half(x)
    middle = single(_HALF_PI) - (with_sign(angle, x) - _HALF_PI_REST)
    outer = angle + angle
    left = single(2 * _HALF_PI) - (outer - 2 * _HALF_PI_REST)
    return select(within, middle, select(x < 0.0, left, outer))


def arctanh(x: Expr) -> Expr:
    """Inverse hyperbolic tangent, 3 ulp: log(1 + 2t / (1 - t)) / 2; infinite at 1, NaN beyond."""
    size = call("abs", x)
    return with_sign(log1p((size + size) / (1.0 - size)) * 0.5, select(size > 1.0, size, x))


def arcsinh(x: Expr) -> Expr:
    """Inverse hyperbolic sine, 3 ulp: log(1 + t + t^2 / (1 + sqrt(t^2 + 1))); log(2t) where the square would
    overflow."""
    size = call("abs", x)
    great = size > 2.0**24
    t = minimum(single(2.0**24), size)
    square = t * t
    grown = size + square / (call("sqrt", square + 1.0) + 1.0)
    return with_sign(log1p(select(great, size, grown)) + select(great, single(_LN2), single(0.0)), x)


def arccosh(x: Expr) -> Expr:
    """Inverse hyperbolic cosine, 3 ulp: log(1 + t + sqrt(t (t + 2))) with t = x - 1; NaN below 1."""
    great = x > 2.0**24
    t = x - 1.0
    bounded = minimum(single(2.0**24), t)
    grown = t + call("sqrt", bounded * (bounded + 2.0))
    result = log1p(select(great, x, grown)) + select(great, single(_LN2), single(0.0))
    return select(x < 1.0, single(math.nan), result)
