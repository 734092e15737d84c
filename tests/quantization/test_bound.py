"""The bound of a loss: quantiles by Student's tables, how often it holds by simulation, and what it asks for."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tilewright.quantization.bound import CONFIDENCE, SERIES, Loss, Scores, loss_of, student
from tilewright.support.errors import CallError

EXACT = Scores(1.0)


def scores(squares: Any, *, fitted: bool = False) -> Scores:
    difference, whole = np.sum(squares, 0)
    return Scores(1 - float((difference / whole) ** 0.5), tuple(map(tuple, squares)), fitted=fitted)


@pytest.mark.parametrize(
    "confidence,freedom,quantile",
    [
        (0.99, 1, 31.821),
        (0.999, 2, 22.327),
        (0.99, 3, 4.541),
        (0.95, 4, 2.132),
        (0.95, 10, 1.812),
        (0.999, 15, 3.733),
        (0.99, 120, 2.358),
        (0.99, SERIES - 1, 2.345),
        (0.99, SERIES, 2.345),
        (0.95, 10**6, 1.645),
    ],
)
def test_quantiles_are_those_of_tables(confidence: float, freedom: int, quantile: float) -> None:
    assert student(confidence, freedom) == pytest.approx(quantile, abs=6e-4)


@pytest.mark.daily(4)
@pytest.mark.parametrize("count", [1, 2, 5, 20])
@pytest.mark.parametrize("freedom", [4, 12, 100])
def test_the_bound_holds_as_often_as_it_says(count: int, freedom: int) -> None:
    """Squared errors of `freedom` numbers, in calls of different sizes: the loss of all calls is 0.01."""
    rng = np.random.default_rng(52)
    held = 0
    for _ in range(1500):
        whole = rng.lognormal(0, 0.5, count)
        difference = 1e-4 * whole * rng.chisquare(freedom, count) / freedom
        held += loss_of(EXACT, scores(np.stack([difference, whole], 1))).upper >= 0.01
    assert held / 1500 > {4: 0.93, 12: 0.955, 100: CONFIDENCE - 0.015}[freedom]


def test_the_margin_becomes_small_with_the_number_of_samples() -> None:
    rng = np.random.default_rng(52)
    margins = []
    for count in (25, 100, 400):
        whole = rng.uniform(0.5, 1.5, count)
        loss = loss_of(EXACT, scores(np.stack([1e-4 * whole * rng.uniform(0.5, 1.5, count), whole], 1)))
        margins.append(loss.margin / loss.drop)
        assert loss.drop == pytest.approx(0.01, rel=0.1)
    assert margins[0] < 0.15 and margins[2] < 0.02
    assert all(a > 1.9 * b for a, b in pairwise(margins))  # as the root of the number, or faster


def test_one_sample_has_the_deviation_that_is_supposed() -> None:
    loss = loss_of(EXACT, scores([(4e-4, 4.0)]))
    assert loss.drop == pytest.approx(0.01) and loss.upper == pytest.approx(0.01 * (1 + 4.541) ** 0.5, rel=1e-3)


def test_the_number_of_samples_that_it_says_bounds_the_loss() -> None:
    squares = [(0.8e-4, 1.0), (1.2e-4, 1.0)] * 3
    loss = loss_of(EXACT, scores(squares))
    assert loss.drop == pytest.approx(0.01) and loss.upper > 0.012
    enough = loss.samples_for(0.011)
    assert enough is not None and enough > 6 and loss.samples_for(0.01) is None
    assert f": {enough} samples like these" in loss.beyond(0.011)
    assert loss_of(EXACT, scores([(0.8e-4, 1.0), (1.2e-4, 1.0)] * (enough // 2 + 1))).upper <= 0.011


@pytest.mark.parametrize(
    "first,second,upper,words",
    [
        (Scores(0.9), Scores(0.8), 0.1, "the metric is one number"),
        (Scores(0.9), Scores(0.9), 0.0, "nothing is lost"),
        (EXACT, scores([(1e-4, 1.0)], fitted=True), 1.0, "of no other call"),
        (EXACT, scores([(4.0, 1.0)]), 2.0, "of all calls at most 2"),
        (EXACT, scores([(1e-4, 1.0)] * 9), 0.01214, "of all calls at most 0.0121; 33 samples would halve"),
        (Scores(1.0, numbers=(1.0,) * 9), Scores(1.0, numbers=(1.0,) * 9), 0.0, "nothing is lost"),
    ],
)
def test_losses_without_and_with_margins(first: Scores, second: Scores, upper: float, words: str) -> None:
    loss = loss_of(first, second)
    assert loss.upper == pytest.approx(upper, rel=1e-3) and words in str(loss)


@pytest.mark.parametrize("squares,drop", [(((0.0, 0.0),) * 9, 0.0), (((1e-9, 0.0),) * 9, 1.0)])
def test_outputs_that_say_nothing_bound_no_loss(squares: Any, drop: float) -> None:
    loss = loss_of(EXACT, Scores(1 - drop, squares))
    assert (loss.drop, loss.upper) == (drop, 1.0) and "the loss is not known" in str(loss)
    assert ("give a metric" if drop < 0.5 else "by more than 0.5") in loss.beyond(0.5)
    assert loss.samples_for(0.5) is None and loss_of(EXACT, EXACT) == Loss(0.0, 0.0)


@pytest.mark.parametrize("numbers", [(), (1.0,) * 8])
def test_numbers_of_other_samples_are_refused(numbers: tuple[float, ...]) -> None:
    with pytest.raises(CallError, match="metric: gives numbers of other samples in each call: expected 9"):
        loss_of(Scores(1.0, numbers=(1.0,) * 9), Scores(1.0, numbers=numbers))


@pytest.mark.parametrize("metric", [float("nan"), float("-inf")])
def test_what_is_no_number_is_no_bound(metric: float) -> None:
    loss = loss_of(EXACT, Scores(metric, ((float("inf"), 1.0),)))
    assert not loss.upper <= 1e9 and "more than 0.01" in loss.beyond(0.01)
    assert Loss(0.0, 0.0).samples_for(0.01) is None
