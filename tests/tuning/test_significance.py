"""Gains need whole intervals, and rounds of one loading are no independent witnesses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.tuning.significance import NONE, Gain, gain, ratios, slowness, there_and_back


def rounds(median: float, noise: float, count: int = 11, seed: int = 0) -> list[float]:
    return (median * np.exp(noise * np.random.default_rng(seed).standard_normal(count))).tolist()


def test_a_clear_gain_is_verified_and_noise_is_not() -> None:
    assert gain([rounds(1.05, 0.01, seed=k) for k in range(5)]).verified
    assert not gain([rounds(1.0, 0.02, seed=k) for k in range(5)]).verified
    assert not gain([rounds(1.008, 0.0005, seed=k) for k in range(5)]).verified, "too little to change anything"


def test_one_lucky_loading_verifies_nothing() -> None:
    """All its rounds are fast, and the others' are not."""
    lucky = [rounds(1.2, 0.005), rounds(1.15, 0.005), *(rounds(1.0, 0.005, seed=k) for k in range(3))]
    assert not gain(lucky).verified
    flat = gain([[r for load in lucky for r in load]])
    assert gain(lucky).low <= flat.low, "were they independent, the interval would be narrower"


@given(st.lists(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6), min_size=1, max_size=4))
def test_intervals_hold_their_median_and_are_the_same_each_time(loadings: list[list[float]]) -> None:
    result = gain(loadings)
    assert result.low <= result.median * 1.000001 and result.median <= result.high * 1.000001
    assert result == gain(loadings)


def test_without_times_nothing_is_gained() -> None:
    assert gain([]) == gain([[]]) == NONE and not NONE.verified
    assert ratios([2.0, 0.0, 3.0], [1.0, 1.0]) == (2.0,)
    assert slowness([2.0, 4.0, 2.0]) == 0.5 and slowness([]) == float("inf")
    assert str(Gain(1.5, 1.25, 2.0)) == "1.500 [1.250, 2.000]"
    assert Gain(1.5, 1.25, 2.0).to_dict() == {"median": 1.5, "low": 1.25, "high": 2.0}


@pytest.mark.parametrize(("low", "median"), [(1.0, 1.2), (1.001, 1.01), (0.9, 1.5)])
def test_what_is_not_verified(low: float, median: float) -> None:
    assert not Gain(median, low, 2.0).verified


def test_more_rounds_are_wanted_only_while_the_interval_holds_the_least_gain() -> None:
    assert Gain(1.012, 1.004, 1.02).undecided and Gain(1.005, 0.99, 1.02).undecided
    assert not Gain(1.05, 1.03, 1.07).undecided and not Gain(0.99, 0.97, 1.005).undecided


def test_a_whole_model_may_improve_by_less() -> None:
    assert Gain(1.008, 1.003, 1.012).improves and not Gain(1.008, 1.003, 1.012).verified
    assert not Gain(1.005, 1.003, 1.012).improves and not Gain(1.02, 0.999, 1.03).improves
    assert Gain(1.02, 0.999, 1.03).open and Gain(1.004, 1.001, 1.008).open and Gain(1.003, 0.99, 1.008).open
    assert not Gain(1.008, 1.003, 1.012).open, "decided: faster"
    assert not Gain(1.002, 0.999, 1.004).open, "decided: not by enough"
    assert not Gain(1.0045, 1.003, 1.006).open, "known as well as is asked for"
    assert not Gain(0.999, 0.98, 1.02).open, "slower, if anything"
    assert not Gain(1.002, 0.98, 1.02).open and Gain(1.003, 0.98, 1.02).open, "so little will hardly become enough"


def test_rounds_of_both_orders_count_as_one() -> None:
    assert there_and_back([1.0, 1.21, 0.9, 0.9, 7.0]) == pytest.approx((1.1, 0.9))
    assert there_and_back([1.5]) == (1.5,) and there_and_back([]) == ()
    orders = [[0.95, 1.05] * 6] * 5
    assert gain(orders).low < 0.96 and gain([there_and_back(x) for x in orders]).low == pytest.approx(0.9987, abs=1e-4)
