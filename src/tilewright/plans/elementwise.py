"""Pointwise and data-moving functions: everything inlined into the outputs, vectors inside, threads outside."""

from __future__ import annotations

from tilewright.ir.target import Target
from tilewright.plans.analysis import Structure
from tilewright.plans.base import Candidate, Plan
from tilewright.plans.common import inline_all, lanes_of, vectorize_spatial
from tilewright.schedule.schedule import Schedule


def fits(structure: Structure, target: Target) -> bool:
    return all(stage.role == "spatial" for stage in structure.stages)


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    return [Candidate((), 0.0)]


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    inline_all(s, structure, structure.stages)
    for stage in structure.stages:
        if structure.is_output(stage):
            vectorize_spatial(s, s.block(stage.name), target, lanes_of(stage, target))


PLAN = Plan("elementwise", fits, candidates, apply)
