"""Schedules: from the number of updates so far to a factor of all learning rates, as `torch.optim.lr_scheduler`'s."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.support.errors import ModelError

Schedule = Callable[[int], float]


def constant() -> Schedule:
    return lambda count: 1.0


def linear(updates: int, first: float = 1.0, last: float = 0.0) -> Schedule:
    """A straight line from `first` to `last` in so many updates (PyTorch's LinearLR)."""
    _positive(updates)
    return lambda count: first + (last - first) * min(count / updates, 1.0)


def cosine(updates: int, last: float = 0.0) -> Schedule:
    """Half a wave from 1 to `last` (Loshchilov and Hutter, 2017; PyTorch's CosineAnnealingLR), which then stays."""
    _positive(updates)
    return lambda count: last + (1 - last) * (1 + math.cos(math.pi * min(count / updates, 1.0))) / 2


def exponential(factor: float) -> Schedule:
    """Times `factor` at every update (ExponentialLR)."""
    return lambda count: factor**count


def steps(milestones: Sequence[int], factor: float = 0.1) -> Schedule:
    """Times `factor` at each milestone (MultiStepLR)."""
    at = sorted(milestones)
    return lambda count: factor ** sum(count >= m for m in at)


def warmup(updates: int, then: Schedule | None = None, first: float = 0.0) -> Schedule:
    """A straight line from `first` to 1 in so many updates; then another schedule, which begins there with 0."""
    _positive(updates)

    def factor(count: int) -> float:
        if count < updates:
            return first + (1 - first) * count / updates
        return 1.0 if then is None else then(count - updates)

    return factor


def _positive(updates: int) -> None:
    if updates < 1:
        raise ModelError("a schedule takes at least one update", got=updates)
