"""What a plan is: a parameterised schedule for one kind of computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.ir.loops import PrimFunc
from tilewright.ir.target import Target
from tilewright.plans.analysis import Structure
from tilewright.schedule.schedule import Schedule

Knobs = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting of a plan's knobs and what it is estimated to take, in cycles (relative to other candidates)."""

    knobs: tuple[tuple[str, int], ...]
    cycles: float

    def knob(self, name: str) -> int:
        return dict(self.knobs)[name]


@dataclass(frozen=True, slots=True)
class Plan:
    """A way to schedule.

    fits        whether the plan can schedule a function of this structure
    candidates  settings of the knobs, the best estimate first
    apply       the primitives, recorded in the schedule's trace
    """

    name: str
    fits: Callable[[Structure, Target], bool]
    candidates: Callable[[Structure, Target], list[Candidate]]
    apply: Callable[[Schedule, Structure, Candidate, Target], None]


@dataclass(frozen=True, slots=True)
class Planned:
    """A scheduled function with the decision that led to it."""

    schedule: Schedule
    plan: str
    chosen: Candidate
    others: tuple[Candidate, ...]

    @property
    def func(self) -> PrimFunc:
        return self.schedule.func

    def describe(self) -> str:
        """Plan, knobs, estimate, and the runners-up."""
        lines = [f"plan {self.plan}: {_knobs(self.chosen)}  estimated {self.chosen.cycles:.0f} cycles"]
        lines += [f"  runner-up: {_knobs(c)}  estimated {c.cycles:.0f} cycles" for c in self.others[:3]]
        return "\n".join([*lines, str(self.schedule.trace).rstrip()])


def _knobs(candidate: Candidate) -> str:
    return ", ".join(f"{name}={value}" for name, value in candidate.knobs) or "no knobs"
