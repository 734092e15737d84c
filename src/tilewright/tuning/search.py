"""Searches over the settings of one decision: descent from seeds by changing one knob at a time, pruned by estimates.

    search = Descent(space, estimates, policy)
    while labels := search.ask(4):
        for label in labels: search.tell(label, slowness of it, measured)
    search.finalists(3)

A search does not measure itself, so that recorded times can be replayed and searches compared.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol

from tilewright.plans.framework.space import Setting, Space
from tilewright.support.classes import dataclass
from tilewright.tuning.significance import TIED

PROMISING = 0.995
"""A setting whose time in the search exceeds this multiple of the incumbent's is not raced again: its gain would not
count."""


FINALISTS = 3
"""The number of a decision's settings that are raced again in the finals."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How far a search goes.

    Args:
        prune: settings whose estimates are worse than the best by more than this factor are not timed, but for seeds.
        slack: cycles by which a setting's estimate may be worse beside that: those of the smallest kernels leave out
            more than a half. M64's hidden layer (x86-64-v3 on Zen 4, 2026-11-26) takes 0.94 of the time a panel after
            the other that 668 cycles are estimated for, two at once 417.
        most: settings that are timed at most, the untuned one not counted.
        first: so many of the best estimates are timed before descent begins.
        tolerance: centres within this factor of the best are searched too. A centre is the incumbent or what is faster
            than it by what a search can tell: around others, which are many where all are equal, nothing is looked for.
        reach: each alternative is tried once whose best estimate is within this factor of the best of all. NAT's second
            convolution takes 0.6 of the time with Winograd's tiles of 4 that 1.7 is estimated for, and 3.4 where the
            machine's ceilings were not measured (Zen 4, 2026-11-26).
    """

    prune: float = 1.5
    slack: float = 300.0
    most: int = 20
    first: int = 3
    tolerance: float = 1.01
    reach: float = 4.0


class Search(Protocol):
    """A search over the labels of one decision's settings."""

    def ask(self, count: int) -> list[str]:
        """At most `count` labels to time next; an empty list means that the search is over."""

    def tell(self, label: str, slowness: float) -> None:
        """Tell the search the time of a label as a multiple of the incumbent's; infinity if it failed."""

    @property
    def best(self) -> str:
        """The label with the least time so far."""

    @property
    def measured(self) -> int:
        """The number of labels that were timed."""

    def finalists(self, count: int) -> list[str]:
        """At most `count` labels that may be verified to beat the incumbent, the best first."""


class _Told:
    """A search that collects the times it is told, relative to the incumbent's, which is 1; the base class of all kinds
    of searches."""

    def __init__(self, incumbent: str) -> None:
        self.incumbent = incumbent
        self.times: dict[str, float] = {incumbent: 1.0}

    def tell(self, label: str, slowness: float) -> None:
        self.times[label] = slowness

    @property
    def best(self) -> str:
        return min(self.times, key=lambda label: self.times[label])  # of equals the one that was told first

    @property
    def measured(self) -> int:
        return len(self.times) - 1

    def finalists(self, count: int) -> list[str]:
        """At most `count` labels that may be verified to beat the incumbent: those whose times are within measuring
        accuracy of the best."""
        ranked = sorted(self.times, key=lambda label: self.times[label])
        bound = min(self.times[ranked[0]] * TIED, PROMISING)
        return [x for x in ranked if x != self.incumbent and self.times[x] <= bound][:count]


class Descent(_Told):
    """One-knob descent: seeds, then the neighbours of the best so far, until no neighbour is untimed.

    Args:
        space: the preferred setting first.
        estimates: the cycles of each setting; 0.0 if nothing is estimated, in which case nothing is pruned.
        policy: how far the search goes.
        seeds: labels of records, of this decision and of decisions like it.
        incumbent: the setting in force, the preferred one if None.
        guided: whether the seeds come from decisions much like this one. Then only they and the setting with the best
            estimate are timed, and that one's neighbours if it wins; the neighbours of the seeds were timed there.
    """

    def __init__(
        self,
        space: Space,
        estimates: Sequence[float],
        policy: Policy,
        seeds: Sequence[str] = (),
        incumbent: str | None = None,
        guided: bool = False,
    ) -> None:
        super().__init__(incumbent or space.settings[0].label)
        self.space = space
        self._guided = guided
        self._proposed = frozenset(seeds)
        self.policy = policy
        self._settings = {s.label: s for s in space}
        self._estimates = dict(zip(space.labels, estimates, strict=True))
        self._least = min(self._estimates.values(), default=0.0)
        best = sorted(self.allowed, key=lambda label: self._estimates[label])
        others = self._alternatives()
        own = [x for x in best if x != self.incumbent][:1] if guided else [*best[: policy.first], *others]
        self._seeds = dict.fromkeys([*(s for s in seeds if s in self._settings), *own])
        self._asked: set[str] = {self.incumbent}

    def _alternatives(self) -> list[str]:
        """The label with the best estimate of each alternative whose estimate is not too far from the best; sizes of
        Winograd's tile count as separate alternatives, since their estimates err differently."""
        bound = self._least * self.policy.reach if self._least > 0 else math.inf
        within = [x for x, estimate in self._estimates.items() if estimate <= bound]
        result: dict[tuple[str, int], str] = {}
        for label in sorted(within, key=lambda x: self._estimates[x]):
            setting = self._settings[label]
            result.setdefault((setting.kind, dict(setting.knobs).get("tile", 0)), label)
        return list(result.values())

    @property
    def allowed(self) -> list[str]:
        """The labels whose estimates are good enough to be timed."""
        bound = self._bound(self._least)
        return [label for label, estimate in self._estimates.items() if estimate <= bound]

    def _bound(self, estimate: float) -> float:
        """The largest estimate with which a setting is timed, where the best setting has `estimate`."""
        return estimate * self.policy.prune + self.policy.slack if self._least > 0 else math.inf

    def rank(self, label: str) -> tuple[float, int]:
        """The sort key of a label by estimates: the least is the best; of equal ones the first of the space."""
        return self._estimates[label], self.space.labels.index(label)

    def ask(self, count: int) -> list[str]:
        count = min(count, self.policy.most - len(self._asked) + 1)
        result = [label for label in self._seeds if label not in self._asked][: max(count, 0)]
        if len(result) < count:
            result += [x for x in self._beside() if x not in self._asked and x not in result][: count - len(result)]
        self._asked.update(result)
        return result

    def _beside(self) -> list[str]:
        """The labels to try next: neighbours of the best labels so far, and settings with half the value of a knob,
        those of the best label first, each ordered by estimate."""
        centres = sorted(self.times, key=lambda label: self.times[label])
        best = self.times[centres[0]]
        result: dict[str, None] = {}
        if self._guided and (best > PROMISING or centres[0] in self._proposed):
            return []
        for centre in centres:
            if self.times[centre] > best * self.policy.tolerance:
                break
            if centre != self.incumbent and self.times[centre] > PROMISING:
                continue
            # Where an estimate is too high, so are those beside it.
            bound = self._bound(max(self._least, self._estimates[centre]))
            setting = self._settings[centre]
            beside = [s.label for s in (*self.space.neighbours(setting), *halved(self.space, setting))]
            beside = [label for label in beside if self._estimates[label] <= bound]
            result.update(dict.fromkeys(sorted(beside, key=lambda label: self._estimates[label])))
        return list(result)


def halved(space: Space, setting: Setting) -> list[Setting]:
    """The settings with about half the value of one knob where that is further than a step, which agree in most of the
    others. Times are no smooth function of a knob: IMP's Winograd layers of 16 channels take 0.95 of the time of 22
    rows with 18 and 1.08 with 17, but 0.88 with 12 (Zen 4, 2026-11-26)."""
    results = []
    for knob in space.knobs(setting.kind):
        value, positive = setting.knob(knob.name), [v for v in knob.values if v > 0]
        if value <= 0:
            continue
        half = min(positive, key=lambda v: abs(math.log2(2 * v / value)))
        if half != value and half not in knob.neighbours(value):
            alike = [s for s in space if s.kind == setting.kind and s.knob(knob.name) == half]
            results.append(max(alike, key=lambda s: len(set(s.knobs) & set(setting.knobs))))
    return results


class RandomSearch(_Told):
    """A search that draws settings at random from the whole space: a baseline for the other searches."""

    def __init__(self, space: Space, most: int, seed: int = 0) -> None:
        super().__init__(space.settings[0].label)
        others = [s.label for s in space.settings[1:]]
        self._queue = random.Random(seed).sample(others, min(most, len(others)))

    def ask(self, count: int) -> list[str]:
        selected, self._queue = self._queue[:count], self._queue[count:]
        return selected


class EstimateOnly(_Told):
    """A search that takes the estimates' choice without any measurement: a baseline for the other searches."""

    def __init__(self, space: Space) -> None:
        super().__init__(space.settings[0].label)

    def ask(self, count: int) -> list[str]:
        return []
