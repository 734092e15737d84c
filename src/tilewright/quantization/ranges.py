"""Ranges of activations from histograms, and the scales and zero points that they give.

    minmax      all that was seen
    percentile  all but one in 10,000 at either end
    mse         the range whose quantisation has the least squared error (Banner et al. 2018, by search)
    entropy     the range that keeps most of the distribution's information (Migacz, GTC 2017)

Other calls go further than the samples did: where the ends of samples' ranges differ, all but `minmax` are widened to
what few other samples pass (`widened`).

Levels are asymmetric, of u8: a value is `(q - zero) * scale` and 0 is a level, as ONNX's QuantizeLinear has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError

Method = Literal["minmax", "percentile", "mse", "entropy"]
METHODS: tuple[Method, ...] = get_args(Method)

BINS = 2048
LEVELS = 256
TAIL = 1e-4
"""The share of the values that a percentile leaves out at either end."""
STEPS = 64
"""Ranges that a search tries: shares of the whole range."""
DEVIATIONS = 4.0
"""Standard deviations of the samples' ends that a range holds. On 64 further calls three products of 4 x 128, quantised
by 8 samples, lost 1.8 % with ranges as they were seen, 1.1 with three deviations, 1.0 with four (2026-11-30)."""
SMALLEST = float(np.finfo(np.float32).tiny) * LEVELS
"""Ranges below this, those of constants 0 among them, get the scale 1 and are not counted in bins."""


@dataclass(frozen=True, slots=True)
class Scale:
    """`value = (code - zero) * scale` for codes 0 to 255. `scale` is a number of f32."""

    scale: float
    zero: int

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest value that has a code."""
        return (-self.zero * self.scale, (LEVELS - 1 - self.zero) * self.scale)


def scale_of(low: float, high: float) -> Scale:
    """The levels that span a range, which is widened to hold 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low < SMALLEST:
        return Scale(1.0, 0)
    scale = float(np.float32((high - low) / (LEVELS - 1)))
    return Scale(scale, int(np.clip(np.rint(-low / scale), 0, LEVELS - 1)))


def widened(scale: Scale, ends: Sequence[tuple[float, float]]) -> Scale:
    """The levels of a range that is widened at each end by as much as the end of few calls is beyond all seen: beyond
    the mean of the samples' ends by `DEVIATIONS` of their standard deviations.

    Args:
        ends: the least and the greatest value of each sample.
    """
    if len(ends) < 2:
        return scale
    factors = []
    for values in (np.minimum([a for a, _ in ends], 0.0), np.maximum([b for _, b in ends], 0.0)):
        seen, expected = np.abs(values).max(), np.abs(values.mean()) + DEVIATIONS * values.std(ddof=1)
        factors.append(max(1.0, float(expected / seen)) if seen > 0 else 1.0)
    low, high = scale.range
    return scale if factors == [1.0, 1.0] else scale_of(low * factors[0], high * factors[1])


class Histogram:
    """How often values occur, in bins of one width over a range that is known before."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = min(low, 0.0), max(high, 0.0)
        self.counts = np.zeros(BINS, np.int64)

    def add(self, values: Any) -> None:
        """Count an array's values."""
        if self.high - self.low >= SMALLEST:  # else the scale is 1
            self.counts += np.histogram(values, bins=BINS, range=(self.low, self.high))[0]

    @property
    def centres(self) -> Any:
        """The middle of each bin, f64[BINS]."""
        width = (self.high - self.low) / BINS
        return self.low + (np.arange(BINS) + 0.5) * width

    def scale(self, method: Method) -> Scale:
        """The levels that a method chooses. Raises CallError for a method that there is not."""
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
        width = (self.high - self.low) / BINS
        return (self.low + float(first) * width, self.low + (min(int(last), BINS - 1) + 1.0) * width)

    def _searched(self, loss: Any) -> Scale:
        """The scale with the least loss among ranges that are cut at both ends in proportion, and at one end."""
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
        """Kullback and Leibler's, of the distribution cut to the range from the one that its levels can express. The
        bin of 0, which is a level, is left out: after a ReLU it would hold most of the distribution."""
        low, high = scale.range
        counts = np.where(np.abs(self.centres) * BINS < self.high - self.low, 0, self.counts)
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
    """The shares of the least and the greatest value that are tried."""
    cuts = [(float(s), float(s)) for s in shares]
    if low < 0 < high:
        cuts += [(float(s), 1.0) for s in shares[1:]] + [(1.0, float(s)) for s in shares[1:]]
    return cuts
