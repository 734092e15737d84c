"""Functions of f32 for machines where one instruction looks sixteen floats up in a register, and one scales by powers
of two.

With a table of 2^(i/16) the reduced argument is so small that a cubic polynomial suffices: exp takes seven
multiply-adds instead of twelve, and `scaleb` makes infinities and subnormal numbers by itself. (The method is P. T. P.
Tang's, Table-driven implementation of the exponential function, 1989.) GELU and tanh are polynomials of degree four and
five whose coefficients come from tables, one for each of sixteen intervals, instead of quotients of polynomials: table
look-ups have a separate unit, and no division is needed, which takes Zen 4 eleven cycles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from tilewright.ir.dtype import i64
from tilewright.ir.expr import Const, Expr, call, cast, lookup, maximum, minimum, select
from tilewright.transform.math.f32 import LN2, LN2_REST, LOG2E, split
from tilewright.transform.math.parts import as_float, bits, fma, greatest, polynomial, single, with_sign, word

ENTRIES = 16
"""The number of entries of a table: as many f32 as a register of 512 bits holds."""

_ROUND = 1.5 * 2.0**19
"""The number which, added to a small f32, puts its sixteenths into the low bits."""

_POWERS, _RESTS = zip(*(split(2.0 ** (i / ENTRIES)) for i in range(ENTRIES)), strict=True)
_RELATIVE_RESTS = tuple(single(rest.value / power.value) for power, rest in zip(_POWERS, _RESTS, strict=True))
# exp(r) = 1 + r q(r), |r| <= ln(2)/32
_EXP = (1.0, 0.5000162124633789, 0.16667057573795319)
# 2^r = 1 + r q(r), |r| <= 1/32
_EXP2 = (0.6931471824645996, 0.24023428559303284, 0.05550595000386238)


_TO_EXPONENT = 19
"""The number of bits by which sixteenths are shifted left so that their integer part lies at the exponent."""


def _without_sixteenths(power: Const, i: int) -> Const:
    """Entry i of a table. Its bits, plus a number of sixteenths 16 n + i shifted left by `_TO_EXPONENT`, are those of
    2^-64 * `power` * 2^n; `power` is 2^(i/16)."""
    pattern = np.float32(power.value * 2.0**-64).view(np.int32) - np.int32(i << _TO_EXPONENT)
    return single(float(pattern.view(np.float32)))


_SCALED_POWERS = tuple(_without_sixteenths(power, i) for i, power in enumerate(_POWERS))


def _scaled(r: Expr, q: Expr, sixteenths: Expr, n: Expr) -> Expr:
    """2^n (1 + r q) for a multiple n of 1/16; the low bits of `sixteenths`, an f32, are the integer 16 n."""
    place = cast(bits(sixteenths) & (ENTRIES - 1), i64)
    power, rest = lookup(place, _POWERS), lookup(place, _RESTS)
    return call("scaleb", power + fma(power * r, q, rest), n)


def _reduced(x: Expr, sign: float = 1.0) -> tuple[Expr, Expr]:
    """Reduce the argument of an exponential: x = sign n ln 2 + r with a multiple n of 1/16 and |r| <= ln(2)/32. Returns
    (an f32 whose low bits are the integer 16 n, r)."""
    shifted = fma(x, LOG2E * sign, single(_ROUND))
    n = shifted - single(_ROUND)
    return shifted, fma(n, LN2_REST * -sign, fma(n, LN2 * -sign, x))


def _zero_below(x: Expr, least: float, scaled: Expr) -> Expr:
    """`scaled`, the scaled value of a function, for x >= `least`, and zero below: a mask excludes the elements below
    from the scaling instruction, so that the values computed for them do no harm."""
    return select(x < single(least), single(0.0), scaled)


def exp(x: Expr) -> Expr:
    """e^x, 1 ulp."""
    shifted, r = _reduced(x if greatest(x) <= 89.0 else minimum(single(89.0), x))
    return _zero_below(x, -104.0, _scaled(r, polynomial(r, _EXP), shifted, shifted - single(_ROUND)))


def exp_nonpositive(x: Expr) -> Expr:
    """e^x for x <= 0, to 1.1 + 0.04 |x| ulp; zero where e^x is below the normal numbers.

    The part of ln(2) and of the table that single precision cannot hold is left out. Softmax, which calls this, rounds
    the difference x before, and that alone costs up to |x| ulp."""
    shifted = fma(x, LOG2E, single(_ROUND))
    n = shifted - single(_ROUND)
    r = fma(n, -LN2, x)
    power = lookup(cast(bits(shifted) & (ENTRIES - 1), i64), _POWERS)
    return _zero_below(x, -87.0, call("scaleb", fma(power * r, polynomial(r, _EXP), power), n))


def exp2(x: Expr) -> Expr:
    """2^x, 1 ulp."""
    bounded = minimum(single(129.0), x)
    shifted = bounded + single(_ROUND)
    n = shifted - single(_ROUND)
    r = bounded - n
    return _zero_below(x, -151.0, _scaled(r, polynomial(r, _EXP2), shifted, n))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x), 2.5 ulp: s / (s + s e^-x) with s = 2^-64, so that nothing overflows or is subnormal. So the
    exponent can be added to that of the table's entry, in half of the time of `scaleb`."""
    x = maximum(single(-104.0), minimum(single(30.0), x))
    shifted, r = _reduced(x, -1.0)
    place = cast(bits(shifted) & (ENTRIES - 1), i64)
    power = as_float(bits(lookup(place, _SCALED_POWERS)) + (bits(shifted) << word(_TO_EXPONENT)))
    rest = fma(r, polynomial(r, [-1.0, _EXP[1], -_EXP[2]]), lookup(place, _RELATIVE_RESTS))
    return single(2.0**-64) / (fma(power, rest, power) + single(2.0**-64))


def gelu(x: Expr) -> Expr:
    """x (1 + erf(x / sqrt 2)) / 2, within 2.5e-7 |x|."""
    return _gated(x, _normal)


def gelu_tanh(x: Expr) -> Expr:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, within 2.5e-7 |x|."""
    return _gated(x, _normal_by_tanh)


def _normal(t: float) -> float:
    return math.erf(t * math.sqrt(0.5)) / 2


def _normal_by_tanh(t: float) -> float:
    return math.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * t**3)) / 2


def tanh(x: Expr) -> Expr:
    """tanh, 2 ulp: a polynomial in the distance of u from the begin of an interval, for u = |x| + `_TANH_SHIFT`.

    Intervals are a quarter of the power of two below u: an eighth where tanh bends, 2 where it is nearly 1. The leading
    bits of u number the interval; u with its other bits zero is the interval's begin.
    """
    t = minimum(single(_TANH_MOST), call("abs", x))
    u = t + single(_TANH_SHIFT)
    d = t - (as_float(bits(u) & (-1 << _TANH_BITS)) - single(_TANH_SHIFT))
    place = cast((bits(u) >> word(_TANH_BITS)) & (ENTRIES - 1), i64)
    *tables, result = (lookup(place, table) for table in _tanh_pieces())
    for c in reversed(tables):
        result = fma(result, d, c)
    return with_sign(result, x)


_TANH_MOST = 9.02
"""The least argument from which on tanh is 1 in f32."""
_TANH_SHIFT = 0.625
"""The number added to |x| so that the leading bits of the sum number the intervals."""
_TANH_BITS = 21
"""The number of bits of an f32 below those that number the intervals."""
_TANH_DEGREE = 5
"""The degree of the polynomial that approximates tanh in an interval."""


@cache
def _tanh_pieces() -> tuple[tuple[Const, ...], ...]:
    """For each power the coefficients of all intervals; an interval's place in such a table is its number modulo 16.
    The first interval's are 0, 1 and the coefficients of (tanh(t) / t - 1) / t, so that small results are right to the
    last bit."""
    first = int(np.float32(_TANH_SHIFT).view(np.int32)) >> _TANH_BITS
    edges = [float(np.int32((first + k) << _TANH_BITS).view(np.float32)) - _TANH_SHIFT for k in range(ENTRIES + 1)]
    rows = [[0.0] * (_TANH_DEGREE + 1)] * ENTRIES
    for k, (low, high) in enumerate(itertools.pairwise(edges)):
        if k:
            row = _interpolated(lambda d, low=low: math.tanh(low + d), _TANH_DEGREE, 0.0, high - low)  # type: ignore[misc]
        else:
            row = [0.0, 1.0, *_interpolated(lambda t: (math.tanh(t) / t - 1.0) / t, _TANH_DEGREE - 2, 0.0, high)]
        rows[(first + k) % ENTRIES] = row
    return _by_power(rows)


_PARTS = 2.75
"""The number of intervals per unit of the argument, in each of which a polynomial approximates GELU's factor; interval
k is around k / _PARTS, and the last one is constant."""
_DEGREE = 4
"""The degree of the polynomial that approximates GELU's factor in an interval."""


def _gated(x: Expr, odd: Callable[[float], float]) -> Expr:
    """x (1/2 + odd(x)) as x / 2 + |x| odd(|x|), for an odd function that is 1/2 from 5.2 on."""
    size = call("abs", x)
    t = minimum(single(15.25 / _PARTS), size)
    shifted = fma(t, single(_PARTS), single(_ROUND * ENTRIES))
    d = fma(t, single(_PARTS), -(shifted - single(_ROUND * ENTRIES)))
    place = cast(bits(shifted) & (ENTRIES - 1), i64)
    *tables, result = (lookup(place, table) for table in _pieces(odd))
    for c in reversed(tables):
        result = fma(result, d, c)
    return fma(size, result, x * 0.5)


@cache
def _pieces(f: Callable[[float], float]) -> tuple[tuple[Const, ...], ...]:
    """For each power the coefficients of all intervals, by interpolation at Chebyshev's points."""
    rows = [
        _interpolated(lambda d, k=k: f((k + d) / _PARTS), _DEGREE, -0.5, 0.5)  # type: ignore[misc]
        for k in range(ENTRIES - 1)
    ]
    return _by_power([*rows, [0.5] + [0.0] * _DEGREE])


def _by_power(rows: Sequence[Sequence[float]]) -> tuple[tuple[Const, ...], ...]:
    """Transpose rows of coefficients to tables, one for each power."""
    return tuple(tuple(single(c) for c in column) for column in zip(*rows, strict=True))


def _interpolated(f: Callable[[float], float], degree: int, low: float, high: float) -> list[float]:
    """The coefficients of the polynomial of degree `degree` that equals f at Chebyshev's points between `low` and
    `high`, by divided differences."""
    count = degree + 1
    middle, half = (low + high) / 2, (high - low) / 2
    points = [middle + half * math.cos(math.pi * (k + 0.5) / count) for k in range(count)]
    values = [f(p) for p in points]
    for order in range(1, count):
        for k in range(count - 1, order - 1, -1):
            values[k] = (values[k] - values[k - 1]) / (points[k] - points[k - order])
    result = [0.0] * count
    for point, value in zip(reversed(points), reversed(values), strict=True):
        result = [low - point * own for low, own in zip([value, *result], [*result, 0.0], strict=True)][:count]
    return result
