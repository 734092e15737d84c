"""Scales from ranges and histograms, against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.quantization.ranges import METHODS, Ends, Histogram, ends_of, excess, scale_of, widened
from tilewright.support.errors import CallError

NUMBERS = st.floats(-1e6, 1e6, width=32)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(52)


@given(NUMBERS, NUMBERS)
def test_zero_and_both_ends_of_a_range_have_codes(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    scale = scale_of(low, high)
    assert 0 <= scale.zero <= 255 and scale.scale > 0
    first, last = scale.range
    assert first <= min(low, 0.0) + scale.scale / 2 * 1.001
    assert last >= max(high, 0.0) - scale.scale / 2 * 1.001


@pytest.mark.parametrize("low,high", [(0.0, 0.0), (1e-44, 1e-44), (-0.0, 0.0)])
def test_a_range_without_width_has_the_scale_one(low: float, high: float) -> None:
    assert scale_of(low, high) == scale_of(0.0, 0.0)
    assert scale_of(low, high).scale == 1.0


def histogram(values: np.ndarray) -> Histogram:
    created = Histogram(float(values.min()), float(values.max()))
    created.add(values)
    return created


def squared_error(values: np.ndarray, method: str) -> float:
    scale = histogram(values).scale(method)
    codes = np.clip(np.rint(values / scale.scale) + scale.zero, 0, 255)
    return float(np.mean(((codes - scale.zero) * scale.scale - values) ** 2))


def test_minmax_keeps_all_that_was_seen(rng: np.random.Generator) -> None:
    values = rng.standard_normal(5000)
    first, last = histogram(values).scale("minmax").range
    step = last - first
    assert first <= values.min() + step / 256 and last >= values.max() - step / 256


def test_an_outlier_is_cut_off_where_that_is_better(rng: np.random.Generator) -> None:
    values = np.append(rng.standard_normal(100_000), [60.0])
    assert histogram(values).scale("percentile").range[1] < 10
    assert histogram(values).scale("entropy").range[1] < 40
    assert squared_error(values, "mse") < 0.9 * squared_error(values, "minmax")


@pytest.mark.parametrize("method", METHODS)
def test_constants_have_a_scale(method: str) -> None:
    assert histogram(np.zeros(10)).scale(method).scale == 1.0
    first, last = histogram(np.full(10, 3.0)).scale(method).range
    assert first == 0 and last > 2.9


def test_a_method_that_there_is_not_is_refused() -> None:
    with pytest.raises(CallError, match="no such calibration method"):
        Histogram(0.0, 1.0).scale("best")  # type: ignore[arg-type]


@pytest.mark.daily(3)
@pytest.mark.parametrize("count", [2, 5, 20])
@pytest.mark.parametrize("kind", ["normal", "tails"])
def test_ranges_hold_the_ends_of_other_calls(count: int, kind: str) -> None:
    """One call of the same kind in a hundred at most goes beyond the range; ranges that are cut by a search are
    widened by as much."""
    rng = np.random.default_rng(52)

    def drawn(calls: int) -> Any:
        return rng.standard_normal((calls, 300)) if kind == "normal" else rng.standard_t(4, (calls, 300))

    beyond, factors = [], []
    for _ in range(60):
        arrays = drawn(count)
        ends, scale = [ends_of(x) for x in arrays], scale_of(arrays.min(), arrays.max())
        low, high = (wide := widened(scale, ends, 300)).range
        others = drawn(200)
        beyond.append(np.mean((others.min(1) < low - wide.scale) | (others.max(1) > high + wide.scale)))
        factors.append(wide.scale / scale.scale)
        half = scale_of(arrays.min() / 2, arrays.max() / 2)
        ratio = widened(half, ends, 300).scale / half.scale
        assert ratio == pytest.approx(factors[-1], rel=0.03)
    assert np.mean(beyond) < 0.01
    if kind == "normal":
        assert np.median(factors) < {2: 4.0, 5: 2.4, 20: 1.6}[count]


def test_ends_that_are_equal_are_bounds() -> None:
    scale = scale_of(-1.0, 2.0)
    for low, high, count in ((-1.0, 2.0, 5), (-1.0, 2.0, 1), (0.0, 0.0, 3)):
        assert widened(scale, [Ends(low, high)] * count, 100) is scale
    assert widened(scale, [], 100) is scale
    one_side = widened(scale, [Ends(-1.0, 2.0), Ends(-1.0, 1.5)], 100)
    assert one_side.range[0] == pytest.approx(-1.0, abs=one_side.scale) and one_side.range[1] > 2.2


def test_the_ends_of_an_array_and_how_heavy_its_tails_are() -> None:
    """By sorting; the index is 1/3 for Student's distribution of 3 degrees of freedom."""
    rng = np.random.default_rng(52)
    for size in (3, 6, 9, 1000):
        x = np.sort(rng.standard_normal(size).astype(np.float32))
        ends = ends_of(rng.permutation(x).reshape(1, -1))
        assert (ends.low, ends.high) == (x[0], x[-1])
        wanted = [np.log(side[:4] / side[4]).mean() if size > 4 and side[4] > 0 else 0.0 for side in (-x, x[::-1])]
        np.testing.assert_allclose(ends.tails, wanted, rtol=1e-6)
    heavy = [ends_of(rng.standard_t(3, 2000)) for _ in range(200)]
    light = [ends_of(rng.standard_normal(2000)) for _ in range(200)]
    assert np.mean([e.tails for e in heavy]) == pytest.approx(1 / 3, rel=0.1)
    assert np.mean([e.tails for e in light]) == pytest.approx(np.std([e.high for e in light]) / 3.4, rel=0.15)
    assert excess(heavy, 2000) > 0.2 and excess(light, 2000) < 0.001 and excess([], 10) == 0


def test_histograms_of_the_same_bins_are_added() -> None:
    rng = np.random.default_rng(52)
    values = rng.standard_normal(5000)
    part = Histogram(float(values[:1000].min()), float(values[:1000].max()), (-9.0, 9.0))
    whole = Histogram(float(values.min()), float(values.max()), (-9.0, 9.0))
    whole.add(values[1000:])
    whole.counts += part.add(values[:1000])
    np.testing.assert_array_equal(whole.counts, np.histogram(values, bins=2048, range=(-9, 9))[0])
    alone = Histogram(part.low, part.high)
    alone.add(values[:1000])
    for method in METHODS:
        assert part.scale(method).scale == pytest.approx(alone.scale(method).scale, rel=0.03)
