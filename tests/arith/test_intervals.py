"""Intervals, by enumeration: a result contains every value, and nothing else where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from tilewright.arith import interval
from tilewright.arith.compare import decide
from tilewright.arith.interval import EVERYTHING, Interval
from tilewright.ir.expr import Const

INFINITE = 40
"""Stands for infinity: an end that moves on with it is unbounded."""

ENDS = (None, -3, -2, -1, 0, 1, 2, 3)
INTERVALS = [Interval(a, b) for a in ENDS for b in ENDS if a is None or b is None or a <= b]


def members(x: Interval, outer: int) -> Iterator[int]:
    return iter(range(-outer if x.lo is None else x.lo, (outer if x.hi is None else x.hi) + 1))


SMALL = range(-5, 6)
POINTS = [*SMALL, *(s * (m * INFINITE - k) for m in (1, 2) for k in (0, 1) for s in (-1, 1))]
"""Numbers near zero and the ends, and the two outermost on each side of both infinities."""


@cache
def table(f: Callable[[int, int], int]) -> Any:
    """A function of all pairs of `POINTS`."""
    return np.array([[f(x, y) for y in POINTS] for x in POINTS])


@cache
def corners(x: Interval, outer: int) -> Any:
    """Where the members of an interval stand among `POINTS`: all near zero and the ends, and the outermost."""
    outermost = (-outer, 1 - outer, outer - 1, outer)
    return np.array([k for k, v in enumerate(POINTS) if x.contains(v) and (v in SMALL or v in outermost)])


def values(f: Callable[[int, int], int], a: Interval, b: Interval, outer: int) -> tuple[int, int]:
    result = table(f)[corners(a, outer)[:, None], corners(b, outer)]
    return int(result.min()), int(result.max())


def exact(f: Callable[[int, int], int], a: Interval, b: Interval) -> Interval:
    """The smallest interval that contains all values: ends that move when infinity does are unbounded."""
    (lo, hi), (further_lo, further_hi) = values(f, a, b, INFINITE), values(f, a, b, 2 * INFINITE)
    return Interval(lo if lo == further_lo else None, hi if hi == further_hi else None)


def quotient(a: int, b: int) -> int:
    return a // b if b else 0


def remainder(a: int, b: int) -> int:
    return a % b if b else 0


def cut(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0


EXACT = {
    "add": (interval.add, lambda a, b: a + b),
    "mul": (interval.mul, lambda a, b: a * b),
    "min": (interval.minimum, min),
    "max": (interval.maximum, max),
}
SOUND = {
    "floordiv": (interval.floordiv, quotient),
    "mod": (interval.mod, remainder),
    "truncdiv": (interval.truncdiv, cut),
    "truncmod": (interval.truncmod, lambda a, b: a - cut(a, b) * b if b else 0),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_smallest_interval(name: str) -> None:
    computed, f = EXACT[name]
    for a in INTERVALS:
        for b in INTERVALS:
            assert computed(a, b) == exact(f, a, b), (a, b)


@pytest.mark.parametrize("name", SOUND)
def test_every_value_is_inside(name: str) -> None:
    computed, f = SOUND[name]
    for a in INTERVALS:
        for b in INTERVALS:
            lo, hi = values(f, a, b, INFINITE)
            assert computed(a, b).contains(lo) and computed(a, b).contains(hi), (a, b)


@pytest.mark.parametrize("name", ["floordiv", "truncdiv"])
def test_quotients_by_positive_numbers_are_exact(name: str) -> None:
    computed, f = SOUND[name]
    for a in INTERVALS:
        for b in INTERVALS:
            known = b.lo is not None and b.hi is not None and b.lo > 0
            if known and (name == "floordiv" or (a.lo is not None and a.lo >= 0)):
                assert computed(a, b) == exact(f, a, b), (a, b)


@pytest.mark.parametrize(
    ("name", "a", "b", "wanted"),
    [
        ("floordiv", (-7, 9), (-2, -2), (-5, 3)),
        ("floordiv", (-7, 9), (0, 0), (0, 0)),
        ("floordiv", (4, 9), (2, None), (0, 4)),
        ("floordiv", (-4, 9), (0, None), (-4, 9)),
        ("floordiv", (-4, -2), (1, None), (-4, -1)),
        ("floordiv", (-4, -2), (0, None), (-4, 0)),
        ("floordiv", (None, None), (1, None), (None, None)),
        ("floordiv", (-7, 9), (-2, 5), (-9, 9)),
        ("floordiv", (None, 9), (-2, 5), (None, None)),
        ("mod", (6, 14), (8, 8), (0, 7)),
        ("mod", (9, 14), (16, 16), (9, 14)),
        ("mod", (9, 12), (8, 8), (1, 4)),
        ("mod", (9, 12), (0, 0), (0, 0)),
        ("mod", (9, 12), (-8, -8), (-7, 0)),
        ("mod", (0, 4), (5, 9), (0, 4)),
        ("mod", (0, 5), (5, 9), (0, 5)),
        ("mod", (0, 40), (5, 9), (0, 8)),
        ("mod", (0, 40), (5, None), (0, 40)),
        ("mod", (None, 40), (5, 9), (0, 8)),
        ("mod", (0, 3), (0, 9), (0, 3)),
        ("mod", (0, 40), (-4, 9), (-3, 8)),
        ("mod", (0, 40), (None, -4), (None, 0)),
        ("truncdiv", (-7, 5), (1, 2), (-7, 7)),
        ("truncdiv", (None, 5), (1, 2), (None, None)),
        ("truncmod", (4, 5), (6, 9), (4, 5)),
        ("truncmod", (-4, 5), (6, 9), (-4, 5)),
        ("truncmod", (2, 5), (-6, 9), (0, 5)),
        ("truncmod", (None, 5), (6, 9), (None, None)),
    ],
)
def test_ends(name: str, a: tuple, b: tuple, wanted: tuple) -> None:
    assert tuple(SOUND[name][0](Interval(*a), Interval(*b))) == wanted


def test_of_one_interval() -> None:
    for a in INTERVALS:
        assert interval.absolute(a) == exact(lambda x, _: abs(x), a, Interval(0, 0))
        for factor in (-2, -1, 0, 1, 3):
            assert interval.scale(a, factor) == exact(lambda x, _, f=factor: x * f, a, Interval(0, 0))


def test_union_and_intersection() -> None:
    for a in INTERVALS:
        for b in INTERVALS:
            both, either = interval.intersect(a, b), interval.union(a, b)
            for x in (-INFINITE, *SMALL, INFINITE):
                assert both.contains(x) == (a.contains(x) and b.contains(x))
                assert either.contains(x) or not (a.contains(x) or b.contains(x))
            assert either == Interval(
                None if None in (a.lo, b.lo) else min(a.lo, b.lo), None if None in (a.hi, b.hi) else max(a.hi, b.hi)
            )


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_with_zero(name: str) -> None:
    """`a <name> b` is decided exactly where all differences agree."""
    holds = {
        "lt": lambda d: d < 0,
        "le": lambda d: d <= 0,
        "gt": lambda d: d > 0,
        "ge": lambda d: d >= 0,
        "eq": lambda d: d == 0,
        "ne": lambda d: d != 0,
    }[name]
    for difference in [*INTERVALS, EVERYTHING]:
        truths = {holds(d) for d in members(difference, INFINITE)}
        decided = decide(name, difference)
        assert ({bool(decided.value)} if type(decided) is Const else {True, False}) == truths, difference
