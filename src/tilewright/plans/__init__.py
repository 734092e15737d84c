"""Plans: parameterised schedules, one folder for each kind of computation; `plan` takes the first that fits."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.key import key
from tilewright.ir.loops import PrimFunc
from tilewright.plans.convolution import depthwise, direct, pixels, transposed, windows
from tilewright.plans.framework.analysis import Structure, analyse
from tilewright.plans.framework.base import Candidate, Plan, Planned, Rejected
from tilewright.plans.framework.cost import roofline
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.variants import specialize
from tilewright.plans.framework.work import MOST, work_of
from tilewright.plans.matmul import contraction, dots
from tilewright.plans.pointwise import elementwise, packing, unscheduled
from tilewright.plans.rows import plan as rows
from tilewright.plans.strassen import convolution as strassen_convolution
from tilewright.plans.strassen import products as strassen
from tilewright.plans.winograd import plan as winograd
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

PLANS: tuple[Plan, ...] = (
    unscheduled.PLAN,
    winograd.PLAN,
    winograd.FILTERS,
    strassen_convolution.PLAN,
    strassen.PLAN,
    strassen.WEIGHTS,
    pixels.PLAN,
    contraction.PLAN,
    dots.PLAN,
    windows.PLAN,
    direct.PLAN,
    transposed.PLAN,
    depthwise.PLAN,
    packing.PLAN,
    elementwise.PLAN,
    rows.PLAN,
)
"""In order of preference; the last fits everything."""


def site(func: PrimFunc) -> str:
    """The name of the decision about a function's knobs (`plans/framework/decisions.py`)."""
    return f"plan {key(func)}"


def plan(func: PrimFunc, target: Target) -> Planned:
    """Schedule an unscheduled function by the first plan that fits, with the knobs of the best estimate whose schedule
    does no more than it should (or those that are forced at `site(func)`)."""
    structure = analyse(func)
    taken, choices = _candidates(structure, target)
    chosen = _decide(func, choices)
    # What is forced is wanted as it is.
    trials = choices if chosen is choices[0] else [chosen]
    schedule, chosen, rejected = _first_lawful(func, structure, taken, trials, target)
    others = tuple(c for c in choices if c is not chosen and all(c is not r.candidate for r in rejected))
    variants = tuple((v, plan(specialize(func, v), target)) for v in taken.cases(structure))
    return Planned(schedule, taken.name, chosen, others, target, roofline(structure, target), variants, rejected)


def _first_lawful(
    func: PrimFunc, structure: Structure, taken: Plan, trials: Sequence[Candidate], target: Target
) -> tuple[Schedule, Candidate, tuple[Rejected, ...]]:
    """The first candidate whose schedule does the work that was ordered (`plans/framework/work.py`), the one that does
    least if none of them does, and those that were rejected before it."""
    rejected: list[Rejected] = []
    schedules: list[Schedule] = []
    for candidate in trials[:TRIALS]:
        schedule = Schedule(func)
        taken.apply(schedule, structure, candidate, target)
        work = work_of(schedule.func, taken.added(structure, candidate, target))
        if work.excess <= MOST:
            return schedule, candidate, tuple(rejected)
        rejected.append(Rejected(candidate, work.excess, work.worst))
        schedules.append(schedule)
    best = min(range(len(rejected)), key=lambda k: rejected[k].excess)
    return schedules[best], rejected[best].candidate, tuple(rejected)


TRIALS = 8
"""Candidates that are scheduled before the one that does least is taken."""


def forced(func: PrimFunc, target: Target) -> tuple[str, ...]:
    """The settings of a function and its variants that are not those of the best estimate, without scheduling it; what
    is decided is recorded as by `plan`."""
    structure = analyse(func)
    taken, choices = _candidates(structure, target)
    chosen = _decide(func, choices)
    own = () if chosen is choices[0] else (f"{site(func)}: {chosen.label}",)
    variants = (forced(specialize(func, v), target) for v in taken.cases(structure))
    return (*own, *(label for labels in variants for label in labels))


def _candidates(structure: Structure, target: Target) -> tuple[Plan, list[Candidate]]:
    taken = next(p for p in PLANS if p.fits(structure, target))
    return taken, taken.candidates(structure, target)


def _decide(func: PrimFunc, choices: list[Candidate]) -> Candidate:
    return decide(lambda: site(func), choices, [c.label for c in choices], [c.cycles for c in choices])


__all__ = ["PLANS", "Candidate", "Plan", "Planned", "forced", "plan", "site"]
