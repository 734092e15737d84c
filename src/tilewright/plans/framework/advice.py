"""The advice of tuning records about a decision, and whether it is followed.

Who keeps records is above plans; `decide` asks an `Advisor`. A record about exactly this decision on this class of
machines is followed where its setting is legal here and either this compiler measured it against the one that the
estimates prefer, or the estimates stand by it. No record about anything else is, however near: that is a seed for a
search, not an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tilewright.plans.framework.space import space_digest
from tilewright.runtime.recorded import RecordUse
from tilewright.support.classes import dataclass

CREDIBLE = 1.15
"""An unverified setting may be estimated to take so many times as long as the best: more than estimates err by for
settings that are near the best (benchmarks/results/audit.md), less than what is lost where nothing was understood."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One record about a decision.

    Args:
        record: its digest.
        setting: the label that it recommends.
        measured: the labels that it was compared with.
        space: digest of the labels that there were.
        current: whether this very compiler measured it.
    """

    record: str
    setting: str
    measured: tuple[str, ...]
    space: str
    current: bool


class Advisor(Protocol):
    """An advisor: it knows records of a class of machines."""

    @property
    def stamp(self) -> str:
        """A text that changes whenever an answer may change; empty where that cannot be told."""

    def advise(self, decision: str) -> tuple[Advice, ...]:
        """The records about a decision, by its key's name, those that count most first."""


def answer(advices: Sequence[Advice]) -> str:
    """The records that a compile was told of, on which it depends."""
    return " ".join(a.record for a in advices)


def follow(
    decision: str, advices: Sequence[Advice], labels: Sequence[str], estimates: Callable[[], Sequence[float]]
) -> tuple[int | None, RecordUse]:
    """The place in `labels` of the setting to take, None where no advice is sound, and what became of the record.

    Args:
        advices: at least one; those measured among the same settings go first.
        labels: of the settings, the preferred one first.
        estimates: of them, asked where the measurements do not say enough.
    """
    here = space_digest(labels)
    refused: RecordUse | None = None
    for advice in sorted(advices, key=lambda a: a.space != here):
        place, state, why = _evaluated(advice, labels, estimates)
        use = RecordUse(decision, advice.setting, advice.record, state, why)
        if place is not None:
            return place, use
        refused = refused or use
    assert refused is not None
    return None, refused


def _evaluated(
    advice: Advice, labels: Sequence[str], estimates: Callable[[], Sequence[float]]
) -> tuple[int | None, str, str]:
    """The place of an advice's setting if it is sound, its state and why."""
    if advice.setting not in labels:
        return None, "unusable", "not among the settings here"
    place = labels.index(advice.setting)
    if advice.current and labels[0] in advice.measured:
        return place, "used", ""
    times = estimates()
    if times[place] > CREDIBLE * min(times):
        return None, "unusable", f"estimated to take over {CREDIBLE} times the best"
    why = "not measured against this machine's estimate" if advice.current else "measured with another compiler"
    return place, "unverified", why
