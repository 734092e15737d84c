"""Records of the findings of a tuning run: one for each decision whose search was completed, for verified gains and for
ties."""

from __future__ import annotations

import time as clock
from collections.abc import Mapping, Sequence
from functools import cached_property

from tilewright.identity import code_version
from tilewright.plans.framework.decision_key import target_class
from tilewright.plans.framework.decisions import Decision
from tilewright.plans.framework.space import space_digest
from tilewright.records import record as records
from tilewright.records.lookup import lookup, seeds
from tilewright.records.record import Record
from tilewright.records.store import Store
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.tuning.significance import Gain
from tilewright.tuning.sites import Site

POLICY = "in the model 1"
"""The name of the measuring procedure; its number changes when new figures no longer compare with old ones."""
CONFIRM = "again in the model 1"
"""Policy of records that only measure a setting again which another compiler version recommended: they confirm it or
not, and claim nothing about alternatives."""
MAX_RETAINED = 64
"""The most turns of a candidate that a record keeps; the last ones are kept, which are those of the finals."""


SEEDS = 3
"""The number of settings of similar decisions that a search begins with."""
NEARBY = 2.0
"""How far the sizes of a similar decision may lie away (1.0: a factor of two in one of them) for what was found there
to guide a search: half of what such searches find is found by looking there alone (Transfer-Tuning, arXiv 2201.05587),
and here the estimates' own choice is what is compared with."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The findings of a tuning run about one decision.

    Args:
        setting: the label of the best setting: the untuned one if no other was accepted.
        gain: how many times faster the decision's steps are, measured in the model.
        outcomes: the outcome of each label that was tried.
        turns: the seconds of the decision's steps, round by round, by label, the untuned one's among them.
        why: the reason for each label that failed.
        rounds, loadings: how many the finals had.
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


def to_record(result: Finding, target: Target, time: int, policy: str = POLICY) -> Record:
    """The record of a finding by the search `policy`, with this machine's provenance and the given time in seconds."""
    d = result.decision
    estimates = dict(zip(d.space.labels, d.estimates, strict=True))
    labels = dict.fromkeys([d.selected.label, *result.outcomes])
    candidates = [
        records.Candidate(
            label,
            result.outcomes.get(label, "timed"),
            estimates[label],
            tuple(records.rounded(t) for t in result.turns.get(label, ())[-MAX_RETAINED:]),
            printable(result.why.get(label, "")),
        )
        for label in labels
    ]
    better = result.setting != d.selected.label
    gain = (
        records.Gain(result.gain.median, result.gain.low, result.gain.high, result.rounds) if better else records.NONE
    )
    return Record.of(
        d.key,
        target,
        d.space,
        setting=result.setting,
        untuned=d.selected.label,
        policy=records.Policy(policy, "model", "model", result.rounds, result.loadings),
        candidates=tuple(candidates),
        gain=gain,
        provenance=records.provenance(target, time),
        difference=records.Difference(*result.difference) if result.difference and better else None,
    )


@dataclass(frozen=True, slots=True)
class Seeds:
    """Labels that a search begins with; `close` tells that they come from decisions that hardly differ from this
    one."""

    labels: tuple[str, ...] = ()
    close: bool = False


class Memory:
    """The records about a target's class of machines that a tuning run reads, and to which it adds its findings.

    Args:
        store: their folder.
        fresh: use none that are there.
    """

    only_decided = False
    """Whether nothing else is timed than what records recommend."""
    policy = POLICY

    def __init__(self, store: Store, target: Target, *, fresh: bool = False) -> None:
        self.store = store
        self.target = target
        self.fresh = fresh

    @cached_property
    def _known(self) -> dict[str, Record]:
        """Decision -> the newest record that this compiler made."""
        if self.fresh:
            return {}
        results = sorted(self.store.records(target_class(self.target)), key=lambda r: (r.provenance.time, r.digest))
        return {r.decision: r for r in results if r.provenance.compiler == code_version() and r.policy.name == POLICY}

    def decided(self, site: Site) -> str | None:
        """The best setting for a site by a record of this compiler about exactly this space of settings; None without
        one."""
        entry = self._known.get(site.name)
        same = entry is not None and entry.space == space_digest(site.decision.space.labels)
        return entry.setting if entry is not None and same else None

    def seeds(self, site: Site) -> Seeds:
        """Labels to begin the search of `site` with: settings of records about similar decisions, the nearest first. If
        such a record confirms the setting that estimates prefer for its decision, the label is the setting that they
        prefer for this one."""
        if self.fresh:
            return Seeds()
        d = site.decision
        result = seeds([self.store], d.key, self.target, d.space, SEEDS)
        cached = [s for s in result if s.distance <= NEARBY and s.target == target_class(self.target)]
        records = [self.store.get(s.record, s.target) for s in cached]
        same = [record is not None and record.setting == record.untuned for record in records]
        proposed = [site.incumbent if retained else s.setting.label for s, retained in zip(cached, same, strict=True)]
        rest = [s.setting.label for s in result if s not in cached]
        return Seeds(tuple(dict.fromkeys(proposed or rest)), bool(proposed))

    def keep(self, result: Finding) -> None:
        """Keep a finding as a record."""
        self.store.put(to_record(result, self.target, int(clock.time()), self.policy))


class Unverified(Memory):
    """Records of other compilers, from all places where a compile looks: their settings are raced again, and a record
    of this compiler states whether they still win. This memory is asked before the others."""

    only_decided = True
    policy = CONFIRM

    def __init__(self, store: Store, target: Target, places: Sequence[Store]) -> None:
        super().__init__(store, target)
        self._lookup = lookup([store, *places], target)

    def decided(self, site: Site) -> str | None:
        """The setting of the record that a compile would use first, if another compiler made that record; else None."""
        for _, record in self._lookup.find(site.name) if self._lookup is not None else ():
            if record.provenance.compiler == code_version():
                return None
            if record.setting in site.decision.space.labels:
                return record.setting
        return None


def printable(text: str) -> str:
    """A text in the form that a record allows: one line of at most 300 characters."""
    return "".join(c if c.isprintable() else " " for c in text)[:300]
