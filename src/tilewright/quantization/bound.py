"""A bound of the loss that a model has on calls other than those that were measured.

The loss is a mean over calls, of which the samples are few: it is bounded from above by Student's distribution, one
side, with `CONFIDENCE`. Of few samples the deviation itself is not known, and calls whose loss is great may be missing.
So the deviation is pooled with one that is as great as the mean (`PRIOR` samples have it: the posterior of a normal
mean under an inverse chi-squared prior, Gelman et al., Bayesian Data Analysis, 3.3).

    upper = mean + t(PRIOR + n - 1) * s / sqrt(n)        s^2 = (PRIOR * mean^2 + sum of (x - mean)^2) / (PRIOR + n - 1)

Relative errors are ratios of sums: squares of differences are averaged, and the variance is that of their residuals
from the ratio (the ratio estimator: Cochran, Sampling Techniques, 6.3). The bound holds for the distribution that the
samples represent, not for calls so rare that none is among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin, tan
from statistics import NormalDist

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError

CONFIDENCE = 0.99
"""The least share of draws of samples for which the loss on all calls is at most the bound, where losses are normal. Of
squared errors of few numbers, which are skewed, it is 0.95 to 0.98 (`tests/quantization/test_bound.py`)."""
PRIOR = 3
"""The number of prior degrees of freedom, with a deviation equal to the mean."""
SERIES = 200
"""The degrees of freedom from which on Student's distribution is approximated by an expansion about the normal one."""
MAX_REQUEST = 1 << 20
"""The largest number of samples that an error message asks for."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The metric of a model.

    metric   of the model; higher is better
    squares  of each sample the sum of the squares of the differences from the exact outputs, and that of the outputs;
             none where the metric is the caller's
    numbers  of each of the samples of a caller's metric, whose mean the metric is; none where it gives one number
    fitted   whether the model was fitted to these very samples
    """

    metric: float
    squares: tuple[tuple[float, float], ...] = ()
    numbers: tuple[float, ...] = ()
    fitted: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """How much of a metric a model loses.

    drop       as it was measured
    upper      the loss of all calls at most, with `CONFIDENCE`; `drop` where the metric is one number
    count      samples
    deviation  of the averaged numbers, with mean `mean`; the loss is the mean to the power `power`
    compared   False if the samples' outputs cannot be compared: they are integers, or all are 0
    """

    drop: float
    upper: float
    count: int = 0
    mean: float = 0.0
    deviation: float = 0.0
    power: float = 1.0
    compared: bool = True

    @property
    def margin(self) -> float:
        """The part of the bound that is more than the measured loss."""
        return self.upper - self.drop

    def __str__(self) -> str:
        if self.drop == self.upper == 0:
            return "nothing is lost"
        if not self.compared:
            return "the loss is not known: no output of a sample is a float other than 0"
        if self.upper == self.drop and not self.count:
            return f"loss {self.drop:.3g}, without a margin for other calls: the metric is one number"
        if not self.count:
            return f"loss {self.drop:.3g} on what the model was fitted to, which bounds that of no other call"
        text = f"loss {self.drop:.3g} on {self.count} samples, of all calls at most {self.upper:.3g}"
        more = self.samples_for(self.drop + self.margin / 2)
        return text if more is None else f"{text}; {more} samples would halve that margin"

    def beyond(self, most: float) -> str:
        """An explanation of why the loss exceeds `most`."""
        if not self.drop <= most:
            return f"by more than {most:g}"
        if not self.compared:
            return "and nothing bounds the loss: no output of a sample is a float other than 0; give a metric"
        if not self.count:
            return "and nothing bounds the loss of other calls than the sample that it was fitted to: give two or more"
        more = self.samples_for(most)
        enough = "" if more is None else f": {more} samples like these would show whether they do"
        return f"and other calls may lose up to {self.upper:.3g}, more than {most:g}{enough}"

    def samples_for(self, most: float) -> int | None:
        """The number of samples like these with which the bound would be `most`; None if no number suffices."""
        if not self.count or not self.drop < most:
            return None
        low, high = 1, MAX_REQUEST
        while low < high:
            middle = (low + high) // 2
            holds = _upper(self.mean, self.deviation, middle) ** self.power <= most
            low, high = (low, middle) if holds else (middle + 1, high)
        return high if high < MAX_REQUEST else None


def loss_of(exact: Scores, other: Scores) -> Loss:
    """The loss of a model compared with the exact one. Raises CallError if a caller's metric returns lists of different
    lengths."""
    if exact is other:
        return Loss(0.0, 0.0)
    drop = exact.metric - other.metric
    if other.squares:
        return _of_squares(drop, np.asarray(other.squares, np.float64), fitted=other.fitted)
    if len(exact.numbers) != len(other.numbers):
        counts = [len(numbers) or "a single number" for numbers in (exact.numbers, other.numbers)]
        what = "gives numbers of other samples in each call"
        raise CallError(what, where="metric", expected=f"{counts[0]}, as of the model in f32", got=counts[1])
    if exact.numbers:
        differences = np.asarray(exact.numbers) - np.asarray(other.numbers)
        mean, count = float(differences.mean()), len(differences)
        deviation = _pooled(mean, differences - mean)
        return Loss(drop, max(drop, _upper(mean, deviation, count)), count, mean, deviation)
    return Loss(drop, drop)


def student(confidence: float, freedom: int) -> float:
    """The quantile of Student's distribution with `freedom` degrees of freedom at the probability `confidence`, above
    1/2, by bisection of its finite series (Abramowitz and Stegun, 26.7.3 and 26.7.4); by its expansion about the normal
    distribution (26.7.5) from `SERIES` degrees of freedom on."""
    if freedom >= SERIES:
        z = NormalDist().inv_cdf(confidence)
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low, high = 0.0, pi / 2  # the arc tangent of the quantile by the root of the degrees of freedom
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 2 * confidence - 1 else (low, middle)
    return float(freedom**0.5 * tan(low))


def _within(angle: float, freedom: int) -> float:
    """The probability, by Student's distribution, of a magnitude of at most `sqrt(freedom) * tan(angle)`."""
    odd = freedom % 2
    term = total = cos(angle) if odd else 1.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cos(angle) ** 2 * (k - 1) / k
        total += term
    if not odd:
        return sin(angle) * total
    return 2 / pi * (angle + (sin(angle) * total if freedom > 1 else 0.0))


def _of_squares(drop: float, squares: np.ndarray, *, fitted: bool) -> Loss:
    difference, whole = squares.sum(0)
    if not np.isfinite(drop):
        return Loss(drop, drop)
    if not whole > 0:
        return Loss(drop, max(drop, 1.0), compared=False)
    count, mean = len(squares), float(difference / whole)
    residuals = (squares[:, 0] - mean * squares[:, 1]) / (whole / count)
    deviation = _pooled(mean, residuals)
    # What a model that was fitted to its samples loses on others may be all of it.
    upper = 1.0 if fitted else min(1.0, _upper(mean, deviation, count) ** 0.5)
    return Loss(drop, max(drop, upper), 0 if fitted else count, mean, deviation, 0.5)


def _pooled(mean: float, residuals: Sequence[float] | np.ndarray) -> float:
    total = PRIOR * mean**2 + float(np.sum(np.square(residuals)))
    return float((total / (PRIOR + len(residuals) - 1)) ** 0.5)


def _upper(mean: float, deviation: float, count: int) -> float:
    return float(mean + student(CONFIDENCE, PRIOR + count - 1) * deviation / count**0.5)
