"""Estimates of a batch's duration: the compiler's counts on a machine's roofline, corrected by measured durations.

The counts of operations and bytes in a program's manifest give the form of the curve over batch sizes before any batch
has run; each batch that runs corrects it at its size. Execution times of compiled programs vary by percents, which is
what makes deadlines plannable (Clockwork, OSDI 2020).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

_FORGET = 0.1
"""The weight of a new observation relative to all earlier ones."""
_MIN_MARGIN, _MAX_MARGIN = 0.05, 0.5
_OUTLIER = 4.0
"""A batch that takes more than this many times its estimate was interrupted by other work: its duration is cut to
that."""


class Estimates:
    """Estimated seconds of a batch by its number of rows.

    Args:
        most: rows of a batch.
        prior: seconds of a batch of so many rows by the compiler's counts, up to a factor.
    """

    def __init__(self, most: int, prior: Callable[[int], float]) -> None:
        self.sizes = sizes_up_to(most)
        self._prior = [max(prior(n), 1e-9) for n in self.sizes]
        self._ratio = [1.0] * len(self.sizes)
        self._seen = [0] * len(self.sizes)
        self._common, self._count = 1.0, 0
        self._error = 0.0
        self._least = float("inf")

    def seconds(self, rows: int) -> float:
        """The expected seconds of a batch."""
        k = bisect_left(self.sizes, rows)
        if k == 0:
            return self._at(0)
        if k == len(self.sizes):
            return self._at(k - 1) * rows / self.sizes[-1]
        low, high = self.sizes[k - 1], self.sizes[k]
        share = (rows - low) / (high - low)
        return self._at(k - 1) * (1 - share) + self._at(k) * share

    def _at(self, k: int) -> float:
        return self._prior[k] * (self._ratio[k] if self._seen[k] else self._common)

    @property
    def margin(self) -> float:
        """The relative margin by which a batch may exceed its estimate: twice the mean error so far."""
        return min(max(2 * self._error, _MIN_MARGIN), _MAX_MARGIN)

    def least(self, rows: int) -> float:
        """The estimate of a batch's best case, from the shortest duration observed."""
        return 0.0 if not self._count else self.seconds(rows) * self._least / max(self._ratios(rows), 1e-12)

    def _ratios(self, rows: int) -> float:
        return self._factor(min(bisect_left(self.sizes, rows), len(self.sizes) - 1))

    def bound(self, rows: int) -> float:
        """Seconds within which a batch usually ends: the estimate plus the margin."""
        return self.seconds(rows) * (1 + self.margin)

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a batch of `rows` rows that took `seconds`."""
        expected = self.seconds(rows)
        if self._count:
            seconds = min(seconds, expected * _OUTLIER)
            self._error += _FORGET * (abs(seconds - expected) / expected - self._error)
        k = min(bisect_left(self.sizes, rows), len(self.sizes) - 1)
        closest = k - 1 if k and rows - self.sizes[k - 1] < self.sizes[k] - rows else k
        ratio = seconds / (expected / self._factor(closest))
        self._least = min(self._least, ratio)
        # One that is much faster shows that those before it were interrupted.
        weight = max(_FORGET, 1 / (self._seen[closest] + 1), 0.5 if seconds < expected / 2 else 0.0)
        self._ratio[closest] += weight * (ratio - self._ratio[closest])
        self._seen[closest] += 1
        self._count += 1
        self._common += max(_FORGET, 1 / self._count) * (ratio - self._common)

    def _factor(self, k: int) -> float:
        return self._ratio[k] if self._seen[k] else self._common

    def best(self, limit: float) -> int:
        """The batch size with the highest throughput among those whose bound is at most `limit` seconds; 1 if there is
        none. Of sizes within 3 % of each other, the smallest."""
        chosen, rate = 1, 0.0
        for rows in sorted({*self.sizes, *(3 * n // 4 for n in self.sizes if n > 2)}):
            if self.bound(rows) > limit:
                break
            if rows / self.seconds(rows) > rate * 1.03:
                chosen, rate = rows, rows / self.seconds(rows)
        return chosen

    def table(self) -> list[tuple[int, float]]:
        """Batch sizes and their estimated seconds, for display."""
        return [(rows, self.seconds(rows)) for rows in self.sizes]


def sizes_up_to(most: int) -> Sequence[int]:
    """1, 2, 4, ... and `most`."""
    sizes = [1 << k for k in range(most.bit_length()) if 1 << k < most]
    return [*sizes, most]


__all__ = ["Estimates", "sizes_up_to"]
