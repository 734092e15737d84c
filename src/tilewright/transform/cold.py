"""Kernels that read their weights from memory at each call, as those of the model do not fit into the last cache.

A plan sees one function and cannot know it; where it matters for a schedule it is noted (`ColdWeights`).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.notes import ColdWeights, with_note
from tilewright.ops.lowered.winograd import CONV_WINOGRAD, ConvWinogradAttrs
from tilewright.plans.winograd.tiles import reads_cold
from tilewright.targets.target import Target
from tilewright.transform.call import KernelCall


def with_cold_weights(call: KernelCall, weights: int, target: Target) -> KernelCall:
    """The call with the note where it applies, in a model of so many bytes of weights. Operators whose plans do not ask
    go without, so that their kernels are the same in all models."""
    convolutions = [n.of(ConvWinogradAttrs) for n in call.group.nodes if n.op == CONV_WINOGRAD.name]
    if not any(reads_cold(attrs, weights, target) for attrs in convolutions):
        return call
    return replace(call, func=replace(call.func, notes=with_note(call.func.notes, ColdWeights())))
