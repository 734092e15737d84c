"""Functions of the gamma family: log-gamma, digamma, and Hurwitz's zeta function, from which polygamma follows."""

from __future__ import annotations

import math

from tilewright.ops.special import Number, equal, function, polynomial, special, where

_STIRLING = (-3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
"""Coefficients of Stirling's series in 1 / x^2 (DLMF 5.11.1)."""
_DIGAMMA = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)
"""Coefficients of digamma's asymptotic series in 1 / x^2 (DLMF 5.11.2)."""
_ZETA = (
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10, -2.950130727918164224e12,
    1.1646782814350067249e14, -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18,
)  # fmt: skip
"""(2 k)! over Bernoulli numbers, for the Euler-Maclaurin sum (Moshier's Cephes, zeta.c)."""
SHIFT = 10
"""The argument from which on asymptotic series are used; smaller arguments are increased by recurrences."""


def _positive_lgamma(x: Number) -> Number:
    """log(gamma(x)) for x > 0: Stirling's series, after the recurrence has increased x to at least `SHIFT`."""
    product: Number = 1.0
    for _ in range(SHIFT):
        below = x < float(SHIFT)
        product = where(below, product * x, product)
        x = where(below, x + 1.0, x)
    y = 1.0 / x
    series = y * polynomial(y * y, _STIRLING)
    return (x - 0.5) * function("log", x) - x + 0.5 * math.log(2 * math.pi) + series - function("log", product)


def lgamma(x: Number) -> Number:
    """log|gamma(x)|; for x < 1/2 by reflection, pi / (sin(pi x) gamma(1 - x))."""
    low = x < 0.5
    up = _positive_lgamma(where(low, 1.0 - x, x))
    part = function("abs", x - function("round", x))
    reflected = math.log(math.pi) - function("log", function("sin", part * math.pi)) - up
    result = where(low, reflected, up)
    result = where(low & equal(x, function("floor", x)), math.inf, result)
    return where(function("isinf", x), math.inf, result)


def digamma(x: Number) -> Number:
    """The derivative of lgamma; for negative x by reflection. At negative poles it is NaN, at zero an infinity."""
    low = x < 0.0
    shifted = where(low, 1.0 - x, x)
    total: Number = 0.0
    for _ in range(SHIFT):
        below = shifted < float(SHIFT)
        total = where(below, total - 1.0 / shifted, total)
        shifted = where(below, shifted + 1.0, shifted)
    z = 1.0 / (shifted * shifted)
    up = total + function("log", shifted) - 0.5 / shifted - z * polynomial(z, _DIGAMMA)
    part = x - function("trunc", x)
    result = where(low, up - math.pi / function("tan", part * math.pi), up)
    result = where(low & equal(x, function("floor", x)), math.nan, result)
    zero = equal(x, 0.0)
    return where(zero, -1.0 / where(zero, x, 1.0), where(equal(x, -math.inf), math.nan, result))


def _positive_zeta(x: Number, q: Number) -> Number:
    """The sum of (q + k)^-x over k >= 0 for q > 0: nine terms, then the Euler-Maclaurin formula for the rest."""
    total = function("pow", q, -x)
    for k in range(1, 10):
        total = total + function("pow", q + float(k), -x)
    w = q + 9.0
    b = function("pow", w, -x)
    rest = b * w / (x - 1.0) - b * 0.5
    factor: Number = 1.0
    for k, a in enumerate(_ZETA):
        factor = factor * (x + float(2 * k))
        b = b / w
        rest = rest + factor * b / a
        factor = factor * (x + float(2 * k + 1))
        b = b / w
    small = function("pow", w, -x) < total * 1e-17
    return where(small, total, total + rest)


def zeta(x: Number, q: Number) -> Number:
    """Hurwitz's zeta function. For negative q, x must be whole: the terms with a negative base are summed separately,
    as a difference of two zeta values."""
    below = function("floor", -q)
    part = -q - below
    lower = _positive_zeta(x, part) - _positive_zeta(x, 1.0 - q)
    odd = equal(x - function("floor", x * 0.5) * 2.0, 1.0)
    negative = _positive_zeta(x, 1.0 - part) + where(odd, -lower, lower)
    result = where(q > 0.0, _positive_zeta(x, q), negative)
    whole = equal(x, function("floor", x))
    result = where((q <= 0.0) & equal(q, function("floor", q)), math.inf, where((q <= 0.0) & ~whole, math.nan, result))
    return where(equal(x, 1.0), math.inf, where(x < 1.0, math.nan, result))


special("lgamma", 1, lgamma)
special("digamma", 1, digamma)
special("zeta", 2, zeta)
