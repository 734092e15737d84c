"""The number of pixels that a Winograd convolution converts if it changes the layout of its input or output in its own
kernel.

`transform/graph/conversions.py` compares that number with the pixels that a separate conversion moves.
"""

from __future__ import annotations

from math import ceil

from tilewright.algorithms.winograd.operators.convolution import ConvWinogradAttrs
from tilewright.algorithms.winograd.operators.correlation import reach
from tilewright.algorithms.winograd.plan.tiles import blocked, problems_of
from tilewright.algorithms.winograd.selection import Winograd
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ir.notes import SharedLevel
from tilewright.plans.framework.cost import beyond
from tilewright.targets.target import Target


def strips(conv: Node, inward: bool, target: Target, away: SharedLevel | None) -> float | None:
    """The number of pixels of one image that a convolution converts in its strips, in whole vectors: with `inward`
    those that all strips read, which overlap, else those that they write. `away`: the level from which calls read the
    program's weights. None if sizes are symbolic, or if the estimated best blocks are not strips."""
    height, width = (as_int(d) for d in conv.output.shape[2:4])
    attrs, lanes = conv.of(ConvWinogradAttrs), target.lanes(4)
    tile, stride, weights = attrs.tile, attrs.stride, conv.inputs[1]
    if not height or not width or min(height, width) < tile or attrs.dilation != 1:
        return None
    assert weights is not None
    if not weights.dtype.is_float:
        return None
    _, _, _, panels, _, _, panel = (as_int(d) or 1 for d in weights.shape)
    problems = problems_of(attrs, conv.output.shape, beyond(away, target))
    columns = next((b.columns for _, b in blocked(problems, Winograd(tile, panel, panels), target) if b.columns), 0)
    if not columns:
        return None
    down, blocks = ceil(height / tile), ceil(ceil(width / tile) / columns)
    if inward:
        lines = reach(tile, attrs.window, stride)
        across = (columns - 1) * tile * stride + lines
        return down * lines * blocks * ceil(across / lanes) * lanes
    return height * blocks * ceil(min(width, columns * tile) / lanes) * lanes


STRIPS = {"lowered.conv_winograd": strips}
