"""Gradients of convolutions by their weights: a register tile of weights, summed over the pixels of some images.

    for images:                                         so many that their data stay in the second level of cache
        for group of wide blocks, narrow block, taps, tile of narrow channels:
            tile[rows, vectors, lanes] = 0              registers
            for image, line, column:
                tile[r, v, :] += narrow[pixel + tap, r] * wide[v, pixel, :]
            out[...] += tile

The rows of a tile are channels of a block. If the narrow operand is not blocked, they are taps, or channels for 1x1
windows. Both operands are read in place, without packing. A tile sums in the order of pixels for any number of threads,
so that results are bit-equal.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import as_int
from tilewright.ops.lowered.conv_weight import CONV_WEIGHT
from tilewright.plans.convolution.direct import unroll_steps
from tilewright.plans.convolution.weights import WeightsProblem, ranked
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import own_loops, parallelize
from tilewright.plans.framework.cost import number
from tilewright.plans.idioms.panels import unroll_tile
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is the gradient of a convolution by its weight, in one stage."""
    result = structure.operator(CONV_WEIGHT)
    return result is not None and len(structure.stages) == 1


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    return [Candidate(way.knobs, cost) for cost, way in ranked(problem(structure), target)]


def problem(structure: Structure) -> WeightsProblem:
    """The sizes of the weight gradient that the function computes, as the estimate of `weights.py` takes them."""
    (anchor,) = structure.stages
    wide, narrow, lines, columns, inner, lanes = (as_int(it.extent) or 1 for it in anchor.spatial)
    images, *pixels = (it.extent for it in anchor.reduce)
    return WeightsProblem(
        as_int(images),
        prod(map(number, pixels)),
        wide,
        narrow,
        (lines, columns),
        inner,
        lanes,
        sum(4 * prod(number(d) for d in b.shape[1:]) for b in anchor.reads),
    )


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    (anchor,) = structure.stages
    block = s.block(anchor.name)
    chunk = candidate.knob("images")
    images = as_int(anchor.reduce[0].extent)
    if images is None or chunk < images:
        outer, _ = s.split(s.loops(block)[len(anchor.spatial)], factor=chunk)
        part = s.rfactor(block, outer)
        s.set_scope(part, "local")
        enclosing, inner = tile_weights(s, block, candidate, s.loops(block)[-1], target)
        s.compute_at(part, enclosing[-1])
        unroll_tile(s, s.decompose_reduction(block, s.loops(block)[0] if target.threads == 1 else enclosing[0]), 1)
        unroll_tile(s, block, inner)
        sum_pixels(s, part, candidate)
        parallelize(s, [enclosing[0]] if target.threads > 1 else [])
        return
    out = s.cache_write(block, "local")
    enclosing, inner = tile_weights(s, out, candidate, None, target)
    s.compute_at(block, enclosing[-1])
    s.set_scope(block, "local")
    unroll_tile(s, out, inner)
    sum_pixels(s, block, candidate)
    parallelize(s, enclosing)


def tile_weights(
    s: Schedule, out: BlockRef, candidate: Candidate, images: LoopRef | None, target: Target
) -> tuple[list[LoopRef], int]:
    """Split the loops of `out`, the gradient of the weights, by the candidate's register tile. Returns (the loops over
    tiles, the number of loops inside of a tile). The loop `images` over chunks of images, if there is one, becomes the
    outermost; with several threads it is inside the loop that they share."""
    wide, blocks, lines, columns, inner, lane = s.loops(out)[:6]
    group, vector = s.split(wide, factor=candidate.knob("vectors"))
    line, line_row = s.split(lines, factor=candidate.knob("lines"))
    column, column_row = s.split(columns, factor=candidate.knob("columns"))
    several = s.extent(inner) != 1
    block, block_row = (blocks, None) if several else s.split(blocks, factor=candidate.knob("channels"))
    channel, channel_row = s.split(inner, factor=candidate.knob("channels")) if several else (inner, None)
    rows = [r for r in (block_row, line_row, column_row, channel_row) if r is not None]
    enclosing = [group, block, line, column, channel]
    order = (
        enclosing
        if images is None
        else [images, *enclosing]
        if target.threads == 1
        else [group, images, *enclosing[1:]]
    )
    s.reorder(*order, *rows, vector, lane)
    return enclosing, len(rows) + 2


def sum_pixels(s: Schedule, block: BlockRef, candidate: Candidate) -> None:
    """Schedule the sums of a register tile, `block`: from outside to inside the loops over images and pixels, over the
    tile's rows, and over vectors."""
    own = own_loops(s, block)
    reduce = [loop for it, loop in own if it.kind == "reduce"]
    *others, lane = [loop for it, loop in own if it.kind == "spatial"]
    vector, *rows = others[-5:]
    inner = [loop for loop in (*rows, vector) if s.extent(loop) != 1]
    s.reorder(*(loop for loop in others if loop not in inner), *reduce, *inner, lane)
    zero = s.decompose_reduction(block, reduce[0])
    if candidate.knob("columns") == 1:
        # Neighbouring pixels share what taps read: unrolled together, LLVM would keep all of it in registers.
        unroll_steps(s, reduce, prod(s.extent(loop) or 1 for loop in inner))
    for stage in (block, zero):
        unroll_tile(s, stage, len(inner) + 1)


PLAN = Plan("weight gradient", fits, candidates, apply)
