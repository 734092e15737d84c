"""Functions of f32 where one instruction finds sixteen floats in a register's table, and one scales by powers of two.

A table of 2^(i/16) leaves so little of an argument that a cubic is enough: exp takes seven multiply-adds instead of
twelve, and `scaleb` makes infinities and subnormal numbers by itself. (The method is P. T. P. Tang's, Table-driven
implementation of the exponential function, 1989.)
"""

from __future__ import annotations

from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, call, cast, lookup, maximum, minimum
from tilewright.transform.loops.math_f32 import LN2, LN2_REST, LOG2E, split
from tilewright.transform.loops.math_parts import bits, fma, greatest, polynomial, single

ENTRIES = 16
"""Of a table: as many f32 as a register of 512 bits holds."""

_ROUND = 1.5 * 2.0**19
"""Adding it to a small f32 puts its sixteenths into the low bits."""

_POWERS, _RESTS = zip(*(split(2.0 ** (i / ENTRIES)) for i in range(ENTRIES)), strict=True)
# exp(r) = 1 + r q(r), |r| <= ln(2)/32
_EXP = (1.0, 0.5000162124633789, 0.16667057573795319)
# 2^r = 1 + r q(r), |r| <= 1/32
_EXP2 = (0.6931471824645996, 0.24023428559303284, 0.05550595000386238)


def _scaled(r: Expr, q: Expr, sixteenths: Expr, n: Expr) -> Expr:
    """2^n (1 + r q), n in whole sixteenths, which the low bits of `sixteenths` are."""
    place = cast(bits(sixteenths) & (ENTRIES - 1), i64)
    power, rest = lookup(place, _POWERS), lookup(place, _RESTS)
    return call("scaleb", power + fma(power * r, q, rest), n)


def _exp(x: Expr, sign: float = 1.0, exponent: float = 0.0) -> Expr:
    """e^(sign x) 2^exponent, where that without the last factor is not far from f32's range; sign is 1 or -1."""
    shifted = fma(x, LOG2E * sign, single(_ROUND))
    n = shifted - single(_ROUND)
    r = fma(n, LN2_REST * -sign, fma(n, LN2 * -sign, x))
    q = polynomial(r, [c * sign ** (k + 1) for k, c in enumerate(_EXP)])
    return _scaled(r, q, shifted, shifted - single(_ROUND - exponent))


def exp(x: Expr) -> Expr:
    """e^x, 1 ulp."""
    x = maximum(single(-104.0), x)
    return _exp(x if greatest(x) <= 89.0 else minimum(single(89.0), x))


def exp2(x: Expr) -> Expr:
    """2^x, 1 ulp."""
    x = minimum(single(129.0), maximum(single(-151.0), x))
    shifted = x + single(_ROUND)
    n = shifted - single(_ROUND)
    r = x - n
    return _scaled(r, polynomial(r, _EXP2), shifted, n)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x), 2.5 ulp: s / (s + s e^-x) with s = 2^-64, so that nothing overflows."""
    x = maximum(single(-104.0), minimum(single(30.0), x))
    return single(2.0**-64) / (_exp(x, -1.0, -64.0) + single(2.0**-64))
