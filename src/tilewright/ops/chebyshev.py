"""Chebyshev polynomials of the four kinds, of whole degrees that are operands, by their closed forms.

With x = cos a: T = cos(n a), U = sin((n + 1) a) / sin a, V = cos((n + 1/2) a) / cos(a / 2) and W = sin((n + 1/2) a) /
sin(a / 2); outside of -1 to 1 the same formulas hold with hyperbolic functions, and signs by parity (DLMF 18.5). Errors
in f64 are some 1e-15 (n + 1), relative to the greatest value between -1 and 1.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ops.special import Number, equal, function, special, where


def _ratio(above: Number, below: Number, limit: Number) -> Number:
    """`above / below`, or `limit` where `below` is zero."""
    zero = equal(below, 0.0)
    return where(zero, limit, above / where(zero, 1.0, below))


def _kinds(a: Number, n: Number, sine: str, cosine: str) -> dict[str, Number]:
    """T, U, V and W of an angle, with circular or hyperbolic functions `sine` and `cosine`; at angle 0 their limits."""
    half = n + 0.5
    return {
        "t": function(cosine, n * a),
        "u": _ratio(function(sine, (n + 1.0) * a), function(sine, a), n + 1.0),
        "v": function(cosine, half * a) / function(cosine, a * 0.5),
        "w": _ratio(function(sine, half * a), function(sine, a * 0.5), n * 2.0 + 1.0),
    }


def _polynomial(kind: str) -> Callable[[Number, Number], Number]:
    mirrored = {"t": "t", "u": "u", "v": "w", "w": "v"}[kind]

    def formula(x: Number, degree: Number) -> Number:
        n = function("trunc", degree)
        size = function("abs", x)
        odd = equal(n - function("floor", n * 0.5) * 2.0, 1.0)
        # From 0 on, where the angle is at most a quarter turn and no divisor is near zero.
        a = function("arccos", function("min", size, size * 0.0 + 1.0))
        outer = function("max", size, size * 0.0 + 1.0)
        b = function("log", outer + function("sqrt", (outer - 1.0) * (outer + 1.0)))
        circular, hyperbolic = _kinds(a, n, "sin", "cos"), _kinds(b, n, "sinh", "cosh")
        up = where(size <= 1.0, circular[kind], hyperbolic[kind])
        down = where(size <= 1.0, circular[mirrored], hyperbolic[mirrored])
        result = where(x < 0.0, where(odd, -down, down), up)
        result = where(equal(n, 0.0), 1.0, result)
        return where(n < 0.0, 0.0, result)

    return formula


for _kind in "tuvw":
    special(f"chebyshev_{_kind}", 2, _polynomial(_kind))
