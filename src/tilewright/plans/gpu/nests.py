"""The general plan for a GPU: each stage is a kernel with a thread for each element, which computes its whole sum.

Stages without sums are inlined if that repeats little work. The plan is correct for all functions and fast for few:
other plans are preferred if they fit.
"""

from __future__ import annotations

from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.gpu.common import THREADS, candidate, inline, points, steps
from tilewright.plans.gpu.elements import ELEMENTS
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

REPEATED = 4
"""How many times the elements of an inlined stage may be computed, to save memory for them."""

COPIES = frozenset({"pad", "transpose", "reshape", "cast", "slice", "concat", "expand", "identity"})
"""Operators that cost nothing to be repeated."""


def _fits(structure: Structure, _target: Target) -> bool:
    return bool(structure.stages)


def _candidates(structure: Structure, target: Target) -> list[Candidate]:
    return [candidate(structure, target, 16.0, threads=THREADS)]


def _apply(s: Schedule, structure: Structure, candidate: Candidate, _target: Target) -> None:
    for stage in structure.stages:
        if cheap(structure, stage):
            inline(s, structure, stage)
    s.implement(ELEMENTS.name, threads=candidate.knob("threads"))


def cheap(structure: Structure, stage: Stage) -> bool:
    """Whether inlining a stage recomputes little: its elements are read at most `REPEATED` times on average, or it only
    copies."""
    if stage.origin is not None and (stage.origin.op in COPIES or stage.origin.stage in COPIES):
        return True
    readers = structure.consumers(stage)
    return sum(points(r.block) * steps(r.block) for r in readers) <= REPEATED * points(stage.block)


PLAN = Plan("gpu nests", _fits, _candidates, _apply)

__all__ = ["PLAN", "cheap"]
