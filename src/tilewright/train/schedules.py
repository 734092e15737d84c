"""Schedules: functions from the number of updates so far to a factor of all learning rates, like those of
`torch.optim.lr_scheduler`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.support.errors import ModelError

Schedule = Callable[[int], float]


def constant() -> Schedule:
    return lambda count: 1.0


def linear(updates: int, first: float = 1.0, last: float = 0.0) -> Schedule:
    """A linear change from `first` to `last` over `updates` updates (PyTorch's LinearLR)."""
    _positive(updates)
    return lambda count: first + (last - first) * min(count / updates, 1.0)


def cosine(updates: int, last: float = 0.0) -> Schedule:
    """Half a cosine wave from 1 to `last` (Loshchilov and Hutter, 2017; PyTorch's CosineAnnealingLR), and constant
    afterwards."""
    _positive(updates)
    return lambda count: last + (1 - last) * (1 + math.cos(math.pi * min(count / updates, 1.0))) / 2


def exponential(factor: float) -> Schedule:
    """A schedule by which the learning rate is multiplied by `factor` at every update (PyTorch's ExponentialLR)."""
    return lambda count: factor**count


def steps(milestones: Sequence[int], factor: float = 0.1) -> Schedule:
    """A schedule by which the learning rate is multiplied by `factor` at each of the updates `milestones` (PyTorch's
    MultiStepLR)."""
    at = sorted(milestones)
    return lambda count: factor ** sum(count >= m for m in at)


def warmup(updates: int, then: Schedule | None = None, first: float = 0.0) -> Schedule:
    """A linear increase from `first` to 1 over `updates` updates; then another schedule, whose count begins with 0
    there."""
    _positive(updates)

    def factor(count: int) -> float:
        if count < updates:
            return first + (1 - first) * count / updates
        return 1.0 if then is None else then(count - updates)

    return factor


def _positive(updates: int) -> None:
    if updates < 1:
        raise ModelError("a schedule takes at least one update", got=updates)
