"""Plans never overlap what lives together, and stay close to the lower bound."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.runtime.arena import ALIGNMENT, Block, Interval, Plan, _least_of_ranges, conflicts_of, plan
from tilewright.support.errors import Error


def root(intervals: list[Interval], k: int) -> int:
    alias = intervals[k].alias
    return k if alias is None else root(intervals, alias)


def check(intervals: list[Interval], placed: Plan) -> None:
    for k, a in enumerate(intervals):
        assert placed.offsets[k] % ALIGNMENT == 0
        assert placed.offsets[k] >= 0
        assert placed.offsets[k] + a.nbytes <= placed.arena
        for j in range(k):
            b = intervals[j]
            if root(intervals, j) == root(intervals, k):
                assert placed.offsets[j] == placed.offsets[k]
            elif a.nbytes and b.nbytes and a.first <= b.last and b.first <= a.last:
                separate = placed.offsets[k] + a.nbytes <= placed.offsets[j]
                assert separate or placed.offsets[j] + b.nbytes <= placed.offsets[k]
    steps = range(max((x.last for x in intervals), default=-1) + 1)
    live = 0
    for s in steps:
        groups: dict[int, int] = {}
        for k, x in enumerate(intervals):
            if x.first <= s <= x.last:
                r = root(intervals, k)
                groups[r] = max(groups.get(r, 0), x.nbytes)
        live = max(live, sum(groups.values()))
    assert placed.live == live
    assert placed.arena >= live


@st.composite
def problems(draw: st.DrawFn) -> list[Interval]:
    steps = draw(st.integers(1, 12))
    intervals: list[Interval] = []
    for k in range(draw(st.integers(0, 14))):
        first = draw(st.integers(0, steps - 1))
        last = draw(st.integers(first, steps - 1))
        nbytes = draw(st.integers(0, 5000))
        alias = draw(st.one_of(st.none(), st.none(), st.integers(0, k - 1))) if k else None
        intervals.append(Interval(first, last, nbytes, alias))
    return intervals


@settings(max_examples=200, deadline=None)
@given(problems())
def test_law(intervals: list[Interval]) -> None:
    check(intervals, plan(intervals))


def residual(n: int, rng: random.Random) -> list[Interval]:
    """Layers one after the other, skips of two to four, maps that shrink."""
    base, intervals = 1 << rng.randint(14, 20), []
    for k in range(n):
        span = rng.choice([1, 1, 1, 2, 3, 4])
        intervals.append(Interval(k, min(n - 1, k + span), int(base * rng.choice([1, 1, 1, 0.25, 0.5, 2, 4]))))
        base = max(64, base // 2) if rng.random() < 0.1 else base
    return intervals


def u_net(n: int) -> list[Interval]:
    """Halving maps, then doubling, with skips across."""
    intervals = []
    for k in range(n):
        size = (1 << 22) >> min(k, n - 1 - k) // 4
        intervals.append(Interval(k, min(n - 1, k + 1), size))
        if k < n // 2 and k % 4 == 0:
            intervals.append(Interval(k, n - 1 - k, size // 2))
    return intervals


def anything(n: int, rng: random.Random) -> list[Interval]:
    firsts = [rng.randrange(n) for _ in range(n)]
    return [Interval(f, min(n - 1, f + int(rng.expovariate(1 / 6))), 64 * rng.randint(1, 2000)) for f in firsts]


@pytest.mark.parametrize("seed", range(12))
def test_close_to_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    for intervals in (
        residual(30, rng),
        residual(300, rng),
        u_net(20 + 4 * seed),
        anything(40, rng),
        anything(120, rng),
    ):
        placed = plan(intervals)
        check(intervals, placed)
        assert placed.ratio <= 1.10, placed.ratio


def test_fast() -> None:
    intervals = residual(500, random.Random(5))
    start = time.process_time()
    plan(intervals)
    assert time.process_time() - start < 0.5


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=40), st.data())
def test_least_of_ranges(values: list[int], data: st.DataObject) -> None:
    begin = st.integers(0, len(values) - 1)
    ranges = [(a, data.draw(st.integers(a + 1, len(values)))) for a in data.draw(st.lists(begin, max_size=20))]
    assert _least_of_ranges(values, ranges) == [min(values[a:b]) for a, b in ranges]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=20))
def test_blocks_conflict_where_their_lives_meet(lives: list[tuple[int, int]]) -> None:
    blocks = [Block(first, first + length, 1) for first, length in lives]
    assert [sorted(others) for others in conflicts_of(blocks)] == [
        [k for k, b in enumerate(blocks) if b is not a and a.first <= b.last and b.first <= a.last] for a in blocks
    ]


def test_in_place_costs_nothing() -> None:
    chain = [Interval(0, 1, 1000), Interval(1, 2, 1000, alias=0), Interval(2, 3, 1000, alias=1)]
    placed = plan(chain)
    assert placed.offsets == (0, 0, 0)
    assert placed.live == 1000
    assert placed.arena == 1024


def test_same_plan_twice() -> None:
    intervals = anything(60, random.Random(3))
    assert plan(intervals) == plan(intervals)


@pytest.mark.parametrize("bad", [Interval(2, 1, 8), Interval(0, 0, -8), Interval(0, 0, 8, alias=0)])
def test_refused(bad: Interval) -> None:
    with pytest.raises(Error, match="block 0"):
        plan([bad])
