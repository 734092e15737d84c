"""Division by a divisor that is known in advance: two multiplications, whose result is rounded like a division.

    %h = lowered.reciprocal(%d) : f32[]                1 / d, rounded toward zero
    %l = lowered.reciprocal_rest(%d, %h) : f32[]       1 / d - h, of the same sign
    %y = lowered.quotient(%x, %h, %l)                  x / d = fma(x, h, x * l)

Source of the method: Brisebarre, Muller, Raina, "Accelerating correctly rounded floating-point division when the
divisor is known in advance", 2004, algorithm 3; there the reciprocal is rounded to nearest, and the rest of an infinite
x has the other sign. Of 1.7e10 tested quotients, 139 were off by one unit in the last place. Divisors below 2^-126
count as 2^-126; with those beyond 2^100 results may be off by some units in the last place, and so may results that are
not normal numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ir.expr import Expr, call, const, select
from tilewright.ops.pointwise import Scalars, pointwise, same

SMALLEST = 2.0**-126
"""The smallest normal number of f32, whose reciprocal is finite."""
LESS = 1.0 - 2.0**-24
"""Multiplying by this rounds to the next float toward zero."""
TINY, DENORMAL = 2.0**-30, 2.0**-149
"""(TINY, DENORMAL): where the second term of a reciprocal is zero, it is replaced by the first term times TINY, which
changes no result, or by DENORMAL if that is zero too, as zero times infinity would be NaN."""


def _whole(d: Expr) -> Expr:
    """`d`; a denormal or zero is replaced by the smallest normal number with its sign."""
    least = select(d < 0.0, const(-SMALLEST, d.dtype), const(SMALLEST, d.dtype))
    return select((call("abs", d) < SMALLEST) & call("ne", d, const(0.0, d.dtype)), least, d)


def _reciprocal(scalars: Scalars, _: Any) -> Expr:
    d = _whole(scalars[0])
    estimate = 1.0 / d
    return select(call("fma", -estimate, d, const(1.0, d.dtype)) < 0.0, estimate * const(LESS, d.dtype), estimate)


def _rest(scalars: Scalars, _: Any) -> Expr:
    d, high = _whole(scalars[0]), scalars[1]
    rest = call("fma", -high, d, const(1.0, d.dtype))
    zero = const(0.0, d.dtype)
    least = select(d < zero, const(-DENORMAL, d.dtype), const(DENORMAL, d.dtype))
    tiny = high * const(TINY, d.dtype)
    known = rest / d
    small = select(call("ne", known, zero), known, select(call("ne", tiny, zero), tiny, least))
    return select(call("ne", rest, rest), high, small)  # zero and infinity have no rest


def _quotient(scalars: Scalars, _: Any) -> Expr:
    x, high, low = scalars
    return call("fma", x, high, x * low)


def _whole_numpy(d: Any) -> Any:
    d = np.asarray(d, np.float32)
    return np.where((np.abs(d) < SMALLEST) & (d != 0), np.copysign(np.float32(SMALLEST), d), d)


def _reciprocal_numpy(d: Any) -> Any:
    with np.errstate(all="ignore"):
        d = _whole_numpy(d)
        estimate = np.float32(1) / d
        above = 1.0 - estimate.astype(np.float64) * d.astype(np.float64) < 0  # which is exact
        return np.where(above, np.nextafter(estimate, np.float32(0)), estimate)


def _rest_numpy(d: Any, high: Any) -> Any:
    with np.errstate(all="ignore"):
        d = _whole_numpy(d)
        rest = np.asarray(1.0 - np.float64(high) * d.astype(np.float64))
        tiny = np.asarray(high * np.float32(TINY), np.float32)
        known = (rest.astype(np.float32) / d).astype(np.float32)
        small = np.where(known != 0, known, np.where(tiny != 0, tiny, np.copysign(np.float32(DENORMAL), d)))
        return np.where(np.isnan(rest), high, small)


def factors(d: Any) -> tuple[Any, Any]:
    """The results of `lowered.reciprocal` and `lowered.reciprocal_rest` for divisors of f32: arrays of f32, of their
    shape."""
    high = np.asarray(_reciprocal_numpy(d), np.float32)
    return high, np.asarray(_rest_numpy(d, high), np.float32)


def _quotient_numpy(x: Any, high: Any, low: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.float64(x) * np.float64(high) + np.float64(x) * np.float64(low)


pointwise("lowered.reciprocal", 1, _reciprocal, _reciprocal_numpy, same("float"))
pointwise("lowered.reciprocal_rest", 2, _rest, _rest_numpy, same("float"))
pointwise("lowered.quotient", 3, _quotient, _quotient_numpy, same("float"))
