"""Compares two models: the difference of their outputs, and their speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from tilewright.quantization.bound import Scores
from tilewright.quantization.samples import Feed
from tilewright.runtime.model import Model
from tilewright.runtime.target import is_gpu
from tilewright.support.classes import dataclass

ROUNDS = 21
"""The number of turns of each of two models that are compared."""
TURN = 1e-3
"""The least duration of a turn, in seconds."""


def squares(model: Model, feed: Feed, outputs: Mapping[str, Any]) -> tuple[float, float]:
    """The sum of the squares of all differences from a call's outputs of floats, and that of the outputs. Infinite
    elements, as masks produce, are ignored if both are equal; otherwise the first sum is not finite."""
    difference = whole = 0.0
    for name, array in model.run(feed).items():
        exact = np.asarray(outputs[name], np.float64)
        if np.asarray(outputs[name]).dtype.kind in "iub":
            continue
        ours = np.asarray(array, np.float64)
        both = np.isinf(exact) & (ours == exact)
        ours, exact = np.where(both, 0.0, ours), np.where(both, 0.0, exact)
        with np.errstate(invalid="ignore", over="ignore"):
            difference += float(np.sum((ours - exact) ** 2))
            whole += float(np.sum(exact**2))
    return difference, whole


def close_scores(pairs: Sequence[tuple[float, float]], *, fitted: bool = False) -> Scores:
    """The scores of a model from `pairs`, its `squares` on each sample: the metric is 1 minus their relative error, or
    minus infinity or NaN if infinite elements differ. `fitted`: the model was fitted to these samples themselves."""
    difference, whole = sum(d for d, _ in pairs), sum(w for _, w in pairs)
    metric = 1.0 - (difference / whole) ** 0.5 if whole > 0 else float(difference == 0)
    return Scores(metric, tuple(pairs), fitted=fitted)


def closeness(model: Model, feeds: Sequence[Feed], outputs: Sequence[Mapping[str, Any]]) -> float:
    """1 minus the relative error of all floating-point outputs on all samples."""
    return close_scores([squares(model, feed, exact) for feed, exact in zip(feeds, outputs, strict=True)]).metric


@dataclass(frozen=True, slots=True)
class Pairs:
    """The durations of calls of two models that took turns, in seconds."""

    first: tuple[float, ...]
    second: tuple[float, ...]

    @property
    def seconds(self) -> tuple[float, float]:
        """The median durations, in seconds, of a call of each of the two models."""
        return median(self.first), median(self.second)

    @property
    def faster(self) -> float:
        """The factor by which the second model is faster in at least three quarters of the pairs."""
        ratios = sorted(a / b for a, b in zip(self.first, self.second, strict=True))
        return ratios[len(ratios) // 4]


def in_turns(first: Model, second: Model, feed: Feed) -> Pairs:
    """Time calls of two models in turns; each turn is as many calls as take a millisecond.

    Models of one thread are timed by the processor time of the caller's thread, in which they run: other processes take
    wall time, and more of one model's turns than of the other's."""
    models = (first, second)
    alone = all(m.threads == 1 and not is_gpu(m.program.manifest.target) for m in models)
    clock = thread_time if alone else perf_counter
    counts = [max(1, int(TURN / max(_seconds(model, feed, 3, clock), 1e-9))) for model in models]
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for model, count, seconds in zip(models, counts, times, strict=True):
            seconds.append(_seconds(model, feed, count, clock))
    return Pairs(tuple(times[0]), tuple(times[1]))


def _seconds(model: Model, feed: Feed, count: int, clock: Callable[[], float]) -> float:
    begin = clock()
    for _ in range(count):
        model.run(feed)
    return (clock() - begin) / count
