"""Mark kernels whose weights come from a further level of memory than their own size suggests, as all weights of the
model do not fit into a nearer one.

A plan sees only one function; the note `NonresidentWeights` tells it.
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
    """The call with the note `NonresidentWeights`, if it reads some `weights` of the program and `away`, the level of
    memory that all weights come from, is further than the level that fits the kernel's own. Weights that fit into the
    first level get no note: reading them takes no time, and their kernel then is the same in all models."""
    mine = {b: v for b, v in zip(call.func.params, call.args, strict=True) if v in weights}
    read = [set(buffers_in(func.body)) for _, func in versions_of(call.func)]
    own = level(min(sum(v.known_bytes for b, v in mine.items() if b in used) for used in read), target)
    if own == "l1" or away is None or LEVELS.index(own) >= LEVELS.index(away):
        return call
    return replace(call, func=replace(call.func, notes=with_note(call.func.notes, NonresidentWeights(away))))
