"""Gradients of convolutions by their weights: a register tile of weights, summed over the pixels of some images.

    for images:                                         so many that what they have stays in the second level of cache
        for group of wide blocks, narrow block, taps, tile of narrow channels:
            tile[rows, vectors, lanes] = 0              registers
            for image, line, column:
                tile[r, v, :] += narrow[pixel + tap, r] * wide[v, pixel, :]
            out[...] += tile

Rows are channels of a block. Of a narrow operand that is not blocked they are taps, of a window of one pixel channels.
Both operands are read as they lie, so nothing is packed. Sums of one tile are in the order of pixels, whatever the
threads: results are the same bits.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import as_int
from tilewright.ops.lowered.conv_weight import CONV_WEIGHT
from tilewright.plans.convolution.direct import unroll_steps
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import own_loops, parallelize
from tilewright.plans.framework.cost import Cost, fetch_cycles, number, write_cycles
from tilewright.plans.idioms.panels import unroll_tile
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

MOST_VECTORS = 4
MANY_IMAGES = 32
"""Images that a symbolic number of them is judged by."""
LONGEST = 4096
"""Products of a sum in registers; such sums are added in memory."""


def fits(structure: Structure, target: Target) -> bool:
    """Such a gradient and nothing else."""
    found = structure.operator(CONV_WEIGHT)
    return found is not None and len(structure.stages) == 1


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    (anchor,) = structure.stages
    outer = _size(anchor, 0)
    found = []
    for vectors in range(1, MOST_VECTORS + 1):
        for tile in row_tiles(anchor):
            rows = prod(tile)
            if outer % vectors or rows * vectors + vectors + 1 > target.registers:
                continue
            for images in chunks(anchor, target):
                knobs = zip(("channels", "lines", "columns"), tile, strict=True)
                cost = estimate(anchor, rows, vectors, images, target)
                found.append(Candidate((("vectors", vectors), *knobs, ("images", images)), cost))
    return sorted(found, key=lambda c: c.cycles)


def row_tiles(anchor: Stage) -> list[tuple[int, int, int]]:
    """Narrow channels, lines and columns of the window that a tile has."""
    _, blocks, lines, columns, inner = (_size(anchor, k) for k in range(5))
    if inner > 1:
        return [(d, 1, 1) for d in range(1, inner + 1) if inner % d == 0]
    whole = [(1, 1, columns), (1, lines, columns)]
    return [*dict.fromkeys(whole), *((d, lines, columns) for d in range(2, blocks + 1) if blocks % d == 0)]


def chunks(anchor: Stage, target: Target) -> list[int]:
    """How many images are summed at once: as many as the second level holds with room for the weights, or half of
    them, or all; never so many that a sum loses digits by its length."""
    images = as_int(anchor.reduce[0].extent) or MANY_IMAGES
    longest = max(1, LONGEST // prod(number(it.extent) for it in anchor.reduce[1:]))
    fitting = max(1, target.l2 // 2 // image_bytes(anchor))
    return sorted({min(n, longest, images) for n in (fitting, max(1, fitting // 2), images)})


def image_bytes(anchor: Stage) -> int:
    """What an image has of both operands."""
    return sum(4 * prod(number(d) for d in b.shape[1:]) for b in anchor.reads)


def estimate(anchor: Stage, rows: int, vectors: int, images: int, target: Target) -> Cost:
    lanes = _size(anchor, 5)
    count = as_int(anchor.reduce[0].extent) or MANY_IMAGES
    pixels = prod(number(it.extent) for it in anchor.reduce[1:])
    tiles = prod(number(it.extent) for it in anchor.spatial) / (rows * vectors * lanes)
    times, steps = -(-count // images), images * pixels
    width = 4 * lanes
    costs = target.costs.arithmetic
    compute = max(rows * vectors / target.fma_per_cycle, costs.fma_latency)
    # A broadcast takes a load as a vector does.
    load = (rows + vectors) * width / target.l1_bandwidth
    # A group of wide blocks is read by all tiles of narrow ones, from where a chunk of it lies.
    wide = vectors * width * steps
    moved = fetch_cycles(vectors * width + 4 * rows, wide, target)
    work = Cost(compute=compute, load=load, memory=moved) * (steps * tiles * times)
    whole = 4 * prod(number(it.extent) for it in anchor.spatial)
    # Half of a tile's overhead, as in products over pixels: there is no epilogue.
    ends = costs.tile_overhead / 2 * tiles
    kept = Cost(memory=2 * write_cycles(whole, whole, target), overhead=ends) * times
    first = Cost(memory=fetch_cycles(image_bytes(anchor) * count, image_bytes(anchor) * count, target))
    return work + kept | first


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    (anchor,) = structure.stages
    block = s.block(anchor.name)
    chunk = candidate.knob("images")
    images = as_int(anchor.reduce[0].extent)
    if images is None or chunk < images:
        outer, _ = s.split(s.loops(block)[len(anchor.spatial)], factor=chunk)
        part = s.rfactor(block, outer)
        s.set_scope(part, "local")
        around, inner = tile_weights(s, block, candidate, s.loops(block)[-1], target)
        s.compute_at(part, around[-1])
        unroll_tile(s, s.decompose_reduction(block, s.loops(block)[0] if target.threads == 1 else around[0]), 1)
        unroll_tile(s, block, inner)
        sum_pixels(s, part, candidate)
        parallelize(s, [around[0]] if target.threads > 1 else [])
        return
    out = s.cache_write(block, "local")
    around, inner = tile_weights(s, out, candidate, None, target)
    s.compute_at(block, around[-1])
    s.set_scope(block, "local")
    unroll_tile(s, out, inner)
    sum_pixels(s, block, candidate)
    parallelize(s, around)


def tile_weights(
    s: Schedule, out: BlockRef, candidate: Candidate, images: LoopRef | None, target: Target
) -> tuple[list[LoopRef], int]:
    """Block the loops over weights; those around a tile, and how many are inside. With several chunks of images these
    are outermost, or inside the groups that threads share."""
    wide, blocks, lines, columns, inner, lane = s.loops(out)[:6]
    group, vector = s.split(wide, factor=candidate.knob("vectors"))
    line, line_row = s.split(lines, factor=candidate.knob("lines"))
    column, column_row = s.split(columns, factor=candidate.knob("columns"))
    several = s.extent(inner) != 1
    block, block_row = (blocks, None) if several else s.split(blocks, factor=candidate.knob("channels"))
    channel, channel_row = s.split(inner, factor=candidate.knob("channels")) if several else (inner, None)
    rows = [r for r in (block_row, line_row, column_row, channel_row) if r is not None]
    around = [group, block, line, column, channel]
    order = around if images is None else [images, *around] if target.threads == 1 else [group, images, *around[1:]]
    s.reorder(*order, *rows, vector, lane)
    return around, len(rows) + 2


def sum_pixels(s: Schedule, block: BlockRef, candidate: Candidate) -> None:
    """The register tile: images and pixels outside, rows inside them, vectors innermost."""
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


def _size(anchor: Stage, k: int) -> int:
    """An extent of the result, which is a number."""
    size = as_int(anchor.spatial[k].extent)
    assert size is not None
    return size


PLAN = Plan("weight gradient", fits, candidates, apply)
