"""Convolutions by instructions that multiply matrices in registers of their own: 16 pixels of a line are rows.

x' = the padded input, channels side by side, the columns of each stride apart
for image, strip of lines, panels:                             parallel
    for tile of lines and pixels:
        tile[lines, pixels, panels] = 0                        registers of matrices
        for kh, kw, channels of a register:
            tile[l, p, k] += multiply(x'[l, p], w[k])          unrolled
        sums = tile                                            in the first level of cache
        out[...] = epilogue(sums)                              scales, bias, rounding to narrow numbers
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import as_int
from tilewright.ops.lowered.tiles import CONV_TILES, together
from tilewright.plans.convolution.direct import in_blocks
from tilewright.plans.convolution.dots import strips
from tilewright.plans.convolution.tiles import ENOUGH_STRIPS, WHOLE
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import extent, parallelize
from tilewright.plans.framework.cost import Cost, around, number, roofline, sharing
from tilewright.plans.idioms.conversions import plain_output
from tilewright.plans.idioms.panels import unroll_tile
from tilewright.plans.matmul.tile_dots import COPIED, SHAPES, instruction, multiply_tiles, registers_cycles, tile_cycles
from tilewright.schedule.dot_intrinsics import Dot
from tilewright.schedule.recording import BlockRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

BLOCK = 16
"""Channels of a vector that is copied."""


def fits(structure: Structure, target: Target) -> bool:
    """A convolution over a map of known size, with nothing behind it that is reduced."""
    if structure.operator(CONV_TILES) is None or len(structure.anchors) != 1:
        return False
    (anchor,) = structure.anchors
    epilogue, _ = plain_output(structure, anchor)
    return (
        instruction(anchor, target) is not None
        and all(as_int(it.extent) is not None for it in anchor.spatial[1:])
        and not any(st.block.is_reduction for st in structure.stages if st is not anchor)
        and (not epilogue or len(epilogue[-1].spatial) >= len(anchor.spatial))
    )


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    (anchor,) = structure.anchors
    dot = instruction(anchor, target)
    assert dot is not None
    panels, lines, columns = (as_int(it.extent) or 1 for it in anchor.spatial[1:4])
    *windows, steps = (as_int(it.extent) or 1 for it in anchor.reduce[:-1])
    images, across = number(anchor.spatial[0].extent), columns // dot.rows
    rest, memory = around(structure, anchor, target), roofline(structure, target).memory
    _, plain = plain_output(structure, anchor)
    found = []
    for tall, wide in SHAPES:
        cycles = tile_cycles(tall, wide, prod(windows) * steps // dot.steps, dot, target)
        for high in range(1, tall + 1):
            if tall % high or panels % wide or across % (tall // high) or lines % high or (high > 1 and plain):
                continue
            for strip in strips(lines, images, target, copied=True):
                if strip != WHOLE and strip % high:
                    continue
                parts = -(-lines // min(strip, lines))
                shares = images * parts * (panels // wide if parts == 1 else 1)
                compute = images * lines * across * panels / (tall * wide) * cycles * sharing(shares, target)
                knobs = (("rows", tall // high * dot.rows), ("lines", high), ("width", wide * dot.lanes))
                found.append(Candidate((*knobs, ("strip", strip)), Cost(compute=compute, memory=memory) + rest))
    return sorted(found, key=lambda c: c.cycles)


def convolution_cycles(
    pixels: tuple[int, int],
    window: tuple[int, int],
    strides: tuple[int, int],
    channels: int,
    filters: int,
    tile: Dot,
    target: Target,
) -> float:
    """Estimated cycles of a convolution to a map of so many pixels, with the copy of its input in vectors of 16
    channels; lines are rounded up as `lowered.conv_tiles` does it."""
    lines, columns = together(pixels[0]), pixels[1] + -pixels[1] % tile.rows
    depth = channels + -channels % tile.depth
    own = lines * registers_cycles(columns, prod(window) * depth, filters, tile, target)
    copied = ((lines - 1) * strides[0] + window[0]) * (columns * strides[1] + window[1] - 1) * depth // BLOCK
    return own + COPIED * copied


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    (anchor,) = structure.anchors
    dot = instruction(anchor, target)
    assert dot is not None
    prologue = structure.before(anchor)
    blocked = in_blocks(s, structure, prologue, candidate, target)
    place = blocked.tiles[-1]
    if (high := candidate.knob("lines")) > 1:
        line, tile = blocked.tiles
        line, inner = s.split(line, factor=high)
        s.reorder(line, tile, inner)
    multiply_tiles(s, anchor, blocked.block, place, dot)
    unroll_tile(s, blocked.out, 2)
    shared = [blocked.image, blocked.strip, blocked.panel]
    copied, by_strips = s.block(prologue[-1].name), extent(s, blocked.strip) != 1
    if by_strips or (extent(s, blocked.image) or 1) >= ENOUGH_STRIPS:
        shared.remove(blocked.panel)
        s.compute_at(copied, blocked.strip)
        by_strips = True
    # Of a single tile nothing is shared: registers are no memory of all threads.
    several = any(extent(s, loop) != 1 for loop in (*shared, *s.loops(blocked.out)[:-3]))
    _copy_blocks(s, copied, structure, parallel=several and not by_strips)
    parallelize(s, shared)


def _copy_blocks(s: Schedule, copied: BlockRef, structure: Structure, *, parallel: bool) -> None:
    """The input is copied a block of channels at a time: what stands side by side there, and is written in order."""
    *others, _, channel = s.loops(copied)
    block = next(
        as_int(b.shape[-1]) or 1 for b in structure.before(structure.anchors[0])[-1].reads if len(b.shape) == 5
    )
    if (extent(s, channel) or 1) % block == 0:
        _, channel = s.split(channel, factor=block)
    s.vectorize(channel)
    if parallel:
        parallelize(s, others[:2])


PLAN = Plan("tile convolution", fits, candidates, apply)
