"""Whatever comes, on a GPU: each stage is a kernel, an element of it a thread, and the thread does its whole sum.

Stages without sums are computed where they are read if that repeats little. It is right for all functions and fast for
few: other plans are preferred where they fit.
"""

from __future__ import annotations

from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.gpu.common import THREADS, candidate, inline, points, steps
from tilewright.plans.gpu.elements import ELEMENTS
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

REPEATED = 4
"""How often a stage's elements may be computed again to spare memory for them."""

COPIES = frozenset({"pad", "transpose", "reshape", "cast", "slice", "concat", "expand", "identity"})
"""Operators whose elements cost nothing to be read again."""


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
    """Whether each element of a stage is read a few times at most, or costs nothing."""
    if stage.origin is not None and (stage.origin.op in COPIES or stage.origin.stage in COPIES):
        return True
    readers = structure.consumers(stage)
    return sum(points(r.block) * steps(r.block) for r in readers) <= REPEATED * points(stage.block)


PLAN = Plan("gpu nests", _fits, _candidates, _apply)

__all__ = ["PLAN", "cheap"]
