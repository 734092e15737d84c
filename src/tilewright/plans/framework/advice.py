"""The advice of tuning records about a decision, and whether it is followed.

Records are managed in a layer above plans; `decide` queries an `Advisor`. A record about exactly this decision on this
class of machines is followed if its setting is legal here and either this compiler measured it against the setting that
estimates prefer, or its estimate is close to the best. Records about similar decisions are never followed: they are
seeds for a search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tilewright.plans.framework.space import space_digest
from tilewright.runtime.recorded import RecordUse
from tilewright.support.classes import dataclass

CREDIBLE = 1.15
"""The factor by which the estimate of an unverified setting may exceed the best one: more than the error of estimates
among good settings (benchmarks/results/audit.md), less than the loss by settings that no estimate explains."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The statement of one tuning record about a decision.

    Args:
        record: its digest.
        setting: the label of the setting that it recommends.
        measured: the labels of the settings that were measured.
        space: a digest of the labels that were legal then.
        current: whether this version of the compiler measured it.
    """

    record: str
    setting: str
    measured: tuple[str, ...]
    space: str
    current: bool


class Advisor(Protocol):
    """A source of tuning records about decisions, for one class of machines."""

    @property
    def stamp(self) -> str:
        """A text that changes whenever an answer may change; "" if that is not known."""

    def advise(self, decision: str) -> tuple[Advice, ...]:
        """The records about the decision with this key name, the most relevant first."""


def answer(advices: Sequence[Advice]) -> str:
    """The digests of the records in `advices`, as text: compiled programs depend on it."""
    return " ".join(a.record for a in advices)


def follow(
    decision: str, advices: Sequence[Advice], labels: Sequence[str], estimates: Callable[[], Sequence[float]]
) -> tuple[int | None, RecordUse]:
    """(index in `labels` of the setting to choose about `decision`, or None if no advice is sound; the outcome for the
    record).

    Args:
        advices: at least one; advices measured among the same settings go first.
        labels: the settings' labels, the preferred one first.
        estimates: returns the settings' estimates, called if measurements do not suffice.
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
    """(index in `labels` of the setting that a record recommends, or None if it is not usable here; the record's state;
    the reason for it). `estimates` returns the settings' estimates."""
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
