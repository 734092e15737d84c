"""Plans: parameterised schedules, one file for each kind of computation; `plan` takes the first that fits."""

from __future__ import annotations

from tilewright.ir.key import key
from tilewright.ir.loops import PrimFunc
from tilewright.ir.target import Target
from tilewright.plans import contraction, convolution, depthwise, dots, elementwise, plain, rows, transposed, winograd
from tilewright.plans.analysis import analyse
from tilewright.plans.base import Candidate, Plan, Planned
from tilewright.plans.cost import roofline
from tilewright.plans.decisions import decide
from tilewright.plans.variants import specialize
from tilewright.schedule.schedule import Schedule

PLANS: tuple[Plan, ...] = (
    plain.PLAN,
    winograd.PLAN,
    winograd.FILTERS,
    contraction.PLAN,
    dots.PLAN,
    convolution.PLAN,
    transposed.PLAN,
    depthwise.PLAN,
    elementwise.PLAN,
    rows.PLAN,
)
"""In order of preference; the last fits everything."""


def site(func: PrimFunc) -> str:
    """The name of the decision about a function's knobs (`plans/decisions.py`)."""
    return f"plan {key(func)}"


def plan(func: PrimFunc, target: Target) -> Planned:
    """Schedule an unscheduled function by the first plan that fits, with the knobs of the best estimate (or those that
    are forced at `site(func)`)."""
    structure = analyse(func)
    for candidate_plan in PLANS:
        if candidate_plan.fits(structure, target):
            choices = candidate_plan.candidates(structure, target)
            chosen = decide(lambda: site(func), choices, [c.label for c in choices], [c.cycles for c in choices])
            schedule = Schedule(func)
            candidate_plan.apply(schedule, structure, chosen, target)
            others = tuple(c for c in choices if c is not chosen)
            variants = tuple((v, plan(specialize(func, v), target)) for v in candidate_plan.cases(structure))
            least = roofline(structure, target)
            return Planned(schedule, candidate_plan.name, chosen, others, target, least, variants)
    raise AssertionError("the last plan fits everything")


__all__ = ["PLANS", "Candidate", "Plan", "Planned", "plan", "site"]
