"""Statistics of paired races: the ratio of two contenders' times with an interval, whether they are tied, and whether a
gain is verified.

A gain is the time of the incumbent divided by that of the challenger in the same round: above 1 the challenger is
faster. Where a program's memory happens to lie when it is loaded makes it some percent faster or slower for as long as
it stays loaded. So the rounds of one loading are not independent samples, and intervals are computed over loadings.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from tilewright.support.classes import dataclass

TIED = 1.02
"""Contenders whose times differ by less than this factor are tied."""
MIN_GAIN = 1.01
"""The median that a gain must exceed to be verified: smaller gains may come from where memory happens to lie."""
MODEL_GAIN = 1.005
"""The median gain from which a whole model counts as faster: its many steps find their memory in many places.
ResNet-50 against itself, loaded anew
five times: 0.999 to 1.005 in four races (Zen 4, 2026-11-26); smaller models differ more, and are loaded more often."""
COVERAGE = 0.9
"""The confidence of intervals: the probability that they contain the true ratio."""
WIDE = 1.1
"""If the ends of an interval differ by more than this factor, other processes disturbed the measurement."""
_SAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Gain:
    """The median of how many times faster a challenger is, with its confidence interval."""

    median: float
    low: float
    high: float

    @property
    def verified(self) -> bool:
        """Whether the challenger may replace the incumbent: the whole interval is above 1, and the median exceeds
        `MIN_GAIN`."""
        return self.low > 1.0 and self.median > MIN_GAIN

    @property
    def improves(self) -> bool:
        """Whether a whole model is faster: the interval lies above 1, and the median passes `MODEL_GAIN`."""
        return self.low > 1.0 and self.median > MODEL_GAIN

    @property
    def undecided(self) -> bool:
        """Whether further rounds may decide if the change is worth it: the interval contains `MIN_GAIN`."""
        return self.low <= MIN_GAIN < self.high

    @property
    def open(self) -> bool:
        """Whether more reloads could still decide: the interval contains `MODEL_GAIN`, is wider than it, and the
        median is past half of it."""
        half = (1.0 + MODEL_GAIN) / 2
        return self.high > MODEL_GAIN * max(self.low, 1.0) and not self.improves and self.median > half

    @property
    def disturbed(self) -> bool:
        """Whether the rounds vary more than the placement of memory explains."""
        return self.high > WIDE * self.low

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def to_dict(self) -> dict[str, float]:
        """The interval as data for JSON."""
        return asdict(self)


NONE = Gain(1.0, 1.0, 1.0)
"""The gain of a setting that changes nothing."""


def gain(loadings: Sequence[Sequence[float]], seed: int = 0) -> Gain:
    """The gain shown by paired ratios, which are grouped by loading. The interval is a bootstrap in two stages (Davison
    and Hinkley 1997, section 3.8), with random numbers from `seed`: loadings are drawn with replacement, then rounds of
    each loading."""
    loads = [np.asarray(rounds, float) for rounds in loadings if len(rounds)]
    if not loads:
        return NONE
    most = max(map(len, loads))
    lengths = np.array([len(rounds) for rounds in loads])
    padded = np.array([np.pad(rounds, (0, most - len(rounds)), constant_values=np.nan) for rounds in loads])
    draw = np.random.default_rng(seed)
    which = draw.integers(0, len(loads), (_SAMPLES, len(loads)))[:, :, None]
    rounds = (draw.random((_SAMPLES, len(loads), most)) * lengths[which]).astype(int)
    drawn = np.where(np.arange(most) < lengths[which], padded[which, rounds], np.nan).reshape(_SAMPLES, -1)
    low, high = np.quantile(np.nanmedian(drawn, axis=1), [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return Gain(float(np.median(np.concatenate(loads))), float(low), float(high))


def ratios(incumbent: Sequence[float], challenger: Sequence[float]) -> tuple[float, ...]:
    """The incumbent's time divided by the challenger's, for each round; rounds without a time are left out."""
    pairs = zip(incumbent, challenger, strict=False)
    return tuple(a / b for a, b in pairs if a > 0 and b > 0)


def there_and_back(gains: Sequence[float]) -> tuple[float, ...]:
    """Combine each two consecutive rounds into one, the geometric mean of their ratios.

    A race reverses the order of its contenders in each round, so that in turn each of the two finds its own data in the
    caches: NAT's calls against its own differ by 10 % from round to round for that reason (Zen 4, 2026-11-26), and the
    median of an odd number of rounds takes the side of the more frequent order.
    """
    pairs = zip(gains[::2], gains[1::2], strict=False)
    return tuple(math.sqrt(a * b) for a, b in pairs) or tuple(gains)


def slowness(gains: Sequence[float]) -> float:
    """The median time of a challenger as a multiple of the incumbent's, from the gains of its rounds."""
    return 1 / statistics.median(gains) if gains else float("inf")
