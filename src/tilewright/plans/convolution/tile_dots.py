"""Convolutions in matrix registers: 16 pixels of a line are the rows of a matrix.

x' = the padded input, channels side by side, the columns of each phase together
for image, strip of lines, panels:                             parallel
    for tile of lines and pixels:
        tile[lines, pixels, panels] = 0                        registers of matrices
        for kh, kw, channels of a register:
            tile[l, p, k] += multiply(x'[l, p], w[k])          unrolled
        sums = tile                                            in the first level of cache
        out[...] = epilogue(sums)                              scales, bias, rounding to narrow numbers
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd, prod

from tilewright.ir.attributes import Ints
from tilewright.ir.expr import Buffer, as_int
from tilewright.ir.notes import Prefetch
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.lowered.split import count_of
from tilewright.ops.lowered.split_conv import CONV_PIECES
from tilewright.ops.lowered.tiles import CONV_TILES, ConvTilesAttrs, Pixels, pixels_of
from tilewright.plans.convolution.direct import in_blocks
from tilewright.plans.convolution.dots import strips
from tilewright.plans.convolution.tiles import ENOUGH_STRIPS, WHOLE
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import buffer_names, extent, parallelize
from tilewright.plans.framework.cost import (
    SHARED_LEVELS,
    Cost,
    fetch_cycles,
    level,
    nbytes_of,
    number,
    roofline,
    sharing,
    surrounding,
    working_set,
)
from tilewright.plans.idioms.conversions import contiguous_output
from tilewright.plans.idioms.panels import unroll_tile
from tilewright.plans.matmul.dots import operands
from tilewright.plans.matmul.tile_dots import (
    SHAPES,
    instruction,
    loading,
    multiply_tiles,
    registers_cycles,
    terms_of,
    tile_cycles,
)
from tilewright.schedule.dot_intrinsics import Dot
from tilewright.schedule.recording import BlockRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

LONGEST = 64
"""The largest number of bytes in a vector that is copied."""


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is a convolution in matrix registers over a map of known size, without a reduction after
    it."""
    if structure.operator(CONV_TILES) is None and structure.operator(CONV_PIECES) is None:
        return False
    if len(structure.anchors) != 1:
        return False
    (anchor,) = structure.anchors
    epilogue, _ = contiguous_output(structure, anchor)
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
    images, across = number(anchor.spatial[0].extent), columns // dot.rows
    (conv, _), (_, ordinary) = _pixels(structure), contiguous_output(structure, anchor)
    flat, each = conv.flat, panels // conv.groups
    rest, result = surrounding(structure, anchor, target), []
    for tall, wide in SHAPES:
        for high in range(1, tall + 1):
            if tall % high or each % wide or across % (tall // high) or lines % high or (high > 1 and ordinary):
                continue
            cost = _product_cost(structure, tall, wide, dot, target)
            size, least = (across, tall) if flat else (lines, high)
            for strip in strips(size, images, target, copied=True):
                if strip != WHOLE and strip % least:
                    continue
                parts = -(-size // min(strip, size))
                shares = images * parts * (panels // wide if parts == 1 else 1)
                shared = replace(cost, compute=cost.compute * sharing(shares, target))
                reach = strip if strip == WHOLE or not flat else strip * dot.rows
                knobs = (("rows", tall // high * dot.rows), ("lines", high), ("width", wide * dot.lanes))
                result.append(Candidate((*knobs, ("strip", reach)), shared + rest))
    return sorted(result, key=lambda c: c.cycles)


def _product_cost(structure: Structure, tall: int, wide: int, dot: Dot, target: Target) -> Cost:
    """The cost of the product in register tiles of `tall` x `wide` matrices: products, loads of pixels (again for each
    group of panels) and of weights (again for each tile), and the wait of the first tile for weights that come from
    beyond the second level."""
    (anchor,), (conv, pixels), weights = structure.anchors, _pixels(structure), _weights(structure)
    *windows, steps = (as_int(it.extent) or 1 for it in anchor.reduce[:-1])
    terms = terms_of(anchor)
    steps //= dot.steps
    images, groups = number(anchor.spatial[0].extent), (as_int(anchor.spatial[1].extent) or 1) / wide
    tiles, depth = pixels.lines * pixels.rows / dot.rows / tall, prod(windows) * steps // terms
    times, size, copied = images * tiles * groups, nbytes_of(weights), pixels.phases * pixels.copied * steps * dot.depth
    copied *= conv.groups * weights.dtype.itemsize * (as_int(weights.shape[1]) or 1)
    compute = times * tile_cycles(tall, wide, depth, dot, target, terms)
    group = size / groups
    read = images * fetch_cycles(copied, copied, target) + (images * tiles - 1) * fetch_cycles(group, group, target)
    memory = roofline(structure, target).memory + groups * read + times * loading(tall, wide, depth, dot, target)
    fetched = fetch_cycles(size, working_set(size, structure.func.notes, target), target)
    first, warm = compute / (images * tiles), fetch_cycles(size, size, target)
    waits = max(0.0, fetched - first) + (images - 1) * max(0.0, warm - first)
    return Cost(compute=compute, memory=memory, overhead=waits)


def _weights(structure: Structure) -> Buffer:
    result = operands(structure.anchors[0])
    assert result is not None
    return result[1].buffer


def crosses_lines(conv: ConvTilesAttrs, size: Sequence[int], window: Sequence[int]) -> bool:
    """Whether a flat product, over pixels of all lines in order, may need fewer registers than one line by line. Not if
    lines are whole registers: there the excluded pixels at line ends would become a condition on computing whole
    registers. Nor if pads are wider than the window reaches: the last pixels of a line would be the first of the
    next."""
    pixels = pixels_of(conv, size, window)
    return pixels.pitch % conv.rows != 0 and pixels.across.shared <= pixels.across.reach


def convolution_cycles(
    conv: ConvTilesAttrs, x: Sequence[int], window: Sequence[int], depth: int, tile: Dot, target: Target, terms: int = 1
) -> float:
    """Estimated cycles, including the copy of the input, of a convolution of blocked `x[ceil(C/b), H, W, b]` by weights
    with extents `window` and `depth` steps of `tile`; `terms`: the number of products of pieces that replace one of
    f32."""
    blocks, *size, block = x
    if conv.gathered:
        window = [-(-conv.gathered[0] // conv.gathered[2]), 1]
    pixels, each = pixels_of(conv, size, window), conv.channels // conv.groups
    costs, steps = target.costs.matrices, prod(window) * depth
    own = pixels.lines * registers_cycles(pixels.rows, steps, each, tile, target, costs.stored_sums, terms)
    pieces = count_of(terms) * PIECE if terms > 1 else 1
    vectors = conv.groups * pieces * pixels.copied * depth // neighbours(conv, blocks, block)
    return (
        conv.groups * own + (costs.gathered_vector if conv.gathered else costs.copied_vector) * pixels.phases * vectors
    )


def gatherings(attrs: ConvAttrs, window: Sequence[int], channels: int, tile: Dot) -> Iterator[Ints]:
    """(kernel height, kernel width, lines, columns) to consider: the channels of `lines` x `columns` taps of a window
    are concatenated into one longer reduction, for a layer whose channels do not fill the instruction's depth. `lines`
    is the height of the window, or so many that the next lines of the window are the first ones of another output
    line's."""
    (kh, kw), stride, dilation = window, attrs.strides[0], attrs.dilations[0]
    if channels % tile.depth == 0 or kh * kw == 1:
        return
    for lines in range(1, kh + 1):
        if lines == kh or lines * dilation % stride == 0:
            yield gathering(window, lines, channels, tile)


def gathering(window: Sequence[int], lines: int, channels: int, tile: Dot) -> Ints:
    """(kernel height, kernel width, `lines`, the number of columns whose channels together fill whole steps of the
    instruction's depth)."""
    (kh, kw), own = window, lines * channels
    return kh, kw, lines, (own * kw + -own * kw % tile.depth) // own


PIECE = 2
"""The time of computing a vector of pieces, in copies of a vector."""


def neighbours(conv: ConvTilesAttrs, blocks: int, block: int) -> int:
    """How many elements the copy of the input moves as one run: a block of channels or, if several pixels are gathered
    into a longer reduction, the largest run within a vector that divides them."""
    if not conv.gathered or blocks > 1 or conv.dilations[1] > 1:
        return block
    return gcd(conv.gathered[-1] * block, LONGEST)


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    (anchor,) = structure.anchors
    dot = instruction(anchor, target)
    assert dot is not None
    prologue, (conv, pixels) = structure.before(anchor), _pixels(structure)
    blocked = in_blocks(s, structure, prologue, candidate, target, pixels.pitch if conv.flat else 0)
    place = blocked.tiles[-1]
    if (high := candidate.knob("lines")) > 1:
        line, tile = blocked.tiles
        line, inner = s.split(line, factor=high)
        s.reorder(line, tile, inner)
    prefetched = _prefetched(s, structure, candidate, dot, target)
    multiply_tiles(s, anchor, blocked.block, place, dot, prefetched, terms=terms_of(anchor))
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


def _prefetched(s: Schedule, structure: Structure, candidate: Candidate, dot: Dot, target: Target) -> Prefetch | None:
    """A prefetch of weights that come from beyond the second level, if only one tile reads each panel: each step
    prefetches the cache lines of a later step. None where tiles share panels or weights are near."""
    weights, (conv, pixels) = _weights(structure), _pixels(structure)
    from_memory = level(working_set(nbytes_of(weights), s.func.notes, target), target) in SHARED_LEVELS
    if (
        not from_memory
        or not conv.flat
        or (candidate.knob("rows"), candidate.knob("width")) != (pixels.rows, dot.lanes)
    ):
        return None
    lines = dot.depth * dot.lanes * weights.dtype.itemsize // target.caches.line
    return Prefetch(buffer_names([weights]), target.costs.prefetching.stream_bytes, lines=lines)


def _source(structure: Structure) -> Buffer:
    """The buffer with the blocked input."""
    return next(b for b in structure.before(structure.anchors[0])[-1].reads if len(b.shape) == 5)


def _pixels(structure: Structure) -> tuple[ConvTilesAttrs, Pixels]:
    """The operator's attributes, and the order of its pixels."""
    (anchor,), buffers = structure.anchors, (_source(structure), _weights(structure))
    conv = anchor.attributes(CONV_TILES) or anchor.attributes(CONV_PIECES)
    assert conv is not None
    size, window = ([as_int(d) or 1 for d in buffer.shape[2:4]] for buffer in buffers)
    return conv, pixels_of(conv, size, window)


def _copy_blocks(s: Schedule, copied: BlockRef, structure: Structure, *, parallel: bool) -> None:
    """Schedule `copied`, the copy of the input, by blocks of channels, in parallel if `parallel`: elements that are
    neighbours in the input are read together and written in order."""
    conv, pixels = _pixels(structure)
    *others, pixel, channel = s.loops(copied)
    if terms_of(structure.anchors[0]) > 1:
        *others, pixel, piece = others + [pixel]
        s.unroll(piece)
    line, _ = s.split(pixel, factor=pixels.pitch)
    _, blocks, _, _, block = (as_int(d) or 1 for d in _source(structure).shape)
    block = neighbours(conv, blocks, block)
    if (extent(s, channel) or 1) % block == 0:
        _, channel = s.split(channel, factor=block)
    s.vectorize(channel)
    if parallel:
        parallelize(s, [*others, line])


PLAN = Plan("tile convolution", fits, candidates, apply)
