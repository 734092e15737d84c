"""Pointwise work on a GPU: intermediate stages are inlined, and each thread computes some neighbouring elements.

A thread moves 16 bytes at once where all accesses are to neighbours in memory.
"""

from __future__ import annotations

from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.gpu.common import THREADS, candidate, inline
from tilewright.plans.gpu.elements import ELEMENTS
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target


def _fits(structure: Structure, _target: Target) -> bool:
    return bool(structure.stages) and all(stage.role == "spatial" for stage in structure.stages)


def _candidates(structure: Structure, target: Target) -> list[Candidate]:
    return [candidate(structure, target, threads=THREADS)]


def _apply(s: Schedule, structure: Structure, candidate: Candidate, _target: Target) -> None:
    for stage in structure.stages:
        inline(s, structure, stage)
    s.implement(ELEMENTS.name, threads=candidate.knob("threads"))


PLAN = Plan("gpu pointwise", _fits, _candidates, _apply)

__all__ = ["PLAN"]
