"""The class of plans: a plan is a parameterised schedule for one kind of computation."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace

from tilewright.ir.expr import Expr, Var
from tilewright.ir.loops import PrimFunc
from tilewright.ir.notes import SingleThread, with_note
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.cost import Cost
from tilewright.plans.framework.space import Setting
from tilewright.plans.framework.variants import Values, dispatch, with_symbols
from tilewright.plans.framework.work import Added, Effort
from tilewright.schedule.routines import Routine
from tilewright.schedule.schedule import Schedule
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

BARRIERS = 1.0
"""The work, in times of a barrier, below which one thread runs a kernel. Two threads save half of the time at most, but
estimates of the smallest kernels are too low: they leave out the fixed costs of a call."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting of a plan's knobs with the estimated cost of the whole kernel, by stages, in cycles of one core.

    A symbolic extent counts as `SYMBOL` (`plans/framework/cost.py`), so that candidates of all plans are comparable.
    """

    knobs: tuple[tuple[str, int], ...]
    cost: Cost
    plan: str = ""

    @property
    def cycles(self) -> float:
        return self.cost.cycles

    def knob(self, name: str) -> int:
        return dict(self.knobs)[name]

    @property
    def setting(self) -> Setting:
        return Setting(self.plan, self.knobs)

    @property
    def label(self) -> str:
        """Plan and knobs as text, "contraction rows=6,width=16", by which a decision can be forced."""
        return self.setting.label


@dataclass(frozen=True, slots=True)
class Plan:
    """A parameterised schedule for one kind of computation: which functions it fits, its settings with estimates, and
    how it schedules.

    fits        whether the plan can schedule a function of this structure
    candidates  settings of the knobs, the best estimate first; of equal estimates the preferred one
    apply       applies the primitives, which the schedule's trace records
    cases       values of symbols for which a separate version is worth its code
    added       the work that a setting repeats on purpose
    restated    the routine that states an operator anew in parts of other sizes, which are knobs of the plan
                (`plans/framework/restate.py`); `apply` gets its result
    refines     names of plans to which this one is preferred for any estimates, if both fit, because their
                estimates leave out the difference
    """

    name: str
    fits: Callable[[Structure, Target], bool]
    candidates: Callable[[Structure, Target], list[Candidate]]
    apply: Callable[[Schedule, Structure, Candidate, Target], None]
    cases: Callable[[Structure, Target], list[Values]] = lambda *_: []
    added: Callable[[Structure, Candidate, Target], tuple[Added, ...]] = lambda *_: ()
    refines: tuple[str, ...] = ()
    restated: Routine | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate whose schedule performs more operations than its plan states: `excess` times as many; `worst` is the
    block that adds most."""

    candidate: Candidate
    excess: float
    worst: Effort

    def __str__(self) -> str:
        often = self.worst.performed / max(1, self.worst.ordered)
        return f"{self.candidate.label}: {self.excess:.2f} times the operations, {self.worst.block} {often:.3g} times"


@dataclass(frozen=True, slots=True)
class Planned:
    """A scheduled function with the decision that led to it.

    variants  (condition on symbols, version) pairs, of which the last ones are tested first
    alone     whether one thread runs the function, because sharing so little work would take longer
    symbols   the symbols as callers know them, if the function was estimated at other likely values
    """

    schedule: Schedule
    chosen: Candidate
    others: tuple[Candidate, ...]
    target: Target
    least: Cost
    variants: tuple[tuple[Expr, Planned], ...] = ()
    rejected: tuple[Rejected, ...] = ()
    alone: bool = False
    symbols: tuple[Var, ...] = ()

    @property
    def plan(self) -> str:
        """The plan's name."""
        return self.chosen.plan

    @property
    def remarks(self) -> tuple[str, ...]:
        """For a log: the rejected candidates, and the refused primitives of the chosen one; also of the variants."""
        own = (f"rejected {rejected}" for rejected in self.rejected)
        variants = (text for _, planned in self.variants for text in planned.remarks)
        return (*own, *self.schedule.refused, *variants)

    @property
    def func(self) -> PrimFunc:
        """The scheduled function, which selects among the variants."""
        func = self.schedule.func
        if self.alone:
            func = replace(func, notes=with_note(func.notes, SingleThread()))
        for condition, planned in self.variants:
            func = dispatch(condition, planned.func, func)
        known = {s.name: s for s in self.symbols}
        return with_symbols(func, {s: known[s.name] for s in func.symbols if known.get(s.name, s) is not s})

    def describe(self) -> str:
        """Plan, knobs, estimated time by stage, the limiting stage, and the runners-up, as text."""
        lines = [f"plan {self.chosen.label}  {_stages(self.chosen.cost, self.target)}"]
        others = [c for c in self.others if c.cost != self.chosen.cost]
        lines += [f"  runner-up: {c.label}  {_stages(c.cost, self.target)}" for c in others[:3]]
        lines += [f"  rejected: {rejected}" for rejected in self.rejected]
        if self.alone:
            lines.append("  one thread: a barrier takes longer")
        lines.append(f"  any schedule takes at least about {_microseconds(self.least.cycles, self.target)} µs")
        lines += [f"  {refusal}" for refusal in self.schedule.refused]
        lines.append(str(self.schedule.trace).rstrip())
        for condition, planned in self.variants:
            lines.append(f"variant {condition}\n{textwrap.indent(planned.describe(), '  ')}")
        return "\n".join(lines)


def _stages(cost: Cost, target: Target) -> str:
    stages = [f"{name} {_microseconds(cycles, target)}" for name, cycles in cost.stages.items() if cycles]
    return f"{_microseconds(cost.cycles, target)} µs ({', '.join(stages)}), bound by {cost.bound}"


def _microseconds(cycles: float, target: Target) -> str:
    return f"{cycles / target.frequency / 1e3:.3g}"
