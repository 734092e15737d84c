"""Plans: parameterised schedules, one file for each kind of computation; `plan` takes the first that fits."""

from __future__ import annotations

from tilewright.ir.loops import PrimFunc
from tilewright.ir.target import Target
from tilewright.plans import contraction, convolution, elementwise, plain, rows
from tilewright.plans.analysis import analyse
from tilewright.plans.base import Candidate, Plan, Planned
from tilewright.schedule.schedule import Schedule

PLANS: tuple[Plan, ...] = (plain.PLAN, contraction.PLAN, convolution.PLAN, elementwise.PLAN, rows.PLAN)
"""In order of preference; the last fits everything."""


def plan(func: PrimFunc, target: Target) -> Planned:
    """Schedule an unscheduled function by the first plan that fits, with the knobs of the best estimate."""
    structure = analyse(func)
    for candidate_plan in PLANS:
        if candidate_plan.fits(structure, target):
            choices = candidate_plan.candidates(structure, target)
            schedule = Schedule(func)
            candidate_plan.apply(schedule, structure, choices[0], target)
            return Planned(schedule, candidate_plan.name, choices[0], tuple(choices[1:]))
    raise AssertionError("the last plan fits everything")


__all__ = ["PLANS", "Candidate", "Plan", "Planned", "plan"]
