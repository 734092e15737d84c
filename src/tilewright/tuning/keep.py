"""Records of what a run found: one for each decision that was searched to its end, verified gains and ties alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.plans.framework.decisions import Decision
from tilewright.records import record as records
from tilewright.records.record import Record
from tilewright.targets.target import Target
from tilewright.tuning.judge import Gain

POLICY = "in the model 1"
"""The name of how was measured; the number changes when figures would no longer compare."""
MOST_KEPT = 64
"""Turns of a candidate that a record keeps: the last ones, which are the finals'."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one decision.

    Args:
        setting: the label that is best: the untuned one where no other was accepted.
        gain: of the decision's steps in the model.
        outcomes: of each label that was tried.
        turns: the seconds of the decision's steps, round by round, by label, the untuned one's among them.
        why: of labels that failed.
        rounds, loadings: of the finals.
        difference: of the model's outputs from the exact program's, tuned and untuned.
    """

    decision: Decision
    setting: str
    gain: Gain
    outcomes: Mapping[str, str]
    turns: Mapping[str, Sequence[float]]
    why: Mapping[str, str]
    rounds: int
    loadings: int
    difference: tuple[float, float] | None = None


def to_record(found: Finding, target: Target, time: int) -> Record:
    """The record of a finding, made now on this machine."""
    d = found.decision
    estimates = dict(zip(d.space.labels, d.estimates, strict=True))
    labels = dict.fromkeys([d.taken.label, *found.outcomes])
    candidates = [
        records.Candidate(
            label,
            found.outcomes.get(label, "timed"),
            estimates[label],
            tuple(records.rounded(t) for t in found.turns.get(label, ())[-MOST_KEPT:]),
            _printable(found.why.get(label, "")),
        )
        for label in labels
    ]
    better = found.setting != d.taken.label
    gain = records.Gain(found.gain.median, found.gain.low, found.gain.high, found.rounds) if better else records.NONE
    return Record.of(
        d.key,
        target,
        d.space,
        setting=found.setting,
        untuned=d.taken.label,
        policy=records.Policy(POLICY, "model", "model", found.rounds, found.loadings),
        candidates=tuple(candidates),
        gain=gain,
        made=records.provenance(target, time),
        difference=records.Difference(*found.difference) if found.difference and better else None,
    )


def to_records(found: Iterable[Finding], target: Target, time: int) -> list[Record]:
    """The records of all findings."""
    return [to_record(f, target, time) for f in found]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:300]
