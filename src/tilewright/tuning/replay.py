"""Searches replayed on recorded measurements: which setting a search would have found, without timing anything.

Each space of settings was timed completely, two or three times. A search sees the times of the first measurement and is
evaluated by those of the second, so that lucky measurements do not count in its favour. The third stands for the
tuner's finals: it decides among the best few settings, and whether one of them replaces the incumbent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tilewright.plans.framework.space import Setting, Space
from tilewright.support.classes import dataclass
from tilewright.tuning.search import FINALISTS, Search
from tilewright.tuning.significance import MIN_GAIN


@dataclass(frozen=True, slots=True)
class Recorded:
    """The space of one decision with all its measured times.

    Args:
        about: the decision in words.
        labels: of the settings, the preferred one first.
        estimates: the estimated cycles of each.
        seen: the time of each as a multiple of the preferred one's, which a search sees.
        truth: the same from other races, by which it is evaluated.
        share: the decision's part of the model's time.
        finals: the same from a third measurement, which decides among finalists; empty if there was none.
    """

    about: str
    labels: tuple[str, ...]
    estimates: tuple[float, ...]
    seen: tuple[float, ...]
    truth: tuple[float, ...]
    share: float = 1.0
    finals: tuple[float, ...] = ()

    @property
    def space(self) -> Space:
        return Space(tuple(map(Setting.parse, self.labels)))

    @property
    def best(self) -> float:
        """The time of the setting that is best by the average of all measurements."""
        both = [a + b for a, b in zip(self.seen, self.truth, strict=True)]
        return self.truth[both.index(min(both))]

    def to_dict(self) -> dict[str, Any]:
        """The space as data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Recorded:
        """The object that was written by `to_dict`."""
        labels, estimates, seen, truth = (tuple(data[name]) for name in ("labels", "estimates", "seen", "truth"))
        return cls(data["about"], labels, estimates, seen, truth, data["share"], tuple(data.get("finals", ())))


@dataclass(frozen=True, slots=True)
class Played:
    """The outcome of a search on a recorded space: its choice, how many settings it timed, and its regret: how much
    longer the choice takes than the best setting."""

    choice: str
    timed: int
    regret: float


def play(recorded: Recorded, make: Callable[[Recorded], Search], count: int = 5) -> Played:
    """Replay on recorded times the search that `make` creates, which is told `count` times at once. Returns its choice
    and how good that is."""
    search = make(recorded)
    seen = dict(zip(recorded.labels, recorded.seen, strict=True))
    truth = dict(zip(recorded.labels, recorded.truth, strict=True))
    while labels := search.ask(count):
        for label in labels:
            search.tell(label, seen[label])
    choice = _decided(search, recorded)
    return Played(choice, search.measured, truth[choice] / recorded.best - 1)


def _decided(search: Search, recorded: Recorded) -> str:
    """The label that a search ends with on recorded times: the finalist with the best final time if its gain is large
    enough, else the incumbent."""
    incumbent = recorded.labels[0]
    if not recorded.finals or search.best == incumbent:
        return search.best
    times = dict(zip(recorded.labels, recorded.finals, strict=True))
    best = min(search.finalists(FINALISTS), key=lambda label: times[label], default=incumbent)
    return best if times[best] * MIN_GAIN < 1.0 else incumbent


def mean(spaces: Sequence[Recorded], make: Callable[[Recorded], Search]) -> tuple[float, float, float]:
    """Replay searches over recorded spaces: the mean and the worst regret, and the mean number of timed settings."""
    played = [play(recorded, make) for recorded in spaces]
    regrets = [p.regret for p in played]
    return sum(regrets) / len(played), max(regrets), sum(p.timed for p in played) / len(played)
