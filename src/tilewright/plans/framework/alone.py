"""Kernels under SMALL barriers of work are planned for one thread: sharing them does not pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tilewright.targets.target import Target

T = TypeVar("T")

SMALL = 20.0
"""Layers that one thread is estimated to finish in so many barriers are planned for one. Two threads save 4 % of them
in the mean, and nothing after a pause (`bench_threads --random`); a plan that others can share may cost half as much
again."""


def alone_if_small(rank: Callable[[Target], Sequence[T]], cycles: Callable[[T], float], target: Target) -> Sequence[T]:
    """Choices for a layer, the best first: as the threads of a call share it or, where there is little to do, as one
    thread does it.

    Args:
        rank: the choices for a machine, the best first.
        cycles: what a choice is estimated to take, in cycles of one core and of those that others miss meanwhile.
    """
    shared, small = rank(target), SMALL * target.barrier
    if target.threads == 1 or not shared or cycles(shared[0]) >= small * target.threads:
        return shared
    alone = rank(replace(target, threads=1))
    return alone if cycles(alone[0]) < small else shared
