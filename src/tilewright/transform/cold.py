"""Kernels that read their weights from memory at each call, as those of the model do not fit into the last cache.

A plan sees one function and cannot know it; where it matters for a schedule it is noted (`ColdWeights`).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.notes import ColdWeights, with_note
from tilewright.ops.lowered.by_size import CONV_BY_SIZE
from tilewright.ops.lowered.winograd import CONV_WINOGRAD
from tilewright.transform.call import KernelCall


def with_cold_weights(call: KernelCall, cold: bool) -> KernelCall:
    """The call with the note, if weights are `cold`. Operators whose plans do not ask go without, so that their kernels
    are the same in all models."""
    if not cold or not any(n.op in (CONV_WINOGRAD.name, CONV_BY_SIZE.name) for n in call.group.nodes):
        return call
    return replace(call, func=replace(call.func, notes=with_note(call.func.notes, ColdWeights())))
