"""Plan kernels with less than SMALL barriers of work for one thread, since sharing them does not pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tilewright.targets.target import Target

T = TypeVar("T")

SMALL = 20.0
"""The work, in times of a barrier, below which a layer is planned for one thread. Two threads save 4 % of the time of
such layers in the mean, and nothing after a pause (`bench_threads --random`); a plan that threads can share may cost
half as much again."""


def alone_if_small(rank: Callable[[Target], Sequence[T]], cycles: Callable[[T], float], target: Target) -> Sequence[T]:
    """The choices for a layer, the best first: for all threads of a call or, if there is little work, for one thread.

    Args:
        rank: returns the choices for a target, the best first.
        cycles: returns the estimate of a choice, in cycles of one core plus the idle cycles of others.
    """
    shared, small = rank(target), SMALL * target.barrier
    if target.threads == 1 or not shared or cycles(shared[0]) >= small * target.threads:
        return shared
    alone = rank(replace(target, threads=1))
    return alone if cycles(alone[0]) < small else shared
