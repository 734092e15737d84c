"""Draws of the cases of a test: each has its turn, and a day has as many values of parameters as can be."""

from __future__ import annotations

from itertools import product

import pytest

from tests.sampling import of_the_day, sampled

CASES = ["test.py::test[" + "-".join(values) + "]" for values in product("abc", "xy", ("f32", "f16"))]


@pytest.mark.parametrize("days", [1, 2, 5, 7, 12, 20])
@pytest.mark.parametrize("first", [0, 739_000])
def test_each_case_has_one_turn(days: int, first: int) -> None:
    """Where there are more days than cases, as many days as there are cases are enough."""
    turns = [of_the_day(CASES, days, first + k) for k in range(min(days, len(CASES)))]
    assert sorted(case for turn in turns for case in turn) == sorted(CASES)
    assert max(map(len, turns)) - min(map(len, turns)) <= 1


@pytest.mark.parametrize("day", range(3))
def test_a_day_has_every_value(day: int) -> None:
    chosen = of_the_day(CASES, 3, day)
    assert {value for case in chosen for value in case.partition("[")[2].rstrip("]").split("-")} >= set("abcxy")


def test_days_have_no_order_of_their_own() -> None:
    """Workers collect in one order; a test that is named alone has one case, which runs on every day."""
    assert sorted(of_the_day(CASES, 4, 3)) == sorted(of_the_day(CASES[::-1], 4, 3))
    assert all(of_the_day(CASES[:1], 4, day) == CASES[:1] for day in range(4))


def test_a_part_is_of_the_cases() -> None:
    part = sampled(CASES, 3)
    assert len(set(part)) == 3
    assert set(part) <= set(CASES)
    assert sampled(CASES, 99) == CASES
