"""Checks, without measuring, whether a record still holds for this compiler: is its workload the decision's, does its
setting exist, do the estimates still agree, and does its schedule do no more work than its plan states."""

from __future__ import annotations

from dataclasses import replace

from tilewright.identity import code_version
from tilewright.ir.loops import PrimFunc
from tilewright.plans import candidates, named, plan
from tilewright.plans.framework.advice import Advice, follow
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.decision_key import target_class
from tilewright.plans.framework.decisions import forcing
from tilewright.plans.framework.work import MAX_EXCESS, work_of
from tilewright.records.record import Record
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error
from tilewright.targets.target import Target


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check: "used", "unverified" or "unusable", as a compile would treat the record, or "unknown"; and
    why."""

    state: str
    why: str = ""


def checked(record: Record, target: Target | None = None) -> Verdict:
    """Check a record as a compile for a target would; for this machine if None."""
    try:
        key = record.key()
    except Error as error:
        return Verdict("unusable", str(error).splitlines()[0])
    machine = replace(target or Target.host(), threads=record.threads)
    if target_class(machine) != record.target:
        return Verdict("unknown", "about other machines")
    if not isinstance(key.program, PrimFunc):
        why = "" if record.provenance.compiler == code_version() else ", and another compiler measured it"
        return Verdict("unknown", f"its settings depend on the model around it{why}")
    try:
        choices = candidates(analyse(key.program), machine)
    except Error as error:
        return Verdict("unusable", str(error).splitlines()[0])
    current = record.provenance.compiler == code_version()
    advice = Advice(record.digest, record.setting, record.measured, record.space, current)
    labels = [c.label for c in choices]
    _, use = follow(record.decision, [advice], labels, lambda: [c.cycles for c in choices])
    problem = "" if use.state == "unusable" else _replayed(record, key.program, machine)
    return Verdict("unusable", problem) if problem else Verdict(use.state, use.why)


def _replayed(record: Record, func: PrimFunc, target: Target) -> str:
    """The fault of the schedule that the record's setting produces, as text: it cannot be applied, or does excess work.
    "" if there is none."""
    try:
        with forcing({record.decision: record.setting}):
            planned = plan(func, target)
    except Error as error:
        return f"cannot be scheduled: {str(error).splitlines()[0]}"
    work = work_of(planned.schedule.func, named(planned.plan).added(analyse(func), planned.chosen, target))
    return f"does {work.excess:.2f} times the work" if work.excess > MAX_EXCESS else ""
