"""Steps that plans for GPUs share: estimates of time, and the inlining of stages."""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import as_int
from tilewright.ir.loops import Block
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate
from tilewright.plans.framework.cost import SYMBOL, Cost, nbytes_of
from tilewright.schedule.schedule import Schedule
from tilewright.support.errors import ScheduleError
from tilewright.targets.target import Target

THREADS = 256
"""The threads of a block of pointwise work: eight warps; a multiprocessor holds eight such blocks."""


def traffic_cost(structure: Structure, target: Target, times: float = 1.0) -> Cost:
    """The cost of reading or writing all parameters `times` times: cycles at the bandwidth of all multiprocessors."""
    nbytes = sum(nbytes_of(b, SYMBOL) for b in structure.func.params)
    return Cost(memory=times * nbytes / (target.memory_bandwidth * target.cores))


def candidate(structure: Structure, target: Target, times: float = 1.0, **knobs: int) -> Candidate:
    """A candidate with `knobs` whose estimate is the time to move all parameters `times` times."""
    return Candidate(tuple(knobs.items()), traffic_cost(structure, target, times))


def inline(s: Schedule, structure: Structure, stage: Stage) -> bool:
    """Inline a pointwise stage into its readers. Returns False if that is not possible: for outputs, reductions, and
    what `compute_inline` refuses."""
    if stage.role != "spatial" or structure.is_output(stage):
        return False
    try:
        s.compute_inline(s.block(stage.name))
    except ScheduleError:
        return False
    return True


def points(block: Block) -> int:
    """The number of elements that a block computes; symbols count as `SYMBOL`."""
    return prod(as_int(it.extent) or SYMBOL for it in block.iters if it.kind == "spatial")


def steps(block: Block) -> int:
    """The number of terms of each sum of a block; symbols count as `SYMBOL`."""
    return prod(as_int(it.extent) or SYMBOL for it in block.iters if it.kind != "spatial")


__all__ = ["THREADS", "candidate", "inline", "points", "steps", "traffic_cost"]
