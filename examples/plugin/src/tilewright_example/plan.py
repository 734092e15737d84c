"""A plan for kernels with soft clipping: some vectors at once, as a hyperbolic tangent is a long chain of operations of
which several run side by side."""

from __future__ import annotations

from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import inline_all, lanes_of, parallelize
from tilewright.plans.framework.cost import Cost, roofline
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

VECTORS = (4, 2, 1)
"""Vectors at once that are tried."""


def fits(structure: Structure, target: Target) -> bool:
    """Pointwise kernels of one output, with the operator in them."""
    names = [stage.name for stage in structure.stages]
    outputs = [stage for stage in structure.stages if structure.is_output(stage)]
    return (
        any(name.startswith("soft_clip") for name in names)
        and all(stage.role == "spatial" and stage.spatial for stage in structure.stages)
        and len(outputs) == 1
    )


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    """The cycles that any schedule takes, and those of waiting where too few vectors are under way."""
    least = roofline(structure, target)
    results = []
    for vectors in VECTORS:
        # Each operation of the chain waits for the one before it unless other vectors have work meanwhile.
        waiting = max(1.0, target.costs.arithmetic.fma_latency / (vectors * target.fma_per_cycle))
        results.append(Candidate((("vectors", vectors),), least | Cost(compute=least.compute * (waiting - 1.0))))
    return sorted(results, key=lambda c: c.cycles)


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    inline_all(s, structure, structure.stages)
    (output,) = (stage for stage in structure.stages if structure.is_output(stage))
    *outer, inner = s.loops(s.block(output.name))
    chunk, vector = s.split(inner, factor=candidate.knob("vectors") * lanes_of(output, target))
    s.vectorize(vector)
    parallelize(s, [*outer, chunk])


PLAN = Plan("soft_clip", fits, candidates, apply)
