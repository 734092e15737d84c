"""Convolutions over packed weights and blocked channels: register tiles of pixels x width, blocked for the caches.

    for image, strip of pixels:                         parallel over what is outermost
        x' = the strip's part of the padded input       stays in the second-level cache
        for panel:                                      of `width` output channels
            acc[strip, width] = 0
            for block of input channels:                its weights stay in the first-level cache
                for tile of the strip's pixels:
                    tile[pixels, width] = 0             registers
                    for channel, kh, kw:
                        tile[p, :] += x'[p] * w[:]      pixels unrolled, width in vectors
                    acc += tile
            out[...] = epilogue(acc)                    bias, residual, activation

NCHW output is written by lines: a panel's line is transposed when it is complete (`plans/idioms/conversions.py`).

With a single block of input channels the tile is what the epilogue reads. Pixels are those of a line, or of the whole
map where the operator says so ("flat", see `ops/lowered/packed.py`). Weights come in panels, read as one stream. The
sizes are estimated in `plans/convolution/tiles.py`.
"""

from __future__ import annotations

from math import ceil, prod

from tilewright.ir.expr import Expr, Load, as_int, is_const
from tilewright.ir.notes import Prefetch, Unroll
from tilewright.ops.lowered.packed import CONV_BLOCKED, ConvBlockedAttrs
from tilewright.plans.convolution.tiles import ENOUGH_STRIPS, WHOLE, Blocking, DirectProblem, blockings, share_of, side
from tilewright.plans.framework.analysis import Stage, Structure, factors
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import (
    buffer_names,
    extent,
    inline_all,
    lanes_of,
    own_loops,
    parallelize,
    vectorize_spatial,
)
from tilewright.plans.framework.cost import SHARED_LEVELS, level, nbytes_of, number, surrounding, working_set
from tilewright.plans.framework.symbolic import SYMBOLIC_IMAGES
from tilewright.plans.idioms.conversions import contiguous_output, transpose_out
from tilewright.plans.idioms.panels import fits_panels, packed_operand, panel_width, unroll_tile
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

BODY = 64
"""The least number of vector multiply-adds in the innermost loop's body, if the reduction is that long."""
MAX_BODY = 512
"""The largest number of vector multiply-adds in a body: thousands exceed the first-level instruction cache, and take
four to nine times as long."""
SHARING_LEAST = 2
"""The least number of tiles that prefetch the next panel together."""
FEWEST_LINES = 4
"""The least number of lines that a tile prefetches at a time: its share is rounded up."""
PREFETCHING = range(2, 9)
"""The numbers of panels with which the next strip of pixels is prefetched: with more, prefetching costs more than it
gains."""


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is a convolution over blocked channels, or over an unblocked input, without a reduction after
    it."""
    return structure.operator(CONV_BLOCKED) is not None and fits_panels(structure)


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    anchor = structure.anchors[0]
    width = panel_width(anchor)
    assert width is not None
    result = blockings(shapes(structure), width, is_flat(anchor), target)
    rest, images = surrounding(structure, anchor, target), number(anchor.spatial[0].extent)
    return [Candidate(_knobs(b), cost * (images * share_of(_sides(structure, anchor))) + rest) for cost, b in result]


def _knobs(blocking: Blocking) -> tuple[tuple[str, int], ...]:
    names = ("rows", "width", "strip", "channels")
    return tuple((name, int(getattr(blocking, name))) for name in names)


def is_flat(anchor: Stage) -> bool:
    """Whether the pixels of the whole map are one dimension of the product."""
    conv = anchor.attributes(CONV_BLOCKED)
    return conv is not None and conv.flat


def _attributes(anchor: Stage) -> ConvBlockedAttrs:
    conv = anchor.attributes(CONV_BLOCKED)
    assert conv is not None
    return conv


def shapes(structure: Structure) -> tuple[DirectProblem, ...]:
    """The sizes of the convolution that a function computes, one problem for each number of images at which it is
    estimated: several if that is symbolic."""
    (anchor,) = structure.anchors
    weights, loads = packed_operand(anchor), factors(anchor.block)
    assert weights is not None and loads is not None
    x = next(load for load in loads if load is not weights)
    sides = _sides(structure, anchor)
    height, width = map(side, sides)
    channels, kh, kw, *block = (as_int(it.extent) or 1 for it in anchor.reduce)
    filters = (as_int(anchor.spatial[1].extent) or 1) * (as_int(anchor.spatial[-1].extent) or 1)
    images = as_int(anchor.spatial[0].extent)
    counts = SYMBOLIC_IMAGES if images is None else (max(1, images),)
    return tuple(
        DirectProblem(
            images=n,
            height=height,
            width=width,
            window=(kh, kw),
            stride=column_stride(anchor, width, (kh, kw)),
            channels=channels * (block[0] if block else 1),
            block=block[0] if block else 1,
            filters=filters,
            source=nbytes_of(x.buffer) // max(1, as_int(x.buffer.shape[0]) or 8),
            copied=bool(_copied(structure, anchor)),
            known=all(as_int(d) is not None for d in sides),
        )
        for n in counts
    )


def _sides(structure: Structure, anchor: Stage) -> list[Expr]:
    """The height and width of the output; of a flat product, whose stage has one dimension for all pixels, as the
    stages after it have them."""
    iters = (structure.after(anchor) or (anchor,))[-1].spatial if is_flat(anchor) else anchor.spatial
    return [it.extent for it in iters[2:4]]


def _copied(structure: Structure, anchor: Stage) -> tuple[Stage, ...]:
    """The stages before the product that copy its input (padding, sampling, pointwise work); () if the product reads
    the input's maps in place."""
    before, conv = structure.before(anchor), _attributes(anchor)
    alone = len(before) == 1 and before[0].name == "sample"
    return () if alone and conv.strides == (1, 1) and not any(conv.pads) else before


def column_stride(anchor: Stage, width: int, window: tuple[int, int]) -> int:
    """The distance between the input pixels that neighbouring output pixels of a line read: the stride, or 1 for a flat
    product with a 1x1 window, where the pixels that are read were copied side by side before."""
    sampled = is_flat(anchor) and window == (1, 1)
    return 1 if sampled or width == 1 else _attributes(anchor).strides[1]


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    anchor = structure.anchors[0]
    prologue = _copied(structure, anchor)
    blocked = in_blocks(s, structure, prologue, candidate, target)
    block = blocked.block
    if candidate.knob("channels") < (as_int(anchor.reduce[0].extent) or 0):
        block = sum_by_parts(s, anchor, block, blocked.panel, candidate)
    else:
        s.compute_at(block, blocked.tiles[-1])
    register_tile(s, anchor, block, candidate, whole_tiles(structure, candidate), target)
    finish(s, blocked, prologue, target, sampled_line(structure, anchor))


def sampled_line(structure: Structure, anchor: Stage) -> int:
    """The pixels of an output line, if the input is NCHW and a copy extracts only the pixels that a strided 1x1
    convolution reads; else 0."""
    ordinary = len(anchor.reduce) == 3
    return as_int(_sides(structure, anchor)[1]) or 0 if ordinary and is_flat(anchor) else 0


@dataclass(frozen=True, slots=True)
class Blocked:
    """A convolution scheduled with blocked output: the block of its product, the block that reads the register tile,
    and the loops over images, strips, panels, and tiles of a strip."""

    block: BlockRef
    out: BlockRef
    image: LoopRef
    strip: LoopRef
    panel: LoopRef
    tiles: list[LoopRef]


def in_blocks(
    s: Schedule,
    structure: Structure,
    prologue: tuple[Stage, ...],
    candidate: Candidate,
    target: Target,
    pitch: int = 0,
    result: Stage | None = None,
) -> Blocked:
    """Inline the stages around a convolution's product, the stages after it into one block and the stages before it
    (`prologue`) into another, and divide the output's loops into images, strips, panels and tiles. With a `pitch`,
    lines of the product begin every so many pixels, and are tiled as one line. `result` is the stage that has the sums
    in the order of the output, if the product's own order is another."""
    anchor = result or structure.anchors[0]
    epilogue, ordinary = contiguous_output(structure, anchor)
    inline_all(s, structure, prologue[:-1])
    others = tuple(st for st in structure.stages if st not in prologue and st not in epilogue and st is not anchor)
    inline_all(s, structure, (*others, *(epilogue if ordinary is None else epilogue[:-1])))
    block = s.block(anchor.name)
    out = s.block(epilogue[-1].name) if epilogue else s.cache_write(block, "local")
    if ordinary is None:
        return Blocked(block, out, *tile_output(s, anchor, out, candidate, pitch))
    return Blocked(block, out, *tile_ordinary(s, s.block(ordinary.name), out, candidate, target, pitch))


def finish(s: Schedule, blocked: Blocked, prologue: tuple[Stage, ...], target: Target, line: int = 0) -> None:
    """Finish the schedule: vectorise the output's tiles, compute the last stage of `prologue` for a strip at a time if
    there are several strips, else all at once (its loop over pixels split into lines of `line` pixels, if not 0), and
    parallelise the outer loops."""
    unroll_tile(s, blocked.out, 3)
    shared = [blocked.image, blocked.strip, blocked.panel]
    if prologue and (extent(s, blocked.strip) != 1 or (extent(s, blocked.image) or 1) >= ENOUGH_STRIPS):
        shared.remove(blocked.panel)
        place_prologue(s, prologue[-1], blocked.strip, target, line)
    elif prologue:
        in_lines(s, s.block(prologue[-1].name), line)
        vectorize_spatial(s, s.block(prologue[-1].name), target, lanes_of(prologue[-1], target))
    parallelize(s, shared)


def tile_output(
    s: Schedule, anchor: Stage, out: BlockRef, candidate: Candidate, pitch: int = 0
) -> tuple[LoopRef, LoopRef, LoopRef, list[LoopRef]]:
    """Split the loops of the blocked output `out` into strips, panels and register tiles. With a `pitch`, lines begin
    every so many pixels and are tiled as one. Returns the loops over images, strips, panels, and (one or two) over the
    tiles of a strip."""
    image, k, *pixels, lane = s.loops(out)
    panel, part = s.split(k, factor=candidate.knob("width") // _size(s, lane))
    rows = candidate.knob("rows")
    if pitch or is_flat(anchor):
        f = _joined(s, pixels[0], pixels[1], pitch) if pitch else s.fuse(*pixels)
        strip, f = s.split(f, factor=min(candidate.knob("strip"), extent(s, f) or WHOLE))
        tile, row = s.split(f, factor=rows)
        tiles = [tile]
    else:
        lines, columns = pixels
        known = extent(s, lines)
        strip, line = s.split(lines, factor=min(candidate.knob("strip"), known or WHOLE))
        tile, row = s.split(columns, factor=rows)
        tiles = [line, tile]
    s.reorder(image, strip, panel, *tiles, row, part, lane)
    return image, strip, panel, tiles


def tile_ordinary(
    s: Schedule, ordinary: BlockRef, out: BlockRef, candidate: Candidate, target: Target, pitch: int = 0
) -> tuple[LoopRef, LoopRef, LoopRef, list[LoopRef]]:
    """Split the loops of the NCHW output `ordinary` into strips and panels, and compute the blocked output `out`
    inside, a line of a panel at a time, which is transposed when it is complete. With a `pitch`, lines of `out` begin
    every so many pixels and are tiled as one. Returns the loops over images, strips, panels, and tiles of a strip."""
    image, k, lines, columns = s.loops(ordinary)
    panel, k = s.split(k, factor=candidate.knob("width"))
    part, channel = s.split(k, factor=target.lanes(4))
    known = extent(s, lines)
    strip, line = s.split(lines, factor=min(candidate.knob("strip"), known or WHOLE))
    s.reorder(image, strip, panel, line, part, columns, channel)
    transpose_out(s, ordinary, out, channel, columns, target)
    s.compute_at(out, panel if pitch else line)
    part, lines, columns, lane = s.loops(out)[-4:]
    if pitch:
        columns = _joined(s, lines, columns, pitch)
    tile, row = s.split(columns, factor=candidate.knob("rows"))
    s.reorder(tile, row, part, lane)
    return image, strip, panel, [tile] if pitch else [line, tile]


def _joined(s: Schedule, lines: LoopRef, columns: LoopRef, pitch: int) -> LoopRef:
    """Fuse the loops over `lines` and `columns` into one over all pixels, where a line begins every `pitch` pixels;
    pixels past the end of a line are masked."""
    rest, column = s.split(columns, factor=pitch)
    return s.fuse(lines, rest, column)


def _size(s: Schedule, loop: LoopRef) -> int:
    size = extent(s, loop)
    assert size is not None
    return size


def sum_by_parts(s: Schedule, anchor: Stage, block: BlockRef, panel: LoopRef, candidate: Candidate) -> BlockRef:
    """Sum the reduction of `block` by blocks of input channels, inside the loop `panel`: each block's products are
    added for all tiles of a strip before the next block's, so that its weights stay in cache. Returns the block with
    the sums of one tile over one block of channels."""
    spatial = len(anchor.spatial)
    outer, _ = s.split(s.loops(block)[spatial], factor=candidate.knob("channels"))
    part = s.rfactor(block, outer)
    s.compute_at(block, panel)
    s.set_scope(block, "local")
    _, k, *pixels, lane, outer = s.loops(block)[-spatial - 1 :]
    tile, row = s.split(pixels[-1], factor=candidate.knob("rows"))
    s.reorder(outer, *pixels[:-1], tile, row, k, lane)
    s.compute_at(part, tile)
    zero = s.decompose_reduction(block, outer)
    unroll_tile(s, zero, 1)
    unroll_tile(s, block, 3)
    return part


def whole_tiles(structure: Structure, candidate: Candidate) -> int:
    """The number of full register tiles in a strip; 1 if that is not known."""
    (anchor,) = structure.anchors
    height, width = map(as_int, _sides(structure, anchor))
    if height is None or width is None:
        return 1
    rows, strip = candidate.knob("rows"), candidate.knob("strip")
    if is_flat(anchor):
        return min(strip, height * width) // rows
    return min(strip, height) * (width // rows)


def register_tile(
    s: Schedule, anchor: Stage, block: BlockRef, candidate: Candidate, tiles: int, target: Target
) -> None:
    """Schedule `block`, the sums in registers of a tile: its rows outside its columns, so that a pixel needs one
    register for all its columns; or in the reverse order if that needs fewer registers."""
    s.set_scope(block, "local")
    own = own_loops(s, block)
    spatial = [loop for it, loop in own if it.kind == "spatial"][-len(anchor.spatial) :]
    reduce = [loop for it, loop in own if it.kind == "reduce"]
    by_columns = is_by_columns(anchor, candidate, target)
    if by_columns:
        # Steps that are unrolled together must not share what they read, for LLVM would keep all of it in registers;
        # those of different lines and channels do not.
        channel, line, column = reduce
        reduce = [column, channel, line]
    _, k, *pixels, lane = spatial
    vectors = candidate.knob("width") // _size(s, lane)
    rows = candidate.knob("rows")
    inner = (k, pixels[-1]) if vectors > rows else (pixels[-1], k)
    s.reorder(*reduce, *inner, lane)
    if not by_columns:
        prefetch_operands(s, anchor, reduce, candidate, tiles, target)
    zero = s.decompose_reduction(block, reduce[0])
    unroll_steps(s, reduce, rows * vectors)
    unroll_tile(s, block, 3)
    unroll_tile(s, zero, 3)


def is_by_columns(anchor: Stage, candidate: Candidate, target: Target) -> bool:
    """Whether a tile loops over the columns of an unblocked input's windows first. This is needed if neighbouring
    pixels of a line read the same elements at different columns of their windows. If windows do not overlap, as those
    of patches, both orders do, unless lines would leave the first-level cache before their next element is read, and
    weights, which lie along the windows' lines, would be read at strides that hardware prefetchers do not follow."""
    if len(anchor.reduce) == 4:
        return False
    channels, height, width = (as_int(it.extent) or 1 for it in anchor.reduce)
    attrs, rows = _attributes(anchor), candidate.knob("rows")
    if width == 1 or attrs.strides[1] <= (width - 1) * attrs.dilations[1]:
        return width > 1
    panel = channels * height * width * candidate.knob("width")
    lines = channels * height * ((rows - 1) * attrs.strides[1] + width)
    return 4 * (panel + lines) <= target.costs.traffic.resident_l1 * target.l1


def prefetch_operands(
    s: Schedule, anchor: Stage, reduce: list[LoopRef], candidate: Candidate, tiles: int, target: Target
) -> None:
    """Add prefetches to the loops of the reduction: of the next weights, if those come from beyond the second level of
    cache, or of the next strip's pixels, for 1x1 convolutions over flat maps that do. `tiles` is the number of register
    tiles of a strip."""
    weights, loads = packed_operand(anchor), factors(anchor.block)
    long = [loop for loop in reduce if extent(s, loop) != 1]
    if weights is None or loads is None or not long:
        return
    if level(working_set(nbytes_of(weights.buffer), s.func.notes, target), target) in SHARED_LEVELS:
        prefetch_weights(s, weights, reduce, long, tiles, target)
    elif is_flat(anchor) and all(is_const(d, 1) for d in weights.buffer.shape[2:4]) and long[0] != reduce[-1]:
        prefetch_pixels(s, weights, next(load for load in loads if load is not weights), long[0], candidate, target)


def prefetch_weights(
    s: Schedule, weights: Load, reduce: list[LoopRef], long: list[LoopRef], tiles: int, target: Target
) -> None:
    """Prefetch `weights` from beyond the second level of cache, in the loops `long` of the `reduce` loops, which have
    several iterations. With many `tiles` per strip each tile prefetches a share of the next panel (of a block of
    channels). With few, a tile prefetches its own panel shortly before it is read: in each step as many lines as it
    reads, on cores whose hardware follows one stream too slowly, else a few lines for each block of channels, so that
    loads are not delayed."""
    asked, prefetch = buffer_names([weights.buffer]), target.costs.prefetching
    step = (as_int(weights.buffer.shape[-1]) or 1) * weights.buffer.dtype.itemsize
    outer = [loop for loop in long if loop != reduce[-1]]
    if tiles < SHARING_LEAST:
        if prefetch.alone_panel_bytes:
            s.annotate(long[-1], Prefetch(asked, prefetch.alone_panel_bytes, lines=-(-step // target.caches.line)))
        elif len(reduce) == 4 and outer:
            s.annotate(outer[-1], Prefetch(asked, prefetch.stream_bytes))
    if tiles < SHARING_LEAST or not outer:
        return
    panel = prod(_size(s, loop) for loop in reduce) * step

    def share(loop: LoopRef) -> float:
        """The number of cache lines that each of the `tiles` must prefetch in one iteration of `loop`, so that together
        they fetch what the iteration reads."""
        inside = prod(_size(s, inner) for inner in reduce[reduce.index(loop) + 1 :]) * step
        return inside / (tiles * target.caches.line)

    # As often as there are lines for it: those of a whole block of channels at once wait for line buffers.
    loop = next((loop for loop in reversed(outer) if share(loop) >= FEWEST_LINES), outer[0])
    lines = ceil(share(loop))
    s.annotate(loop, Prefetch(asked, panel, level=prefetch.panel_level, tiles=tiles, lines=lines))


def prefetch_pixels(
    s: Schedule, weights: Load, x: Load, channels: LoopRef, candidate: Candidate, target: Target
) -> None:
    """Let each register tile prefetch the pixels of that tile in the next strip, shared evenly among the panels. A
    strip reads a few lines of each channel's map, which hardware prefetchers do not follow, so that the first panel
    would wait for every block of channels. With many panels nothing is done: that wait is a small part of their
    time."""
    rows, strip = candidate.knob("rows"), candidate.knob("strip")
    panels = as_int(weights.buffer.shape[0]) or 1
    inside = x.buffer not in s.func.params
    if inside or strip == WHOLE or panels not in PREFETCHING or level(nbytes_of(x.buffer), target) not in SHARED_LEVELS:
        return
    pixel = (as_int(x.buffer.shape[-1]) or 1) * x.buffer.dtype.itemsize
    lines = -(-rows * pixel // target.caches.line)
    each = -(-lines // panels)
    (asked, turn), turns = buffer_names([x.buffer, weights.buffer]), -(-lines // each)
    s.annotate(channels, Prefetch((asked,), strip * pixel, lines=each, turn=turn, turns=turns))


def unroll_steps(s: Schedule, reduce: list[LoopRef], products: int) -> None:
    """Unroll the innermost loops of the reduction, with `products` multiply-adds in a step, for a body of `BODY` of
    them.

    A loop of a few short steps inside other loops would mispredict its exit too often.
    """
    for loop in reversed(reduce):
        steps = extent(s, loop)
        if steps is None or products >= BODY:
            return
        factor = body_steps(steps, products)
        if factor > 1:
            s.annotate(loop, Unroll(factor))
        products *= factor


def body_steps(steps: int, products: int) -> int:
    """How many of a loop's steps, of `products` multiply-adds each, make a body of at least `BODY`: a divisor of
    `steps`. Fewer if no divisor gives one of `BODY` to `MAX_BODY`, as for a large prime number of steps."""
    divisors = [d for d in range(1, steps + 1) if steps % d == 0 and (d == 1 or d * products <= MAX_BODY)]
    return next((d for d in divisors if d * products >= BODY), divisors[-1])


def in_lines(s: Schedule, block: BlockRef, line: int) -> None:
    """Split a block's innermost loop, over pixels, into lines of `line` pixels, if these divide it."""
    pixels = s.loops(block)[-1]
    if line and (extent(s, pixels) or 1) % line == 0:
        s.split(pixels, factor=line)


def place_prologue(s: Schedule, stage: Stage, strip: LoopRef, target: Target, line: int = 0) -> None:
    """Schedule `stage`, padding or pointwise work on the input, so that each iteration of the loop `strip` computes
    what it reads; its loop over pixels is split into lines of `line` pixels, if that is not 0."""
    block = s.block(stage.name)
    s.compute_at(block, strip)
    in_lines(s, block, line)
    lanes = lanes_of(stage, target)
    inner = s.loops(block)[-1]
    size = extent(s, inner)
    if size is None or size > 4 * lanes:
        _, inner = s.split(inner, factor=lanes)
    s.vectorize(inner)


PLAN = Plan("convolution", fits, candidates, apply)
"""The plan of direct convolutions, for all windows and strides."""
