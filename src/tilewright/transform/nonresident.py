"""Kernels whose weights come from further away than their size tells: those of the model around do not fit there.

A plan sees one function and cannot know it; where it matters for a schedule it is noted (`NonresidentWeights`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.ir.graph import Value
from tilewright.ir.notes import NonresidentWeights, SharedLevel, with_note
from tilewright.ir.rewrite import buffers_in
from tilewright.plans.framework.cost import LEVELS, level
from tilewright.plans.framework.variants import versions_of
from tilewright.targets.target import Target
from tilewright.transform.call import KernelCall


def with_nonresident_weights(
    call: KernelCall, weights: Collection[Value], away: SharedLevel | None, target: Target
) -> KernelCall:
    """The call with the note, if it reads `weights` of the program that are `away` in a level further than their own
    size tells, or than that of the weights which one of its versions reads. What fits into the first level goes
    without: it is read in no time, and its kernel is the same in all models."""
    mine = {b: v for b, v in zip(call.func.params, call.args, strict=True) if v in weights}
    read = [set(buffers_in(func.body)) for _, func in versions_of(call.func)]
    own = level(min(sum(v.known_bytes for b, v in mine.items() if b in used) for used in read), target)
    if own == "l1" or away is None or LEVELS.index(own) >= LEVELS.index(away):
        return call
    return replace(call, func=replace(call.func, notes=with_note(call.func.notes, NonresidentWeights(away))))
