"""Loops that lead to other points: fused indices that the simplifier decomposed, and limits that predicates give."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from itertools import product

import pytest

from tilewright.arith import simplify
from tilewright.ir.expr import Expr, Var, as_int, const, not_equal
from tilewright.ir.rewrite import substitute
from tilewright.schedule.dependence import injective

F, T, R, N = Var("f", lo=0), Var("t", lo=0), Var("r", lo=0), Var("n", lo=1)


def truth(values: list[Expr], sizes: dict[Var, int], conditions: list[Expr]) -> bool:
    """By trying: no two values of the first variable give the same point."""
    seen: dict[tuple[int | None, ...], int] = {}
    names = list(sizes)
    for point in product(*(range(sizes[v]) for v in names)):
        at = {v: const(k) for v, k in zip(names, point, strict=True)}
        if all(as_int(simplify(substitute(c, at))) for c in conditions):
            key = tuple(as_int(simplify(substitute(v, at))) for v in values)
            if seen.setdefault(key, point[0]) != point[0]:
                return False
    return True


@pytest.mark.parametrize(
    ("strip", "rows", "width", "tiles", "limit", "expected"),
    [
        (12, 3, 6, 4, None, True),  # whole tiles in a strip
        (12, 4, 9, 3, None, True),  # lines that strips cross
        (10, 4, 5, 3, 10, True),  # the last tile is cut
        (10, 4, 5, 3, None, False),  # tiles reach into the next strip
        (10, 4, 5, 3, 11, False),  # so does one pixel
        (18, 6, 54, 3, None, True),  # rows divide the line
    ],
)
def test_strips_of_a_fused_index(
    strip: int, rows: int, width: int, tiles: int, limit: int | None, expected: bool
) -> None:
    sizes = {F: 7, T: tiles, R: rows}
    extents = {v: const(n) for v, n in sizes.items()}
    within = T * rows + R
    pixel = F * strip + within
    conditions = [] if limit is None else [within < limit]
    values = [simplify(pixel // width, extents), simplify(pixel % width, extents)]
    assert truth(values, sizes, conditions) == expected
    assert injective(values, F, extents, conditions) == expected


def test_loops_of_one_step_hide_nothing() -> None:
    """A group of one panel: both loops have the same stride, and the panel's has no other value than 0."""
    panel = Var("panel", lo=0)
    index = R * 16 + F * 2 + panel * 2 + T
    extents = {F: const(8), panel: const(1), T: const(2), R: const(2)}
    assert injective([index], F, extents)
    assert not injective([index], F, {**extents, panel: const(2)})


def linear_index(rng: random.Random) -> tuple[Expr, Callable[[Sequence[int]], int]]:
    """An index over the three loops, as an expression and as a function of numbers."""
    factors = [rng.choice([0, 1, 1, 2, 3, 4, 6, -1]) for _ in range(3)]
    offset, divisor = rng.randrange(3), rng.choice([2, 3, 4])
    whole: Expr = const(offset)
    for v, c in zip((F, T, R), factors, strict=True):
        whole = whole + v * c

    def number(point: Sequence[int]) -> int:
        return offset + sum(c * x for c, x in zip(factors, point, strict=True))

    match rng.randrange(4):
        case 0:
            return whole // divisor, lambda p: number(p) // divisor
        case 1:
            return whole % divisor, lambda p: number(p) % divisor
    return whole, number


def test_what_is_said_to_be_injective_is() -> None:
    """Random indices under random conditions against all points of the loops."""
    said = 0
    for seed in range(400):
        rng = random.Random(seed)
        sizes = [rng.choice([1, 2, 3, 4]) for _ in range(3)]
        extents = {v: const(n) for v, n in zip((F, T, R), sizes, strict=True)}
        indices = [linear_index(rng) for _ in range(rng.choice([1, 2, 2, 3]))]
        limit = rng.choice([None, 2, 4, 5])
        within = T * 2 + R
        holds = operator.lt if limit is None else rng.choice([operator.lt, operator.lt, operator.le, operator.ge])
        conditions = [] if limit is None else [holds(within, const(limit))]
        result = injective([e for e, _ in indices], F, extents, conditions)
        seen: dict[tuple[int, ...], int] = {}
        for point in product(*map(range, sizes)):
            if limit is None or holds(2 * point[1] + point[2], limit):
                first = seen.setdefault(tuple(f(point) for _, f in indices), point[0])
                assert not result or first == point[0], (seed, [str(e) for e, _ in indices], sizes, limit)
        said += result
    assert said > 60


@pytest.mark.parametrize("seed", range(12))
def test_digits_are_injective(seed: int) -> None:
    """Each loop steps further than all smaller ones reach: in any order, with gaps, and in two parts of the sum. With
    one step less it may meet itself, unless nothing smaller moves."""
    rng = random.Random(seed)
    order = rng.sample((F, T, R), 3)
    extents = {v: const(rng.choice([2, 3, 4])) for v in order}
    reach, total, steps = rng.randrange(3), const(5), dict[Var, int]()
    for v in order:
        steps[v] = reach + 1 + rng.randrange(2)
        total = total + v * steps[v]
        reach += steps[v] * ((as_int(extents[v]) or 0) - 1)
    width = rng.choice([2, 3, 7])
    for v in order:
        assert injective([total], v, extents)
        assert injective([total // width, total % width], v, extents)
        assert not injective([total - v * steps[v]], v, extents)
        assert not injective([], v, extents)


def test_symbolic_strides() -> None:
    n = Var("n", lo=1)
    assert injective([F * n + T], F, {F: const(4), T: n})
    assert not injective([F * n + T], F, {F: const(4), T: n + 1})
    assert injective([F * 8 + n], F, {F: const(4)}) and not injective([n * 8], F, {F: const(4)})
    assert injective([F * n + T], F, {F: const(4)})  # what is fixed does not move


def test_only_what_stays_below_a_number_limits_an_index() -> None:
    """Rows of 8 with 6 steps of 2: those before the row's end stay in it; steps 1 and 5 of two rows are one place."""
    sizes = {F: 4, T: 6}
    extents = {v: const(n) for v, n in sizes.items()}
    value = F * 8 + T * 2
    assert injective([value], F, extents, [T * 2 < 8]) and truth([value], sizes, [T * 2 < 8])
    for condition in (T * 2 >= 2, const(0) < T * 2, not_equal(T * 2, const(4)), T * 2 <= 10):
        assert not injective([value], F, extents, [condition]) and not truth([value], sizes, [condition])
    assert not injective([value], F, extents, [T * 2 < N])
