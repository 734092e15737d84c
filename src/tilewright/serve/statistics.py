"""Statistics of one model's requests: counts and times, cheap enough to update for every request."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PER_OCTAVE = 8
"""Buckets for each factor of two, so that quantiles have errors of at most 9 %."""
_MIN_SECONDS = 1e-6
_BUCKETS = 30 * _PER_OCTAVE
"""The number of buckets, up to 2**30 microseconds, 18 minutes."""


class Histogram:
    """A histogram of seconds with buckets of constant relative width (as HdrHistogram)."""

    __slots__ = ("_counts", "count", "total")

    def __init__(self) -> None:
        self._counts = [0] * (_BUCKETS + 1)
        self.count = 0
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        k = int(math.log2(seconds / _MIN_SECONDS) * _PER_OCTAVE) if seconds > _MIN_SECONDS else 0
        self._counts[min(k, _BUCKETS)] += 1

    def to_json(self) -> list[Any]:
        """The buckets that are not empty, as [index, count], and the sum: lists that JSON can hold."""
        return [[[k, n] for k, n in enumerate(self._counts) if n], self.total]

    def merge(self, numbers: Sequence[Any]) -> None:
        """Add the counts and the sum of another histogram, `numbers` in the form of `to_json`."""
        for k, number in numbers[0]:
            self._counts[k] += number
            self.count += number
        self.total += numbers[1]

    def quantile(self, share: float) -> float:
        """The seconds that the fraction `share` of the values does not exceed, rounded up to the end of a bucket; NaN
        if there are no values."""
        if not self.count:
            return math.nan
        left = math.ceil(share * self.count)
        for k, number in enumerate(self._counts):
            left -= number
            if left <= 0:
                return float(_MIN_SECONDS * 2 ** ((k + 1) / _PER_OCTAVE))
        return math.inf

    def cumulative(self, bounds: tuple[float, ...]) -> Iterator[tuple[float, int]]:
        """For each bound, the number of values up to it, as Prometheus's cumulative buckets."""
        total, k = 0, 0
        for bound in bounds:
            end = int(math.log2(bound / _MIN_SECONDS) * _PER_OCTAVE)
            total += sum(self._counts[k:end])
            k = end
            yield bound, total


class Duration:
    """How often something has happened (`count`), and the nanoseconds that it took in all (`ns`)."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += int(seconds * 1e9)


class Statistics:
    """The statistics of one version of a model."""

    def __init__(self) -> None:
        self.success, self.fail, self.queue, self.compute = Duration(), Duration(), Duration(), Duration()
        self.dropped: Counter[str] = Counter()
        self.failed: Counter[int] = Counter()
        self.batches: dict[int, Duration] = {}
        self.missed = 0
        """The number of answers after their deadline."""
        self.rows = 0
        self.executions = 0
        self.latency = Histogram()
        self.last = 0.0

    def answered(self, rows: int, queue: float, compute: float, total: float, missed: bool) -> None:
        """Count an answered request of `rows` rows: its seconds in `total`, in the queue and computed, and whether it
        `missed` its deadline."""
        for duration, seconds in ((self.success, total), (self.queue, queue), (self.compute, compute)):
            duration.count += 1
            duration.ns += int(seconds * 1e9)
        self.latency.add(total)
        self.rows += rows
        self.missed += missed
        self.last = time.time()

    def executed(self, rows: int, seconds: float) -> None:
        """Count a computed batch of `rows` rows that took `seconds`."""
        self.executions += 1
        duration = self.batches.get(rows)
        if duration is None:
            duration = self.batches[rows] = Duration()
        duration.add(seconds)

    def to_json(self) -> dict[str, Any]:
        """All numbers as JSON data."""
        return {
            "durations": [[d.count, d.ns] for d in self._durations()],
            "dropped": dict(self.dropped),
            "failed": list(self.failed.items()),
            "batches": [[rows, d.count, d.ns] for rows, d in self.batches.items()],
            "counts": [self.missed, self.rows, self.executions],
            "latency": self.latency.to_json(),
            "last": self.last,
        }

    def add(self, numbers: Mapping[str, Any]) -> None:
        """Add the statistics of another process, `numbers` in the form of `to_json`."""
        for duration, (count, ns) in zip(self._durations(), numbers["durations"], strict=True):
            duration.count += count
            duration.ns += ns
        self.dropped.update(numbers["dropped"])
        self.failed.update(dict(numbers["failed"]))
        for rows, count, ns in numbers["batches"]:
            duration = self.batches.setdefault(rows, Duration())
            duration.count += count
            duration.ns += ns
        missed, rows, executions = numbers["counts"]
        self.missed += missed
        self.rows += rows
        self.executions += executions
        self.latency.merge(numbers["latency"])
        self.last = max(self.last, numbers["last"])

    def _durations(self) -> tuple[Duration, ...]:
        return self.success, self.fail, self.queue, self.compute

    def refused(self, status: int, reason: str, seconds: float) -> None:
        """Count a request that was answered with an error after `seconds`: by the `reason` if it was dropped, else by
        the `status`."""
        self.fail.add(seconds)
        if reason:
            self.dropped[reason] += 1
        else:
            self.failed[status] += 1


__all__ = ["Duration", "Histogram", "Statistics"]
