"""Scales from ranges and histograms, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.quantization.ranges import METHODS, Histogram, scale_of, widened
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


def test_ranges_hold_the_ends_of_other_calls(rng: np.random.Generator) -> None:
    """By the differences between the samples' ends; those of equal ends stay as they are."""
    ends = [(-1.0, float(10 + d)) for d in rng.standard_normal(12)]
    scale = scale_of(-1.0, max(high for _, high in ends))
    wide = widened(scale, ends)
    highs = np.array([high for _, high in ends])
    expected = max(highs.max(), highs.mean() + 4 * highs.std(ddof=1))
    assert scale.range[1] < wide.range[1]
    np.testing.assert_allclose(wide.range, (-1.0, expected), rtol=0, atol=wide.scale)
    for same in ([(-1.0, 2.0)] * 5, [(-1.0, 2.0)], [], [(0.0, 0.0)] * 3):
        assert widened(scale, same) is scale
    cut = scale_of(-0.5, 0.5 * highs.max())  # by a search: it is widened by as much
    np.testing.assert_allclose(widened(cut, ends).range[1] / cut.range[1], expected / highs.max(), rtol=0.02)
