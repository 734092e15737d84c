"""Integer intervals whose ends may be unbounded, and the operators on them.

An interval contains every value that its expression can take; None means that an end is not known.
"""

from __future__ import annotations

from typing import NamedTuple


class Interval(NamedTuple):
    """`lo <= x <= hi`; None is unbounded."""

    lo: int | None
    hi: int | None

    def contains(self, value: int) -> bool:
        return (self.lo is None or self.lo <= value) and (self.hi is None or value <= self.hi)


EVERYTHING = Interval(None, None)


def add(a: Interval, b: Interval) -> Interval:
    return Interval(
        None if a.lo is None or b.lo is None else a.lo + b.lo, None if a.hi is None or b.hi is None else a.hi + b.hi
    )


def scale(a: Interval, factor: int) -> Interval:
    """`a * factor`."""
    lo = None if a.lo is None else a.lo * factor
    hi = None if a.hi is None else a.hi * factor
    if factor == 0:
        return Interval(0, 0)
    return Interval(lo, hi) if factor > 0 else Interval(hi, lo)


def mul(a: Interval, b: Interval) -> Interval:
    """The interval of products of a member of `a` and one of `b`. An unbounded end times zero is zero."""
    if a.lo is not None and a.lo == a.hi:
        return scale(b, a.lo)
    if b.lo is not None and b.lo == b.hi:
        return scale(a, b.lo)
    if a.lo is not None and b.lo is not None and a.lo >= 0 and b.lo >= 0:
        return Interval(a.lo * b.lo, None if a.hi is None or b.hi is None else a.hi * b.hi)
    if a.lo is None or a.hi is None or b.lo is None or b.hi is None:
        return _mul_unbounded(a, b)
    corners = (a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi)
    return Interval(min(corners), max(corners))


def _mul_unbounded(a: Interval, b: Interval) -> Interval:
    # Only signs can be known: the product of a half line is a half line through the nearer end's corner.
    if a.hi is not None and a.hi <= 0:
        return scale(mul(scale(a, -1), b), -1)
    if b.hi is not None and b.hi <= 0:
        return scale(mul(a, scale(b, -1)), -1)
    if a.lo is not None and a.lo >= 0 and a.hi is not None:
        lo = None if b.lo is None else min(b.lo * a.hi, b.lo * a.lo)
        hi = None if b.hi is None else max(b.hi * a.hi, b.hi * a.lo)
        return Interval(lo, hi)
    if b.lo is not None and b.lo >= 0 and b.hi is not None:
        return _mul_unbounded(b, a)
    return EVERYTHING


def floordiv(a: Interval, b: Interval) -> Interval:
    """The interval of quotients, rounded down, of a member of `a` by one of `b`. Division by zero gives zero."""
    if b.lo is not None and b.lo == b.hi:
        d = b.lo
        if d == 0:
            return Interval(0, 0)
        if d < 0:
            a, d = scale(a, -1), -d
        return Interval(None if a.lo is None else a.lo // d, None if a.hi is None else a.hi // d)
    if b.lo is None or b.hi is None or b.lo <= 0:
        return _floordiv_unknown(a, b)
    candidates_lo = None if a.lo is None else min(a.lo // b.lo, a.lo // b.hi)
    candidates_hi = None if a.hi is None else max(a.hi // b.lo, a.hi // b.hi)
    return Interval(candidates_lo, candidates_hi)


def _floordiv_unknown(a: Interval, b: Interval) -> Interval:
    if b.lo is not None and b.lo >= 0:
        # The quotient lies between a (divisor 1) and 0 or -1 (divisor huge).
        lo = None if a.lo is None else min(a.lo, 0)
        hi = None if a.hi is None else max(a.hi // max(b.lo, 1), 0) if a.hi >= 0 else 0 if b.lo == 0 else -1
        return Interval(lo, hi)
    if a.lo is None or a.hi is None:
        return EVERYTHING
    most = max(abs(a.lo), abs(a.hi))
    return Interval(-most, most)


def mod(a: Interval, b: Interval) -> Interval:
    """The interval of remainders of floor division, which have the divisor's sign. A zero divisor gives zero."""
    if b.lo is not None and b.lo == b.hi:
        d = b.lo
        if d == 0:
            return Interval(0, 0)
        if d > 0:
            if a.lo is not None and a.hi is not None and a.lo // d == a.hi // d:
                return Interval(a.lo % d, a.hi % d)
            return Interval(0, d - 1)
        return Interval(d + 1, 0)
    if b.lo is not None and b.lo >= 0:
        hi = None if b.hi is None else max(b.hi - 1, 0)
        if a.lo is not None and a.lo >= 0 and a.hi is not None:
            if a.hi < b.lo:
                return a
            hi = a.hi if hi is None else min(hi, a.hi)
        return Interval(0, hi)
    lo = None if b.lo is None else min(b.lo + 1, 0)
    return Interval(lo, None if b.hi is None else max(b.hi - 1, 0))


def truncdiv(a: Interval, b: Interval) -> Interval:
    """An interval that contains every quotient, rounded to zero, of a member of `a` by one of `b`."""
    if a.lo is not None and a.lo >= 0 and b.lo is not None and b.lo >= 0:
        return floordiv(a, b)
    if a.lo is None or a.hi is None:
        return EVERYTHING
    most = max(abs(a.lo), abs(a.hi))
    return Interval(-most, most)


def truncmod(a: Interval, b: Interval) -> Interval:
    """An interval that contains every remainder of `truncdiv`, of a member of `a` by one of `b`; it has the dividend's
    sign."""
    if a.lo is not None and a.lo >= 0 and b.lo is not None and b.lo >= 0:
        return mod(a, b)
    if a.lo is not None and a.hi is not None:
        return Interval(min(a.lo, 0), max(a.hi, 0))
    return EVERYTHING


def minimum(a: Interval, b: Interval) -> Interval:
    lo = None if a.lo is None or b.lo is None else min(a.lo, b.lo)
    hi = b.hi if a.hi is None else a.hi if b.hi is None else min(a.hi, b.hi)
    return Interval(lo, hi)


def maximum(a: Interval, b: Interval) -> Interval:
    lo = b.lo if a.lo is None else a.lo if b.lo is None else max(a.lo, b.lo)
    hi = None if a.hi is None or b.hi is None else max(a.hi, b.hi)
    return Interval(lo, hi)


def union(a: Interval, b: Interval) -> Interval:
    """The smallest interval that contains `a` and `b`."""
    return Interval(
        None if a.lo is None or b.lo is None else min(a.lo, b.lo),
        None if a.hi is None or b.hi is None else max(a.hi, b.hi),
    )


def intersect(a: Interval, b: Interval) -> Interval:
    lo = b.lo if a.lo is None else a.lo if b.lo is None else max(a.lo, b.lo)
    hi = b.hi if a.hi is None else a.hi if b.hi is None else min(a.hi, b.hi)
    return Interval(lo, hi)


def absolute(a: Interval) -> Interval:
    if a.lo is not None and a.lo >= 0:
        return a
    if a.hi is not None and a.hi <= 0:
        return scale(a, -1)
    return Interval(0, None if a.lo is None or a.hi is None else max(-a.lo, a.hi))
