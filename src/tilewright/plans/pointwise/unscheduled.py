"""The plan that changes nothing: for functions with an empty loop, which gain nothing and which primitives cannot
transform, and for functions whose work external functions do."""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.cost import Cost
from tilewright.schedule.external import externals_in
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target


def _fits(structure: Structure, _target: Target) -> bool:
    if externals_in(structure.func.body):
        return True
    return any(as_int(it.extent) == 0 for stage in structure.stages for it in stage.block.iters)


def _candidates(_structure: Structure, _target: Target) -> list[Candidate]:
    return [Candidate((), Cost())]


def _apply(_schedule: Schedule, _structure: Structure, _candidate: Candidate, _target: Target) -> None:
    pass


PLAN = Plan("unscheduled", _fits, _candidates, _apply)
