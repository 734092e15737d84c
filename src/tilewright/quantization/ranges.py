"""Ranges of activations from histograms, and the scales and zero points that they give.

    minmax      the range of all values
    percentile  all but one in 10,000 at either end
    mse         the range whose quantisation has the least squared error (Banner et al. 2018, by search)
    entropy     the range that keeps most of the distribution's information (Migacz, GTC 2017)

Other calls may exceed the samples' ranges: if the ends of the samples' ranges differ, all methods but `minmax` widen
the range so that few other samples exceed it (`widened`).

Levels are asymmetric, of u8: a value is `(q - zero) * scale` and 0 is a level, as ONNX's QuantizeLinear has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, pi, sqrt
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np

from tilewright.quantization.bound import student
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError

Method = Literal["minmax", "percentile", "mse", "entropy"]
METHODS: tuple[Method, ...] = get_args(Method)

BINS = 2048
LEVELS = 256
TAIL = 1e-4
"""The share of the values that the method `percentile` leaves out at either end."""
STEPS = 64
"""The number of candidate ranges that a search tries: shares of the whole range."""
INSIDE = 1 - 1e-4
"""The probability that the end of another call is inside of the widened range."""
TOP = 4
"""The number of largest elements of a sample from which the weight of its tail is estimated."""
MIN_SIZE = 32
"""The least number of elements in the estimate of how much a maximum varies."""
PRIOR = 5
"""The number of prior samples for the deviation of a maximum that follows from the tail's index, which for two samples
is a mean of eight numbers."""
MAX_REACH = 20.0
"""The logarithm of the largest widening factor."""
SMALLEST = float(np.finfo(np.float32).tiny) * LEVELS
"""The width of a range below which, as for a constant 0, the scale is 1 and there is no histogram."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale and zero point: `value = (code - zero) * scale` for codes 0 to 255. `scale` is a number of f32."""

    scale: float
    zero: int

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value that has a code."""
        return (-self.zero * self.scale, (LEVELS - 1 - self.zero) * self.scale)


def scale_of(low: float, high: float) -> Scale:
    """The scale for the range from `low` to `high`, widened to contain 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low < SMALLEST:
        return Scale(1.0, 0)
    scale = float(np.float32((high - low) / (LEVELS - 1)))
    return Scale(scale, int(np.clip(np.rint(-low / scale), 0, LEVELS - 1)))


@dataclass(frozen=True, slots=True)
class Ends:
    """The smallest and largest number of a sample, and the indices of both tails: the mean logarithm of the ratio of
    the `TOP` largest magnitudes to the next one (Hill, Annals of Statistics 3, 1975), which estimates the logarithm of
    how much the end of another sample may differ."""

    low: float
    high: float
    tails: tuple[float, float] = (0.0, 0.0)


def ends_of(values: Any) -> Ends:
    """The extremes and tail indices of a non-empty array."""
    flat = np.asarray(values).reshape(-1)
    if flat.size <= TOP:
        return Ends(float(flat.min()), float(flat.max()))
    ordered = np.partition(flat, (TOP, flat.size - TOP - 1)) if flat.size > 2 * TOP else np.sort(flat)
    low, high = -ordered[: TOP + 1].astype(np.float64), ordered[-TOP - 1 :].astype(np.float64)
    return Ends(-float(low.max()), float(high.max()), (_tail(low), _tail(high)))


def _tail(magnitudes: Any) -> float:
    least = magnitudes.min()
    return float(np.sum(np.log(magnitudes / least)) / TOP) if least > 0 else 0.0


def excess(ends: Sequence[Ends], size: int) -> float:
    """How much heavier the tails of samples with `size` elements are than those of normal numbers."""
    return float(max(0.0, *(_index(ends, side) - _normal(size) for side in (0, 1)))) if ends else 0.0


def _index(ends: Sequence[Ends], side: int) -> float:
    """The mean tail index of the samples on one side, less its standard error, which is that of a mean of exponentially
    distributed numbers."""
    return float(np.mean([e.tails[side] for e in ends])) * (1 - 1 / sqrt(TOP * len(ends)))


def _normal(size: int) -> float:
    """The tail index of `size` normal numbers, within a tenth by simulation, from the quantile that `TOP` of them
    exceed; it also is the relative deviation of their maximum."""
    quantile = NormalDist().inv_cdf(1 - (TOP + 1) / max(size, MIN_SIZE))
    return 1 / (quantile * quantile + 2)


def widened(scale: Scale, ends: Sequence[Ends], size: int, heavier: float = 0.0) -> Scale:
    """The scale and zero point of a range that is widened at each end, so that the ends of another call exceed it with
    a probability of 1 - `INSIDE` only.

    An end moves to the prediction limit for one more call, by Student's distribution of the ends' logarithms, since
    ends of heavy tails vary by factors. The ends' relative deviation is that of the samples, pooled with `PRIOR` prior
    samples whose deviation is that of the maximum of `size` normal numbers plus, if the tails are heavier than normal
    ones, pi / sqrt(6) (Gumbel) times the difference of the tail indices. An end that is equal in all samples counts as
    a bound and does not move. With fewer than two samples `scale` is returned unchanged.

    Args:
        scale: of the samples' range.
        ends: of each sample.
        size: elements of a sample.
        heavier: the least difference of tail indices that is assumed: `excess` of the model's inputs, as values that
            are computed from them are large in the same calls as they are.
    """
    count = len(ends)
    if count < 2:
        return scale
    factors = []
    sides = ([-min(e.low, 0.0) for e in ends], [max(e.high, 0.0) for e in ends])
    for side, values in enumerate(map(np.asarray, sides)):
        if values.min() == values.max():
            factors.append(1.0)
            continue
        usual = _normal(size) + pi / sqrt(6) * max(heavier, _index(ends, side) - _normal(size), 0.0)
        squares = float(np.sum((values / values.mean() - 1) ** 2))
        deviation = log(1 + (PRIOR * usual**2 + squares) / (PRIOR + count - 1)) ** 0.5  # of the logarithm
        reach = student(INSIDE, PRIOR + count - 1) * deviation * (1 + 1 / count) ** 0.5
        factors.append(max(1.0, float(values.mean() / values.max()) * exp(min(reach - deviation**2 / 2, MAX_REACH))))
    low, high = scale.range
    return scale if factors == [1.0, 1.0] else scale_of(low * factors[0], high * factors[1])


class Histogram:
    """A histogram with bins of equal width over a known range: that of the values, or a wider one, `bins`, so that
    histograms of several choices of samples have common bins."""

    def __init__(self, low: float, high: float, bins: tuple[float, float] | None = None) -> None:
        self.low, self.high = min(low, 0.0), max(high, 0.0)
        first, last = bins or (low, high)
        self.first, self.last = min(first, 0.0), max(last, 0.0)
        self.counts = np.zeros(BINS, np.int64)

    def add(self, values: Any) -> Any:
        """Count an array's values. Returns their counts, i64[BINS], for histograms with the same bins."""
        counts = np.zeros(BINS, np.int64)
        if self.last - self.first >= SMALLEST:  # else the scale is 1
            counts = np.histogram(values, bins=BINS, range=(self.first, self.last))[0]
        self.counts += counts
        return counts

    @property
    def width(self) -> float:
        """The width of a bin."""
        return (self.last - self.first) / BINS

    @property
    def centres(self) -> Any:
        """The middle of each bin, f64[BINS]."""
        return self.first + (np.arange(BINS) + 0.5) * self.width

    def scale(self, method: Method) -> Scale:
        """The scale that a method chooses. Raises CallError for an unknown method."""
        match method:
            case "minmax":
                return scale_of(self.low, self.high)
            case "percentile":
                return scale_of(*self._percentile())
            case "mse":
                return self._searched(self._squared_error)
            case "entropy":
                return self._searched(self._divergence)
        raise CallError("no such calibration method", expected=" ".join(METHODS), got=method)

    def _percentile(self) -> tuple[float, float]:
        total = self.counts.sum()
        if not total:
            return (0.0, 0.0)
        share = np.cumsum(self.counts) / total
        first, last = np.searchsorted(share, TAIL), np.searchsorted(share, 1 - TAIL)
        return (self.first + float(first) * self.width, self.first + (min(int(last), BINS - 1) + 1.0) * self.width)

    def _searched(self, loss: Any) -> Scale:
        """The scale with the least `loss` among those of ranges that are cut at both ends in proportion, or at one
        end."""
        if not self.counts.any():
            return scale_of(self.low, self.high)
        shares = np.linspace(1.0, 0.2, STEPS)
        tried = [scale_of(self.low * a, self.high * b) for a, b in _cuts(shares, self.low, self.high)]
        losses = [loss(scale) for scale in tried]
        return tried[int(np.argmin(losses))]

    def _quantised(self, scale: Scale) -> Any:
        codes = np.clip(np.rint(self.centres / scale.scale) + scale.zero, 0, LEVELS - 1)
        return (codes - scale.zero) * scale.scale

    def _squared_error(self, scale: Scale) -> float:
        return float(np.dot(self.counts, (self._quantised(scale) - self.centres) ** 2))

    def _divergence(self, scale: Scale) -> float:
        """The Kullback-Leibler divergence between the distribution, clipped to the range, and the one that its levels
        can express. The bin of 0, which is a level, is omitted: after a ReLU it would hold most values."""
        low, high = scale.range
        counts = np.where(np.abs(self.centres) < self.width, 0, self.counts)
        inside = (self.centres >= low) & (self.centres <= high)
        if not inside.any():
            return float("inf")
        reference = np.where(inside, counts, 0).astype(np.float64)
        where = np.flatnonzero(inside)
        reference[where[0]] += counts[: where[0]].sum()
        reference[where[-1]] += counts[where[-1] + 1 :].sum()
        codes = np.clip(np.rint(self.centres / scale.scale) + scale.zero, 0, LEVELS - 1).astype(np.int64)
        nonzero = inside & (counts > 0)
        sums = np.bincount(codes[inside], weights=np.where(inside, counts, 0)[inside], minlength=LEVELS)
        sizes = np.bincount(codes[nonzero], minlength=LEVELS)
        spread = np.where(nonzero, sums[codes] / np.maximum(sizes[codes], 1), 0.0)
        p, q = reference / max(reference.sum(), 1.0), spread / max(spread.sum(), 1.0)
        present = p > 0
        return float(np.sum(p[present] * np.log(p[present] / np.maximum(q[present], 1e-12))))


def _cuts(shares: Any, low: float, high: float) -> list[tuple[float, float]]:
    """Candidate ranges: `low` and `high` times each share, and, if 0 is between them, only one of both times a
    share."""
    cuts = [(float(s), float(s)) for s in shares]
    if low < 0 < high:
        cuts += [(float(s), 1.0) for s in shares[1:]] + [(1.0, float(s)) for s in shares[1:]]
    return cuts
