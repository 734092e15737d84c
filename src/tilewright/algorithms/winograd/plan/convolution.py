"""The plan of Winograd convolution: all stages process one block of tiles at a time, so that intermediates stay in
cache.

    for tile block:
        for channel block:                          parallel
            for tile row:
                strip = rows of the input           zeros past the map; L1
                half  = B^T strip                   straight-line code over constants
                tiles[:, :, channels, t] = half B   transformed input of the block; L2
        for group of panels of filters:             parallel, or both loops inside are
            for xi in alpha x alpha:
                for panel, rows of tiles:
                    product[xi, panel, t] = tiles[xi] @ u[group, xi, panel]     a register tile
            for panel, tile:
                out = epilogue(A^T product A)       bias, residual, activation

NCHW maps may come in and go out (`plans/idioms/conversions.py`): strips are transposed lines then, and a row of tiles
is transposed when it is complete.

The stages are those of `winograd/operators/convolution.py`, restated for blocks of tiles of the size that is chosen
here; the layout of the filters determines the panels of a group. All tiles are read once for each group; the data that
its panels read one after another, one element of all tiles, stays in L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from tilewright.algorithms.winograd.operators.convolution import (
    CONV_WINOGRAD,
    PACK_WINOGRAD,
    ConvWinogradAttrs,
    tiles_in_blocks,
)
from tilewright.algorithms.winograd.operators.correlation import MAX_POINTS
from tilewright.algorithms.winograd.plan.tiles import (
    ENOUGH,
    TileBlock,
    WinogradProblem,
    best_rows,
    blocked,
    cost,
    fewest,
    heights,
    mean,
    one_block_a_thread,
    part_of,
    problems_of,
    times,
    unshared_penalty,
    weight_of,
)
from tilewright.algorithms.winograd.selection import Winograd
from tilewright.codegen.llvm.prefetch import MAX_LINES
from tilewright.ir.expr import Buffer, as_int
from tilewright.ir.loops import PrimFunc
from tilewright.ir.notes import Prefetch, Unroll
from tilewright.ops.lowered.packed import BLOCK_CHANNELS
from tilewright.plans.convolution.direct import body_steps
from tilewright.plans.framework.analysis import Operator, Stage, Structure, analyse
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import buffer_names, inline_all, own_loops, stream_outputs
from tilewright.plans.framework.cost import (
    SHARED_LEVELS,
    Cost,
    level,
    nbytes_of,
    number,
    outside,
    roofline,
    working_set,
)
from tilewright.plans.framework.restate import restate
from tilewright.plans.idioms.conversions import contiguous_output, read_contiguous, transpose_in, transpose_out
from tilewright.plans.idioms.panels import packed_operand, unroll_tile
from tilewright.plans.idioms.tile_axes import tile_axes
from tilewright.plans.idioms.transposes import transpose_tiles
from tilewright.plans.matmul.dots import operands
from tilewright.schedule.dot_intrinsics import Dot, find_dot
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.routines import Routine, register
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.state import refuse
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.te import Tensor
from tilewright.transform.loops.portions import EvenBlocks


@dataclass(frozen=True, slots=True)
class WinogradStages:
    """The stages of a Winograd convolution, in order; `rest` is the epilogue. If the input is NCHW, the stage `blocks`
    puts its channels into blocks; if the output is, `nchw` writes it."""

    operator: Operator[ConvWinogradAttrs]
    strip: Stage
    half: Stage
    tiles: Stage
    product: Stage
    upright: Stage
    result: Stage
    rest: tuple[Stage, ...]
    nchw: Stage | None
    blocks: Stage | None

    @property
    def attrs(self) -> ConvWinogradAttrs:
        return self.operator.attrs


def filters_of(product: Stage) -> Buffer:
    """The buffer of transformed filters that the stage `product` reads: floats, or pairs of 16-bit integers."""
    pairs = operands(product)
    weights = packed_operand(product) if pairs is None else pairs[1]
    assert weights is not None
    return weights.buffer


def dot_of(product: Stage, target: Target) -> Dot | None:
    """The instruction that multiplies pairs of 16-bit integers in the stage `product`; None for floats."""
    pairs = operands(product)
    return None if pairs is None else find_dot(pairs[0].buffer.dtype, pairs[1].buffer.dtype, target)


def stages(structure: Structure) -> WinogradStages | None:
    """The stages if the function is a Winograd convolution, followed only by stages that can be computed tile by tile;
    else None."""
    conv = structure.operator(CONV_WINOGRAD)
    if conv is None:
        return None
    strip, half, tiles = map(conv.stage, ("strip", "input_rows", "input_columns"))
    product, upright, result = map(conv.stage, ("product", "output_rows", "output_columns"))
    after, ordinary = contiguous_output(structure, product)
    rest = tuple(s for s in after if s not in (upright, result))
    blocks = [s for s in structure.producers(strip) if s.attributes(BLOCK_CHANNELS) is not None]
    if structure.anchors != (product,) or len(blocks) > 1 or not rest:
        return None
    if any(s.role != "spatial" for s in rest) or len(rest[-1].spatial) != 5:
        return None
    source = next(iter(blocks), None)
    return WinogradStages(conv, strip, half, tiles, product, upright, result, rest, ordinary, source)


def fits(structure: Structure, target: Target) -> bool:
    return stages(structure) is not None


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    """The settings of the plan to consider: all blocks of tiles with their best register tiles, and the best block with
    all register tiles."""
    result = stages(structure)
    assert result is not None
    shapes, choice = problems(result, structure, target), transform(result)
    ranked = [option for option in blocked(shapes, choice, target) if option[1].columns or result.nchw is None]
    images = number(_result(result).shape[0])
    after = outside(structure, result.operator.stages, target)

    def candidate(block: TileBlock, rows: int) -> Candidate:
        costs = [cost(s, choice, block, target, rows) * unshared_penalty(s, choice, block, target) for s in shapes]
        total = sum((c * weight_of(s, shapes) for c, s in zip(costs, shapes, strict=True)), Cost())
        scale = mean([c.cycles for c in costs], shapes) / total.cycles
        total = total * (scale * images * result.attrs.dilation**2)
        knobs = (("tilerows", block.rows), ("tilecolumns", block.columns), ("rows", rows), ("width", choice.width))
        return Candidate(knobs, total + after)

    options = []
    for place, (_, block) in enumerate(ranked):
        all_rows = heights(block, shapes, choice, target) if place == 0 else [best_rows(block, shapes, choice, target)]
        options += [candidate(block, rows) for rows in all_rows]
    return sorted(options, key=lambda c: c.cycles)


def _result(result: WinogradStages) -> Buffer:
    """The buffer of the operator's result, in channel blocks."""
    (buffer,) = result.operator.stages[-1].writes
    return buffer


def transform(result: WinogradStages) -> Winograd:
    """The transform of the convolution: outputs of a tile per side from the attributes, panels from the layout of its
    filters."""
    width, panels = (as_int(it.extent) for it in (result.product.spatial[-1], result.product.spatial[-3]))
    assert width is not None and panels is not None
    return Winograd(result.attrs.tile, width, panels)


def problems(result: WinogradStages, structure: Structure, target: Target) -> tuple[WinogradProblem, ...]:
    """The problems by which the convolution with stages `result` is estimated, one for each number of images."""
    model = working_set(0.0, structure.func.notes, target)
    return problems_of(result.attrs, _result(result).shape, model, dot_of(result.product, target))


def in_blocks(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """A Winograd convolution rewritten to run block by block: `sizes` has `tilerows` and `tilecolumns`, the rows and
    columns of tiles in a block. Raises ScheduleError for other functions."""
    structure = analyse(func)
    result = stages(structure)
    if result is None:
        raise refuse(func, "the routine 'winograd in blocks' computes Winograd convolutions, block of tiles by block")
    weights = filters_of(result.product)
    x, *zero = sorted(result.strip.reads, key=lambda buffer: -len(buffer.shape))

    def convolution(x: Tensor, u: Tensor, *zero: Tensor) -> Tensor:
        shape = _result(result).shape
        return tiles_in_blocks(x, u, result.attrs, shape, sizes["tilerows"], sizes["tilecolumns"], *zero)

    return restate(structure, result.operator, (x, weights, *zero), convolution)


IN_BLOCKS = register(Routine("winograd in blocks", ("tilerows", "tilecolumns"), in_blocks, none=("tilecolumns",)))


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    result = stages(structure)
    assert result is not None
    before = tuple(st for st in structure.stages if st not in (*result.operator.stages, *result.rest, result.nchw))
    inline_all(s, structure, (*before, *(result.rest[:-1] if result.nchw is not None else result.rest)))
    out = s.block(result.rest[-1].name)
    if result.nchw is None:
        row_block, column_block, group, panel, channel, p = output_loops(s, result, out, candidate)
    else:
        row_block, column_block, group, panel, channel, p = ordinary_loops(s, result, out, candidate, target)
    s.compute_at(s.block(result.result.name), p)
    s.compute_at(s.block(result.upright.name), channel)
    block = TileBlock(candidate.knob("tilerows"), candidate.knob("tilecolumns"))
    shapes, choice = problems(result, structure, target), transform(result)
    least = fewest(block, shapes, choice)
    element, product = products(s, result.product, group, candidate.knob("rows"), target, least=least)
    s.compute_at(s.block(result.tiles.name), column_block)
    for padded in (s.block(result.tiles.name), product):
        s.set_scope(padded, "padded")
    channels = input_transform(s, result, candidate, target)
    for stage in (result.upright, result.result):
        s.set_scope(s.block(stage.name), "local")
        constant_product(s, s.block(stage.name))
    q, lane = s.loops(out)[-2:]
    s.unroll(q)
    s.vectorize(lane)
    is_short = (s.extent(group) or 0) < ENOUGH
    count = min(times(shape, choice, block) for shape in shapes)
    enclosing = share(
        s, row_block, column_block, (channels, element, panel) if is_short else (channels, group), count, target
    )
    if not block.columns:
        s.annotate(enclosing, EvenBlocks(block.rows, candidate.knob("rows")))


def share(
    s: Schedule, row_block: LoopRef, column_block: LoopRef, phases: tuple[LoopRef, ...], count: int, target: Target
) -> LoopRef:
    """Let threads share the work, and return the loop over rows of blocks, or over all blocks.

    If there are enough blocks of tiles (`count`, the least of the sizes for which the layer is estimated), threads
    share these: then each core has its tiles in its own cache. Else they share the loop of each phase: the channels of
    the tiles' transforms, then groups of panels or, if those are few, the elements of the products and then the panels
    of the output.
    """
    if one_block_a_thread(count, target):
        # Where tile rows run across images it may not be provable that blocks write different elements.
        row_block = s.fuse(row_block, column_block)
        with s.trying("threads share each phase, not blocks of tiles"):
            s.parallel(row_block)
            return row_block
    for loop in phases:
        s.parallel(loop)
    return row_block


def input_transform(s: Schedule, result: WinogradStages, candidate: Candidate, target: Target) -> LoopRef:
    """Schedule the transform of the input by blocks of channels and tile rows. Returns the loop over channel blocks."""
    tiles, half, strip = (s.block(stage.name) for stage in (result.tiles, result.half, result.strip))
    if result.blocks is not None:
        lines, strip = read_contiguous(s, strip)
    y, z, co, t = s.loops(tiles)[-6:-2]
    row, column = s.split(t, factor=candidate.knob("tilecolumns") or 1)
    s.reorder(co, row, column, y, z)
    s.compute_at(half, row)
    s.compute_at(strip, row)
    constant_product(s, half)
    constant_product(s, tiles)
    if result.blocks is not None:
        transpose_in(s, lines, strip, target)
        return co
    v, lane = s.loops(strip)[-2:]
    # Two at once, so that the loop is split where padding begins: each element would test whether it is padding.
    _, v = s.split(v, factor=2)
    s.unroll(v)
    s.vectorize(lane)
    return co


def constant_product(s: Schedule, block: BlockRef) -> None:
    """Compute the product with a constant matrix in a block by straight-line code, in vectors over the channels."""
    s.expand(block)
    s.vectorize(s.loops(block)[-1])


def products(
    s: Schedule,
    stage: Stage,
    group: LoopRef,
    rows: int,
    target: Target,
    *,
    by_parts: bool = True,
    least: int | None = None,
) -> tuple[LoopRef, BlockRef]:
    """Schedule the stage of products in register tiles of `rows` tiles x filters, over parts of the channels or
    (`by_parts` false) all at once. Returns the loop over the elements of a tile, and the block whose result the
    output's transform reads. `least`: the number of a block's tiles that every map has for which the layer is
    estimated; None: all of them.

    The stage's iterators are two over blocks of tiles, then group of panels, elements of a tile (one or two), panel,
    tile, filter.
    """
    weights, dot = filters_of(stage), dot_of(stage, target)
    blocks, lanes, count, width = (as_int(it.extent) for it in (*stage.reduce[:2], *stage.spatial[-2:]))
    assert blocks is not None and lanes is not None and count is not None and width is not None
    part = part_of(blocks, lanes) if by_parts else blocks
    product, elements = s.block(stage.name), len(stage.spatial) - 6
    if part == blocks:
        element, product, tile = register_tiles(s, product, group, rows, elements)
    else:
        element, product, tile = register_tiles_of_parts(s, product, group, rows, part, elements)
    own = own_loops(s, tile)
    t, filters = [loop for it, loop in own if it.kind == "spatial"][-2:]
    co, ci, *members = [loop for it, loop in own if it.kind == "reduce"][-len(stage.reduce) :]
    s.reorder(co, ci, t, filters, *members)
    vectors = width // target.lanes(4)
    steps = body_steps(lanes, rows * vectors)
    if target.isa.elements and rows * vectors + vectors + rows > target.registers:
        steps = min(steps, 2)  # the values of more steps, loaded together, have no room beside such a tile
    sharing = min(least or count, count)
    # Where there are fewer than share, two register tiles of about equal size may be all, each with half of the lines.
    fewer = sharing if sharing == count else min(sharing, 2 * rows - 1)
    away = level(working_set(nbytes_of(weights), s.func.notes, target), target) in SHARED_LEVELS
    nbytes = target.costs.prefetching.filter_bytes if away else 0
    share = 1.0 if nbytes else min(rows, fewer) / fewer
    while 4 * width * steps * share >= MAX_LINES * target.caches.line and steps % 2 == 0:
        steps //= 2  # a tile's share of what so many steps read is more than a loop prefetches at once
    prefetching, channel = s.split(ci, factor=steps) if steps < lanes else (co, ci)
    s.annotate(channel, Unroll(steps))
    if nbytes:
        s.annotate(prefetching, Prefetch(buffer_names([weights]), nbytes, level=1))
    elif rows < count:
        # The filters that come next, a share by each tile: prefetched by the first tiles alone they would come in a
        # burst that memory cannot keep up with, and then memory would idle. One tile alone reads a stream at an even
        # pace, which hardware follows better than a core can prefetch.
        # Where a small map has fewer tiles than a block, those are enough, and of larger maps each so many tiles
        # prefetch them anew, which costs little: they are near by then.
        strip = sharing if sharing < count else None
        part = ceil(4 * width * steps * share / target.caches.line)
        following, lines = 4 * blocks * lanes * width, part if strip is not None else None
        alone = target.costs.prefetching.shared_panel_rows_memory if strip is not None else None
        note = Prefetch(buffer_names([weights]), following, lines=lines, rows=sharing, strip=strip, fewer_than=alone)
        s.annotate(prefetching, note)
    if dot is not None:
        filters, lane = s.split(filters, factor=dot.lanes)
    init = s.decompose_reduction(tile, co)
    if dot is not None:
        s.unroll(t)
        s.unroll(filters)
        s.tensorize(lane, dot.name)
    else:
        unroll_tile(s, tile, 2)
    unroll_tile(s, init, 2 if dot is None else 3)
    unroll_tile(s, product, 2)
    return element, product


def register_tiles(
    s: Schedule, tile: BlockRef, group: LoopRef, rows: int, elements: int
) -> tuple[LoopRef, BlockRef, BlockRef]:
    """Split the products, which the block `tile` computes inside the loop `group`, into register tiles of `rows` rows
    that sum over all channels. `elements` is the number of loops over the elements of a transformed tile. Returns (one
    loop over these elements, the block that stores, the block that multiplies)."""
    product = s.cache_write(tile, "local")
    s.compute_at(product, group)
    *each, _, t, _ = s.loops(product)[-elements - 3 :]
    element = s.fuse(*each) if elements > 1 else each[0]
    t_outer, _ = s.split(t, factor=rows)
    s.compute_at(tile, t_outer)
    return element, product, tile


def register_tiles_of_parts(
    s: Schedule, product: BlockRef, group: LoopRef, rows: int, part: int, elements: int
) -> tuple[LoopRef, BlockRef, BlockRef]:
    """Split the products, which `product` stores inside the loop `group`, into register tiles of `rows` rows that sum
    over parts of `part` blocks of channels; sums of parts are added in memory. A panel's part then stays in the
    first-level cache for all tiles, and sums are short, which keeps errors small. `elements` is the number of loops
    over the elements of a transformed tile. Returns (one loop over these elements, the block that adds, the block that
    multiplies)."""
    channels = next(loop for it, loop in own_loops(s, product) if it.kind == "reduce")
    outer, _ = s.split(channels, factor=part)
    tile = s.rfactor(product, outer)
    s.set_scope(tile, "local")
    s.compute_at(product, group)
    *each, _, t, lane, outer = s.loops(product)[-elements - 4 :]
    element = s.fuse(*each) if elements > 1 else each[0]
    t_outer, row = s.split(t, factor=rows)
    s.reorder(outer, t_outer, row, lane)
    s.compute_at(tile, t_outer)
    zero = s.decompose_reduction(product, outer)
    s.vectorize(s.loops(zero)[-1])
    return element, product, tile


def output_loops(
    s: Schedule, result: WinogradStages, out: BlockRef, candidate: Candidate
) -> tuple[LoopRef, LoopRef, LoopRef, LoopRef, LoopRef, LoopRef]:
    """Split the loops of the block `out`, which writes the output. Returns those over blocks of tiles (rows, then
    columns of blocks), groups of panels, panels, blocks of channels and rows of a tile.

    One loop covers images, submaps and tile rows.
    """
    m, rate = result.attrs.tile, result.attrs.dilation
    n, k, h, w, lane = s.loops(out)
    lanes = s.extent(lane)
    assert lanes is not None
    maps = [n]
    if rate > 1:
        h, phase = s.split(h, factor=rate)
        w, other = s.split(w, factor=rate)
        maps += [phase, other]
    down, p = s.split(h, factor=m)
    across, q = s.split(w, factor=m)
    s.reorder(*maps, down, across, k, p, q, lane)
    if candidate.knob("tilecolumns"):
        row_block, row = s.split(s.fuse(*maps, down), factor=candidate.knob("tilerows"))
        column_block, column = s.split(across, factor=candidate.knob("tilecolumns"))
    else:
        row_block, row = s.split(s.fuse(*maps, down, across), factor=candidate.knob("tilerows"))
        column_block, row = s.split(row, factor=candidate.knob("tilerows"))
        row, column = s.split(row, factor=1)
    vectors, panels = candidate.knob("width") // lanes, as_int(result.product.spatial[-3].extent)
    assert panels is not None
    group, part = s.split(k, factor=panels * vectors)
    panel, part = s.split(part, factor=vectors)
    s.reorder(row_block, column_block, group, panel, row, column, part, p, q, lane)
    return row_block, column_block, group, panel, part, p


def ordinary_loops(
    s: Schedule, result: WinogradStages, out: BlockRef, candidate: Candidate, target: Target
) -> tuple[LoopRef, LoopRef, LoopRef, LoopRef, LoopRef, LoopRef]:
    """The loops that `output_loops` returns, for NCHW output: the tiles of a row are transposed together, for a block
    of channels, when they are complete. The loops over tiles and their rows are those of `out`, which computes the
    result in blocks."""
    assert result.nchw is not None
    m, lanes = result.attrs.tile, target.lanes(4)
    ordinary, panels = s.block(result.nchw.name), as_int(result.product.spatial[-3].extent)
    assert panels is not None
    vectors = candidate.knob("width") // lanes
    n, k, h, w = s.loops(ordinary)
    k, lane = s.split(k, factor=lanes)
    down, p = s.split(h, factor=m)
    column_block, w = s.split(w, factor=m * candidate.knob("tilecolumns"))
    s.reorder(n, down, column_block, k, p, w, lane)
    row_block, row = s.split(s.fuse(n, down), factor=candidate.knob("tilerows"))
    group, part = s.split(k, factor=panels * vectors)
    panel, part = s.split(part, factor=vectors)
    s.reorder(row_block, column_block, group, panel, row, part, p, w, lane)
    transpose_out(s, ordinary, out, lane, w, target)
    s.compute_at(out, part)
    p, w, lane = s.loops(out)[-3:]
    column, q = s.split(w, factor=m)
    s.reorder(column, p, q, lane)
    return row_block, column_block, group, panel, column, p


def fits_filters(structure: Structure, target: Target) -> bool:
    """Whether a function is the transform of filters, with pointwise stages before it."""
    pack = structure.operator(PACK_WINOGRAD)
    if pack is None or structure.stages[-len(pack.stages) :] != pack.stages:
        return False
    return all(s.role == "spatial" for s in structure.stages[: -len(pack.stages)])


def filters_candidates(structure: Structure, target: Target) -> list[Candidate]:
    return [Candidate((), roofline(structure, target, expanded=True))]


def apply_filters(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    """Schedule the transform of filters by blocks of channels of a panel, which are transposed into the first level of
    cache, then computed in vectors of doubles over the filters:

    for panel, block of channels:                       threads
        filter[channel, i, j, lane] = w[lane, channel, i, j]      transposed through registers
        for channel, lanes of a vector of doubles:
            rows = G filter;  for i: rounded[i, :, channel, lanes] = rows[i] G^T
        for i, j: u[group, i, j, panel, channels, :] = rounded[i, j, channels, :]
    """
    pack = structure.operator(PACK_WINOGRAD)
    assert pack is not None
    inline_all(s, structure, structure.stages[: -len(pack.stages)])
    names = ("rows", "filter_rows", "filter_columns", "filter_rounded", "pack")
    source, half, whole, rounded, packed = (s.block(pack.stage(name).name) for name in names)
    group, y, z, panel, outer, inner, lane, *members = s.loops(packed)
    s.reorder(group, panel, outer, y, z, inner, *members, lane)
    s.compute_at(rounded, outer)
    i, j, channel, lanes = s.loops(rounded)[-4:]
    part, lanes = s.split(lanes, factor=target.lanes(8))
    s.reorder(channel, part, i, j, lanes)
    s.compute_at(whole, i)
    s.compute_at(half, part)
    s.compute_at(source, outer)
    for block in (half, whole):
        s.set_scope(block, "local")
        constant_product(s, block)
    if (s.extent(i) or 0) <= MAX_POINTS:
        s.unroll(i)
        s.unroll(s.loops(half)[-2])
        s.unroll(j)
    s.vectorize(lanes)
    s.vectorize(lane)
    stream_outputs(s, packed, lane, target)
    tile = tile_axes(s, source, target)
    if tile:
        transpose_tiles(s, source, tile, target, lines=False)
    else:
        s.vectorize(s.loops(source)[-1])
    # Where a call says how many blocks there are, it is not proven that a fused loop writes each of them once.
    s.parallel(s.fuse(group, panel, outer) if s.extent(outer) is not None else s.fuse(group, panel))


PLAN = Plan("winograd", fits, candidates, apply, refines=("rows",), restated=IN_BLOCKS)
FILTERS = Plan("winograd filters", fits_filters, filters_candidates, apply_filters)
