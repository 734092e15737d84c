"""From a scheduled function to flat loops that the code generators take: every pass by name, in order."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.loops import PrimFunc
from tilewright.targets.target import Target
from tilewright.transform.loops.blocks import lower_blocks
from tilewright.transform.loops.compact import compact_buffers
from tilewright.transform.loops.conditions import bound_loops, move_conditions
from tilewright.transform.loops.dead import drop_dead_stores
from tilewright.transform.loops.defer import defer_epilogues
from tilewright.transform.loops.merge import merge_loops
from tilewright.transform.loops.partition import partition_loops
from tilewright.transform.loops.pipeline import pipeline_loops
from tilewright.transform.loops.reuse import reuse_outputs
from tilewright.transform.loops.simplify import simplify_loops
from tilewright.transform.loops.workspace import plan_workspace
from tilewright.transform.math.expand import expand_math

Pass = Callable[[PrimFunc], PrimFunc]


def passes(target: Target) -> tuple[tuple[str, Pass], ...]:
    """The passes of `lower_loops`, with their names."""
    return (
        ("reuse outputs", lambda func: reuse_outputs(func, target.l1)),
        ("lower blocks", lower_blocks),
        ("simplify", simplify_loops),
        ("compact buffers", lambda func: compact_buffers(func, target.caches)),
        ("move conditions", move_conditions),
        ("partition loops", partition_loops),
        ("defer epilogues", defer_epilogues),
        ("simplify again", simplify_loops),
        ("merge loops", merge_loops),
        ("pipeline loops", lambda func: pipeline_loops(func, target.caches)),
        ("bound loops", bound_loops),
        ("drop dead stores", drop_dead_stores),
        ("expand math", lambda func: expand_math(func, target)),
        ("plan workspace", plan_workspace),
    )


def lower_loops(func: PrimFunc, target: Target) -> PrimFunc:
    """Flat loops: no blocks, every buffer placed, main parts free of conditions, ready for code generation."""
    for _, run in passes(target):
        func = run(func)
    return func


def readable_loops(func: PrimFunc, target: Target) -> PrimFunc:
    """The same loops for readers and for C: `exp` stays `exp`, not the polynomial that takes its place."""
    for name, run in passes(target):
        if name != "expand math":
            func = run(func)
    return func


__all__ = ["lower_loops", "passes", "readable_loops"]
