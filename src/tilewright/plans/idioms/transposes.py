"""Transpositions: packing weights into panels, changing layouts.

No dimension is contiguous on both sides. If both dimensions are long enough, square tiles are transposed in registers
(`transpose_tiles`). One iterator may run over several dimensions of the source, which then are treated as one:

    rows[panel, place, lane] = w[panel * 16 + lane, place // 3 // 3, place // 3 % 3, place % 3]     down: place

Otherwise loops run along the source's contiguous dimensions, inside a box of the destination that stays in cache
(`transpose_boxes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.arith import linear, simplify
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.loops import Block, BlockIter, Store
from tilewright.ir.notes import Prefetch
from tilewright.ir.rewrite import loads, substitute, variables
from tilewright.plans.framework.common import buffer_names, extent, own_loops, parallelize, shares_well, stream_outputs
from tilewright.plans.framework.cost import SHARED_LEVELS, level
from tilewright.plans.idioms.reducing import steps
from tilewright.plans.idioms.tile_axes import TileAxes, flat, loops_by_name, row_pitch, share_sets, tile_axes
from tilewright.schedule.index_map import IndexMap
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

# -- tiles through registers -------------------------------------------------------------------------------------------


def _tiles_separately(stage: Block, axes: TileAxes, target: Target) -> int:
    """How many tiles along a row of the destination to write together: a cache line's worth, halved until their rows do
    not evict one another from the first-level cache."""
    assert isinstance(stage.body, Store)
    tiles = target.caches.line // stage.body.buffer.dtype.itemsize // axes.lanes
    while tiles > 1 and share_sets(tiles * axes.lanes, row_pitch(stage, axes.down), target):
        tiles //= 2
    return tiles


def contiguous_run(index: Expr, iters: Mapping[str, BlockIter], sizes: Mapping[str, int | None]) -> list[str]:
    """The iterators that run through memory without gaps in `index`, the one of stride 1 first: inner, outer for `outer
    * 16 + inner` if inner has size 16."""
    form = linear(index)
    run: list[str] = []
    stride = 1
    while (name := next((n for n, it in iters.items() if form.coefficient(it.var) == stride), None)) is not None:
        run.append(name)
        size = sizes[name]
        if size is None:
            break
        stride *= size
    return run


def transpose_tiles(
    s: Schedule, block: BlockRef, axes: TileAxes, target: Target, *, lines: bool = True
) -> list[LoopRef]:
    """Square tiles through registers, as many together as fill a line of cache on both sides:

    for ...: for along_far, down_far: for along_wide, down_wide: for down_near, along_near:
        for a in unrolled 0..8: for d in vectorized 0..8: tile[a, d] = x[.., along + a, .., down + d]
        for d in unrolled 0..8: for a in vectorized 0..8: y[.., down + d, .., along + a] = tile[a, d]

    Returns the outer loops, which threads may share. Without `lines`, for a destination in cache, the loop over `down`
    is inside. If `down` runs from block to block of channels, all rows of a block in the destination are written before
    those of the next, so that there are as many streams as a tile has rows. In a destination beyond the second level of
    cache, short rows are completed before the next ones, since one pass per tile of a row would return to each page. Of
    rows shorter than a line, several lines are written at a time, by as many tiles as do not share sets.
    """
    stage = s.get(block)
    assert isinstance(stage, Block) and isinstance(stage.body, Store)
    lanes, line = axes.lanes, target.caches.line // stage.body.buffer.dtype.itemsize
    lines_together = target.costs.copies.lines_together
    by_name = loops_by_name(s, block)
    sizes = {name: extent(s, loop) for name, loop in by_name.items()}
    others = [loop for name, loop in by_name.items() if name not in (axes.down, axes.along)]
    beside = _rows_of_lines(s, block, axes, target) if lines else None
    together = {axes.along: line // lanes, axes.down: line // lanes}
    if beside is not None:
        together[axes.down] = _tiles_separately(stage, axes, target)
    flatten(s, block, axes)
    second_loops: list[LoopRef] = []
    wide: list[LoopRef] = []
    if beside is not None:
        name, rows = beside
        loop, inside = s.split(by_name[name], factor=rows)
        others[others.index(by_name[name])] = loop
    first_loops: list[LoopRef] = []
    tiles: list[LoopRef] = []
    for name in (axes.along, axes.down):
        loop, tile = s.split(by_name[name], factor=lanes)
        tiles.append(tile)
        if name == axes.down and not axes.run:
            second_loops.insert(0, loop)
            continue
        size = extent(s, loop)
        if lines and together[name] > 1 and (size is None or size >= 2 * together[name]):
            loop, middle = s.split(loop, factor=together[name])
            first_loops.append(middle)
        size, whole = extent(s, loop), (sizes[name] or 0) % lanes == 0
        if lines and size is not None and size > 4 * lines_together:
            loop, middle = s.split(loop, factor=lines_together)
            wide.append(middle)
        elif lines and not whole and size is not None:
            wide.append(loop)  # A loop of its own can separate its last tile, one that threads share cannot.
            continue
        second_loops.append(loop)
        by_rows = lines and name == axes.down and len(second_loops) > 1
        if by_rows and _writes_whole_rows(s, block, axes, extent(s, second_loops[-2]), target):
            second_loops[-2:] = reversed(second_loops[-2:])
    along, down = tiles
    if beside is not None:
        wide.append(inside)
    shared = [*others, *second_loops]
    if target.threads > 1 and not shares_well(prod(extent(s, loop) or 1 for loop in others)):
        # Threads share loops that are nothing but known, or what comes first.
        shared.sort(key=lambda loop: extent(s, loop) is not None)
    enclosing = [*shared, *wide, *reversed(first_loops)]
    s.reorder(*enclosing, down, along)
    for source, _ in axes.sources:
        _fill_tile(s, block, source, enclosing[-1])
    s.unroll(down)
    s.vectorize(along)
    stream_outputs(s, block, along, target)
    return shared


def _fill_tile(s: Schedule, block: BlockRef, source: str, enclosing: LoopRef) -> None:
    """Read the tile of `source` that `block` needs into registers, inside the loop `enclosing`, in vectors, with rows
    unrolled."""
    cache = s.cache_read(block, source, "local")
    s.compute_at(cache, enclosing)
    filling = s.loops(cache)
    own = [loop for loop in filling[filling.index(enclosing) + 1 :] if extent(s, loop) != 1][-2:]
    # Of some symbolic sizes it is not seen that a tile reads no more of them than its own part.
    for loop in own[-1:]:
        if extent(s, loop) is not None:
            s.vectorize(loop)
    for loop in own[:-1]:
        if extent(s, loop) is not None:
            s.unroll(loop)


def _rows_of_lines(s: Schedule, block: BlockRef, axes: TileAxes, target: Target) -> tuple[str, int] | None:
    """(iterator over rows, how many of them to write together) for a transposition whose destination has rows shorter
    than a cache line, so that whole lines are written. More rows, where a tile's rows evict one another from the
    first-level cache, as lines must be complete before they leave it. None if the destination stays in that cache, rows
    are long enough, or no such number divides the rows."""
    stage = s.get(block)
    assert isinstance(stage, Block) and isinstance(stage.body, Store)
    buffer, extents = stage.body.buffer, {it.var: as_int(it.extent) for it in stage.iters}
    if len(stage.body.indices) < 2 or (as_int(buffer.size) or 0) * buffer.dtype.itemsize <= target.l1:
        return None
    row, line = as_int(buffer.shape[-1]), target.caches.line // buffer.dtype.itemsize
    rows = stage.body.indices[-2]
    if type(rows) is not Var or rows.name == axes.down:
        return None
    count = extents.get(rows)
    deep = next(extents[it.var] for it in stage.iters if it.var.name == axes.down) or line
    crowded = share_sets(min(line, deep), row_pitch(stage, axes.down), target)
    if not row or not count or (row >= line and not crowded) or row > 4 * line:
        return None
    fewer = target.costs.copies.lines_together
    wanted = [*range(2 * fewer, 4 * fewer + 1), *range(2 * fewer - 1, 0, -1)] if crowded else [*range(fewer, 0, -1)]
    match = next((n * line // row for n in wanted if n * line % row == 0 and count % (n * line // row) == 0), None)
    return None if match is None else (rows.name, match)


def _writes_whole_rows(s: Schedule, block: BlockRef, axes: TileAxes, tiles: int | None, target: Target) -> bool:
    """Whether to write all `tiles` along a row of the destination before the next rows: they are few, and the rows do
    not fit the second level of cache."""
    if tiles is None or not 1 < tiles <= 4 * target.costs.copies.lines_together:
        return False
    stage = s.get(block)
    assert isinstance(stage, Block) and isinstance(stage.body, Store)
    down = next(it for it in stage.iters if it.var.name == axes.down)
    return level(row_pitch(stage, axes.down) * (as_int(down.extent) or 0), target) in SHARED_LEVELS


def flatten(s: Schedule, block: BlockRef, axes: TileAxes) -> None:
    """Reshape each source of `block` so that the dimensions over which the iterator `axes.down` runs become one."""
    stage = s.get(block)
    assert isinstance(stage, Block) and isinstance(stage.body, Store)
    for source, first in axes.sources:
        shape = next(load.buffer.shape for load in loads(stage.body.value) if load.buffer.name == source)
        if sum(as_int(size) != 1 for size in shape[first:]) < 2:
            continue
        old = [Var(f"i{k}") for k in range(len(shape))]
        units = [i for i, size in zip(old, shape, strict=True) if as_int(size) == 1]
        place = flat(old, shape, first)
        mapping = (*old[:first], simplify(substitute(place, dict.fromkeys(units, const(0)))))
        s.transform_layout(block, IndexMap(tuple(old), (*mapping, *(i for i in units if i in old[first:]))), source)


def is_staged(s: Schedule, block: BlockRef, axes: TileAxes) -> bool:
    """Whether `transpose_staged` supports a transposition: the iterator `down` is by itself an index of the
    destination."""
    stage = s.get(block)
    assert isinstance(stage, Block) and isinstance(stage.body, Store)
    return axes.down in [i.name for i in stage.body.indices if isinstance(i, Var)]


def transpose_staged(s: Schedule, block: BlockRef, axes: TileAxes, target: Target) -> None:
    """Transpose tiles into a box in the first level of cache, which is then written in whole lines, for streaming
    stores:

    for ...: for along_far, down_far:                     threads
        for along, down in tiles: box[down, along] = x[.., along, .., down]
        for d in 0..64: for a in vectorized 0..64: y[.., down + d, .., along + a] = box[d, a]
    """
    stage = s.get(block)
    assert isinstance(stage, Block) and isinstance(stage.body, Store)
    place = [i.name if isinstance(i, Var) else "" for i in stage.body.indices].index(axes.down)
    copy = s.cache_write(block, "global")
    loops = list(s.loops(copy))
    outer = [loop for k, loop in enumerate(loops[:-1]) if k != place]
    inner = []
    for loop in (loops[-1], loops[place]):
        size = extent(s, loop)
        if size is None or size > target.costs.copies.box_side:
            second_loops, loop = s.split(loop, factor=target.costs.copies.box_side)
            outer.append(second_loops)
        inner.append(loop)
    s.reorder(*outer, *reversed(inner))
    s.compute_at(block, outer[-1])
    own = tile_axes(s, block, target)
    if own:
        transpose_tiles(s, block, own, target, lines=False)
    s.vectorize(inner[0])
    stream_outputs(s, copy, inner[0], target)
    parallelize(s, outer)


# -- panels ------------------------------------------------------------------------------------------------------------


def panel_pieces(s: Schedule, block: BlockRef, target: Target) -> bool:
    """Schedule a block that moves pieces of the source's rows to panels: some rows at a time, so that both sides are
    long runs.

    for rows, panel: for k in 0..32: for lane in vectorized 0..16:
        packed[panel, rows + k, lane] = w[rows + k, panel * 16 + lane]

    The parts of rows for the next panels are prefetched. Returns False, without a change, for other blocks.
    """
    stage = s.get(block)
    assert isinstance(stage, Block)
    if not isinstance(stage.body, Store) or len(stage.iters) < 3:
        return False
    by_name = loops_by_name(s, block)
    *_, panel, row, lane = stage.iters
    sizes = {name: extent(s, loop) for name, loop in by_name.items()}
    sources = loads(stage.body.value)
    if len(sources) != 1 or stage.body.indices[-1] is not lane.var or len(sources[0].indices) < 2:
        return False
    source, index = sources[0].buffer, sources[0].indices
    width, count = sizes[lane.var.name], sizes[row.var.name]
    group = target.costs.copies.row_group
    if index[-2] is not row.var or source.dtype.itemsize != 4 or width is None or count is None or count < 2 * group:
        return False
    form = linear(index[-1])
    if form.coefficient(lane.var) != 1 or form.coefficient(panel.var) != width or len(form.terms) != 2:
        return False
    *outer, panels, rows, lanes = by_name.values()
    rows, inner = s.split(rows, factor=group)
    s.reorder(*outer, rows, panels, inner, lanes)
    prefetch = target.costs.prefetching.packed_row_bytes
    s.annotate(inner, Prefetch(buffer_names([source]), prefetch, level=1, lines=1))
    s.vectorize(lanes)
    stream_outputs(s, block, lanes, target)
    parallelize(s, [*outer, rows, panels])
    return True


def panel_groups(s: Schedule, block: BlockRef, target: Target, unrolled: LoopRef | None = None) -> bool:
    """Schedule a block that moves groups along the depth to panels for dot instructions: a step's groups, one for each
    lane, as one vector.

    for rows, panel: for k in 0..32: for f in vectorized 0..32:
        packed[panel, rows + k, f // 2, f % 2] = w[2 * (rows + k) + f % 2, panel * 16 + f // 2]

    The loop `unrolled` is put directly around the vector. Returns False, without a change, for other blocks.
    """
    stage = s.get(block)
    assert isinstance(stage, Block)
    if not isinstance(stage.body, Store) or len(stage.iters) < 4:
        return False
    *_, panel, step, lane, member = stage.iters
    sources = set(loads(stage.body.value))
    if len(sources) != 1 or stage.body.indices[-2:] != (lane.var, member.var):
        return False
    (source,) = sources
    together = as_int(lane.extent * member.extent)
    if together is None or together * stage.body.buffer.dtype.itemsize > target.vector_bits // 8:
        return False
    forms = [linear(index) for index in source.indices]
    for second_loops, first_loops in ((panel, lane), (step, member)):
        strides = (as_int(first_loops.extent), 0 if as_int(second_loops.extent) == 1 else None)
        if not any(f.coefficient(first_loops.var) == 1 and f.coefficient(second_loops.var) in strides for f in forms):
            return False
    *outer, panels, steps, lanes, members = (loop for _, loop in own_loops(s, block) if loop != unrolled)
    order, within = [*outer, panels, steps], []
    group = target.costs.copies.row_group
    if lane.var in variables(source.indices[-1]) and (as_int(step.extent) or 0) >= 2 * group:
        steps, inner = s.split(steps, factor=group)
        order, within = [*outer, steps, panels], [inner]
    if unrolled is not None:
        within.append(unrolled)
        s.unroll(unrolled)
    if within:
        s.reorder(*order, *within, lanes, members)
    s.vectorize(vector := s.fuse(lanes, members))
    stream_outputs(s, block, vector, target)
    parallelize(s, order)
    return True


# -- boxes -------------------------------------------------------------------------------------------------------------


def source_order(s: Schedule, block: BlockRef) -> list[str]:
    """For a pure transposition the block's iterators along the source's contiguous dimensions, innermost first, up to
    the one that is innermost in the destination; empty for anything else."""
    stage = s.get(block)
    assert isinstance(stage, Block)
    store = stage.body
    if not isinstance(store, Store) or not stage.iters:
        return []
    sources = loads(store.value)
    if len(sources) != 1:
        return []
    iters = {it.var.name: it for it in stage.iters if as_int(it.extent) != 1}
    sizes = {name: as_int(it.extent) for name, it in iters.items()}
    last = store.indices[-1]
    order: list[str] = []
    for index in reversed(sources[0].indices):
        run = contiguous_run(index, iters, sizes)
        if not run or any(name in order for name in run):
            if as_int(index) is None:
                return []
            continue
        for name in run:
            order.append(name)
            if iters[name].var is last:
                return order if len(order) > 1 else []
    return []


def transpose_boxes(s: Schedule, block: BlockRef, strip: list[str], target: Target) -> None:
    """Block a transposition: the loops named in `strip` go inside, split so that what they move stays in cache, and all
    others outside, in threads.

    A box covers a few lines in a few rows of the destination. These lines stay in the first level of cache until they
    are full, even if they all fall into the same few sets.
    """
    by_name = loops_by_name(s, block)
    outer = [loop for name, loop in by_name.items() if name not in strip]
    copies = target.costs.copies
    size = 1
    for name in strip:
        size *= extent(s, by_name[name]) or copies.box
    if size > copies.box:
        for name, most in _box_sides(s, block, strip, target).items():
            length = extent(s, by_name[name])
            if length is None or length > most:
                piece, by_name[name] = s.split(by_name[name], factor=most)
                outer.append(piece)
    inner = [by_name[name] for name in reversed(strip)]
    s.reorder(*outer, *inner)
    parallelize(s, outer)


def _box_sides(s: Schedule, block: BlockRef, strip: list[str], target: Target) -> dict[str, int]:
    """The extents to which `transpose_boxes` splits the loops in `strip`: the loops that move along the destination's
    rows together cover some cache lines, the other loops a few rows."""
    stage = s.get(block)
    assert isinstance(stage, Block) and isinstance(stage.body, Store)
    place, itemsize = flat(stage.body.indices, stage.body.buffer.shape, 0), stage.body.buffer.dtype.itemsize
    iters = {it.var.name: it for it in stage.iters}
    moves = {name: abs(steps(place, iters[name].var) or 0) for name in strip}
    lines, run = BOX_LINES * target.caches.line // itemsize, 1
    sides: dict[str, int] = {}
    for name in sorted(strip, key=lambda n: moves[n]):
        if moves[name] == run < lines:
            sides[name] = lines // run
            run *= as_int(iters[name].extent) or lines
    rows = [name for name in strip if name not in sides]
    sides |= dict.fromkeys(rows, target.costs.copies.box_run if len(rows) == 1 else BOX_ROWS)
    return {name: sides[name] for name in strip}


BOX_LINES = 2
"""The number of cache lines of the destination in a row of a box."""
BOX_ROWS = 4
"""The number of rows of a box in each direction."""
