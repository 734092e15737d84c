"""The slowest calls of a canary: how many times longer its tail is than the stable program's, with a lower bound.

A tail is made of disturbances, most of which are the machine's. So single times say little, but pairs do: the two calls
of a pair came one right after the other, in changing order, and without a difference each of them is as likely as the
other to be the slow one. The test is the randomization test for matched pairs (Fisher 1935, The Design of Experiments,
section 21; McNemar 1947 for counts) over processes: a process whose slowest calls are the canary's d times more often
than the stable program's counts d, and without a difference d and -d are as likely. This is exact however heavy the
disturbances are, and however long they last, for nothing is assumed of the pairs of one process.

A tail that is longer by less than the disturbances needs more pairs. Example: a quarter of the calls takes six times as
long, and one in twenty is disturbed for a time without mean. Six processes of 200 pairs show it in 25 of 100 cases, of
1,000 pairs in 88 (`tests/farm/test_tails.py` has these distributions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.support.classes import dataclass

SLOWEST = 0.01
"""The share of calls that makes up the tail."""
LEVEL = 0.05
"""The significance level of the test: a tail that is not longer is reported as longer in at most one case of twenty."""
_WIDEST = 64.0
_STEPS = 24


@dataclass(frozen=True, slots=True)
class Tail:
    """How many times longer the slowest calls of the canary take than those of the stable program.

    `median` is the median ratio over the processes; `low` is a lower bound at the level `LEVEL` of the test, 0.0 if the
    test does not reach that level, as with fewer than five processes.
    """

    median: float
    low: float

    def __str__(self) -> str:
        return f"{self.median:.2f} (at least {self.low:.2f})"


def tail(processes: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Tail:
    """Estimate the tail ratio from the times of several processes, each the stable program's times and the canary's,
    pair by pair.

    The lower bound is the test turned round (Hodges and Lehmann 1963): the largest factor by which the canary's times
    may be divided while its tail is still found to be longer.
    """
    times = [np.array(each, float) for each in processes if len(each[0])]
    if not times:
        return Tail(1.0, 0.0)
    ratios = [float(np.quantile(t, 1 - SLOWEST) / max(np.quantile(s, 1 - SLOWEST), 1e-12)) for s, t in times]
    low, high = 1 / _WIDEST, _WIDEST
    if not longer(times, low):
        return Tail(float(np.median(ratios)), 0.0)
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if longer(times, middle) else (low, middle)
    return Tail(float(np.median(ratios)), low)


def longer(processes: Sequence[np.ndarray], factor: float) -> bool:
    """Whether the randomization test at level `LEVEL` finds the canary's tail longer than `factor` times the stable
    program's. Each process is an array of two rows of times: the stable program's, and the canary's."""
    return chance([_excess(s, t / factor) for s, t in processes]) <= LEVEL


def _excess(stable: np.ndarray, tried: np.ndarray) -> int:
    """How many more of the slowest calls of both programs together are of the program `tried` than of `stable`;
    negative if fewer."""
    both = np.concatenate([stable, tried])
    number = math.ceil(SLOWEST * len(both))
    limit = np.partition(both, len(both) - number - 1)[len(both) - number - 1]
    return int((tried > limit).sum()) - int((stable > limit).sum())


def chance(excesses: Sequence[int]) -> float:
    """The p-value of a sign test: the share, among all ways to give signs to the numbers `excesses`, of those whose sum
    is at least as large."""
    ways = {0: 1.0}
    for number in map(abs, excesses):
        if number:
            sums: dict[int, float] = {}
            for total, share in ways.items():
                for signed in (total + number, total - number):
                    sums[signed] = sums.get(signed, 0.0) + share / 2
            ways = sums
    return sum(share for total, share in ways.items() if total >= sum(excesses))


__all__ = ["LEVEL", "Tail", "chance", "longer", "tail"]
