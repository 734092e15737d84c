"""Matrix products over packed weights: one register tile of rows x width through the whole reduction.

    for outer..., strip of rows, panel, row tile:       parallel over what is outermost
        tile[rows, width] = 0                           registers
        for reduction...:
            tile[r, :] += a[r] * w[panel, :]            rows unrolled, width in vectors
        out[...] = epilogue(tile)                       bias, residual, activation

Weights come in panels (`ops/lowered/packed.py`), so the innermost loop reads them as one stream. With few rows, a right
operand that is computed is read as unpacked rows: packing it would cost more than it gains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Literal

from tilewright.arith import Analyzer
from tilewright.ir.expr import Buffer, as_int
from tilewright.ir.loops import Block, Store
from tilewright.ir.notes import Count, LoopNote, Note, Prefetch, PrefetchTile, Unroll, register
from tilewright.ir.rewrite import loads, variables, walk
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import buffer_names, extent, inline_all, lanes_of, parallelize
from tilewright.plans.framework.cost import SHARED_LEVELS, SYMBOL, Cost, level, nbytes_of, number, working_set
from tilewright.plans.framework.symbolic import LONG_ROWS, values_of
from tilewright.plans.framework.variants import Values
from tilewright.plans.idioms.panels import (
    fits_panels,
    packed_operand,
    row_iter,
    schedule_prologue,
    unroll_tile,
    weight_iters,
)
from tilewright.plans.matmul.epilogues import can_defer, epilogue, epilogue_work
from tilewright.plans.matmul.tiles import (
    MAX_VECTORS,
    MatmulTile,
    Product,
    estimate,
    last_rows,
    panel_distance,
    prefetch_distance,
    shared_panel_rows,
    sharing_rows,
    strip_rows,
    tiles,
    unrolled_steps,
)
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

VERSIONED_ROWS = (2, 3)
"""Numbers of rows that may have a separate version: with more, one panel of two vectors keeps the multipliers busy."""
SHORT_GAIN = 1.08
"""The estimated gain from which on such a version is worth its code, as a factor,"""
SHORT_CYCLES = 500
"""The estimated gain from which on such a version is worth its code, in cycles: each takes some 30 ms to compile."""


@register
@dataclass(frozen=True, slots=True)
class LastTile(LoopNote):
    """The last tile of a symbolic number of rows may have more of them than a tile: what is left is then part of it.

    Args:
        rows: the most rows that it has, one more than a tile.

    Written by `plans/matmul/contraction.py`, read by `transform/loops/even.py`.
    """

    rows: Count


@register
@dataclass(frozen=True, slots=True)
class Defer(LoopNote):
    """A loop over tiles computes what follows a tile's products between the products of the next tile.

    Args:
        lanes: elements of a vector of the tile.

    Written by `plans/matmul/contraction.py`, read and removed by `transform/loops/defer.py`.
    """

    lanes: Count


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function has one contraction over packed weights that reduces one dimension (those with windows:
    `plans/convolution/direct.py`), followed by stages of the same dimensions."""
    if not fits_panels(structure) or len(structure.anchors[0].reduce) != 1:
        return False
    (anchor,) = structure.anchors
    after = structure.after(anchor)
    if not after:
        return True
    # The columns are a whole number of panels, of which the epilogue takes what there is.
    there, here = ([it.extent for it in st.spatial[:-1]] for st in (after[-1], anchor))
    return len(there) == len(here) and all(a is b for a, b in zip(there, here, strict=True))


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    anchor = structure.anchors[0]
    row, column = row_iter(anchor), anchor.spatial[-1]
    rows = 1 if row is None else as_int(row.extent)
    counts = (1,) if row is None else without_one(values_of(row.extent, LONG_ROWS), rows)
    longest = 1 if row is None else Analyzer().bounds(row.extent)[1]
    enclosing = [it for it in anchor.spatial if it is not column and it is not row]
    others = prod(number(it.extent) for it in enclosing)
    work = epilogue_work(structure, anchor, target)
    most = product_of(anchor, max(counts), structure.func.notes, target)
    every = None if longest is None else replace(most, rows=longest)
    # Panels whose number is unknown come one at a time: each step would ask whether the others are there.
    columns = 1 if as_int(column.extent) is None else most.columns
    scale = 1.0 if rows is not None else SYMBOL * len(counts) / sum(counts)
    results = []
    for width in widths(anchor, rows, target):
        for tile in tiles(rows, width, columns, most.depth, most.itemsize, target):
            # A symbol without an upper end has no strips: few rows would only pay for the loop around them.
            strip = 0 if every is None else strip_rows(tile, every, target, symbolic=rows is None)
            prefetch = 0 if rows is None else prefetch_distance(tile, most, target)
            sharing = sharing_rows(tile, most, strip, target, symbolic=rows is None)
            deferred = not prefetch and not sharing and can_defer(anchor, tile, work, target)
            for defer in (0, 1) if deferred else (0,):
                cost = Cost()
                for count in counts:
                    product = replace(most, rows=count)
                    after = epilogue(tile, product, work, target, defer=bool(defer))
                    each = estimate(tile, product, target, symbolic=rows is None) + after
                    cost |= each * (1 / len(counts))
                size = (("rows", tile.rows), ("panels", tile.panels), ("width", width), ("chains", tile.chains))
                for choice in switches(strip, prefetch, sharing):
                    results.append(Candidate((*size, *choice, ("defer", defer)), cost * (others * scale)))
    return sorted(results, key=lambda c: c.cycles)


def product_of(anchor: Stage, rows: int, notes: Sequence[Note], target: Target) -> Product:
    """The sizes of the product that the stage `anchor` computes for `rows` rows, by which tiles are estimated; `notes`
    are the notes of its function."""
    own = prod(number(it.extent) for it in anchor.spatial[:-1] if it in weight_iters(anchor))
    columns, depth = (as_int(it.extent) or 64 for it in (anchor.spatial[-1], anchor.reduce[0]))
    itemsize, passing = anchor.writes[0].dtype.itemsize, working_set(0.0, notes, target)
    return Product(rows, columns, depth, itemsize, own, passing)


def without_one(counts: tuple[int, ...], rows: int | None) -> tuple[int, ...]:
    """The numbers of rows at which a tile is estimated: `counts`, without 1 if the number of rows is symbolic (`rows`
    None), as one row has a separate version."""
    return counts if rows is not None else tuple(n for n in counts if n > 1) or (2,)


def switches(strip: int, following: int, sharing: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Combinations of the knobs `strip`, `ahead` (`following`) and `sharing`, for tuners to try: the values that rules
    chose, then each with one of them switched off. Estimates do not distinguish them."""
    yield ("strip", strip), ("ahead", following), ("sharing", sharing)
    if strip:
        yield ("strip", 0), ("ahead", following), ("sharing", 0)
    if following:
        yield ("strip", strip), ("ahead", 0), ("sharing", sharing)
    if sharing:
        yield ("strip", strip), ("ahead", following), ("sharing", 0)


def has_contiguous_rows(anchor: Stage) -> bool:
    """Whether a product reads its weights as unpacked rows: their last index is the result's last iterator."""
    weights = packed_operand(anchor)
    return weights is not None and weights.indices[-1] is anchor.spatial[-1].var


def widths(anchor: Stage, rows: int | None, target: Target) -> list[int]:
    """The candidate widths of panels: the one in which the weights are packed or, for unpacked rows, any whole number
    of vectors."""
    weights = packed_operand(anchor)
    assert weights is not None
    width, lanes = as_int(weights.buffer.shape[-1]), lanes_of(anchor, target)
    assert width is not None
    if not has_contiguous_rows(anchor) or width <= MAX_VECTORS * lanes:
        return [width]
    return [vectors * lanes for vectors in range(1, (2 if rows == 1 else 1) * MAX_VECTORS + 1)]


def cases(structure: Structure, target: Target) -> list[Values]:
    """The values of a product's symbolic number of rows for which the product gets separate versions: one row, a
    matrix-vector product, for which another tile is best; and two or three, where multiply-adds of a tile of one panel
    would wait for each other. [] unless the number depends on exactly one symbol."""
    anchor = structure.anchors[0]
    row = row_iter(anchor)
    symbols = () if row is None else variables(row.extent)
    if row is None or len(symbols) != 1:
        return []
    (symbol,) = symbols
    results = [1]
    if row.extent is symbol:
        results += [n for n in VERSIONED_ROWS if n >= min(symbol.likely, default=1) and gains(anchor, n, target)]
    return [{symbol: n} for n in results if (symbol.lo or 0) <= n and n % symbol.multiple == 0]


def gains(anchor: Stage, rows: int, target: Target) -> bool:
    """Whether a separate version pays for `rows` rows: a tile of several panels is estimated to be much faster than the
    tile of one panel in which the general version computes its last rows."""
    (width, *_) = widths(anchor, None, target)
    sizes = (
        as_int(anchor.spatial[-1].extent) or 64,
        as_int(anchor.reduce[0].extent) or 64,
        anchor.writes[0].dtype.itemsize,
    )
    product = Product(rows, *sizes)
    options = [t for t in tiles(rows, width, *sizes, target) if t.rows == rows]
    cycles = [estimate(t, product, target).cycles for t in (MatmulTile(rows, width), *options)]
    return cycles[0] > max(SHORT_GAIN * min(cycles), SHORT_CYCLES + min(cycles))


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    anchor = structure.anchors[0]
    prologue = structure.before(anchor)
    epilogue = structure.after(anchor)
    schedule_prologue(s, structure, prologue, target)
    others = tuple(st for st in structure.stages if st not in prologue and st not in epilogue and st is not anchor)
    inline_all(s, structure, (*others, *epilogue))
    block = s.block(anchor.name)
    out = s.block(epilogue[-1].name) if epilogue else s.cache_write(block, "local")
    tile_output(s, anchor, block, out, candidate, target)


def tile_output(
    s: Schedule, anchor: Stage, block: BlockRef, out: BlockRef, candidate: Candidate, target: Target
) -> None:
    row = row_iter(anchor)
    *others, column = anchor.spatial
    loops = dict(zip([it.var for it in anchor.spatial], s.loops(out), strict=True))
    own_weights = {loops[it.var].name for it in weight_iters(anchor) if it is not column}
    outer = [loops[it.var] for it in others if it is not row]
    # Several panels at once: (group, panel in it, lane).
    panel, *inner = s.split(loops[column.var], factors=(None, candidate.knob("panels"), candidate.knob("width")))
    strips, tiles = [], []
    if row is not None:
        *enclosing, inside = split_rows(s, loops[row.var], candidate)
        strips, tiles, inner = enclosing[:-1], enclosing[-1:], [inside, *inner]
    # A panel stays in cache for all rows of a strip and for whatever else shares it; symbolic loops come first (they
    # are not divided by).
    first = [loop for loop in outer if extent(s, loop) is None or loop.name in own_weights]
    order = [*first, *strips, panel, *(loop for loop in outer if loop not in first), *tiles]
    s.reorder(*order, *inner)
    s.compute_at(block, order[-1])
    s.set_scope(block, "local")
    tile_block(s, anchor, block, candidate, target, chains=candidate.knob("chains"))
    unroll_tile(s, out, len(inner))
    if tiles:
        if row is not None and as_int(row.extent) is None:
            tile = MatmulTile(*(candidate.knob(name) for name in ("rows", "width", "panels")))
            if (last := last_rows(tile, anchor.writes[0].dtype.itemsize, target)) > tile.rows:
                s.annotate(tiles[-1], LastTile(last))
        if candidate.knob("defer"):  # and then what a tile writes has the next one's products to arrive
            s.annotate(tiles[-1], Defer(lanes_of(anchor, target)))
        else:
            prefetch_outputs(s, anchor, out, tiles[-1], target)
    parallelize(s, order[: max(1, len(order) - len(tiles))])


def prefetch_outputs(s: Schedule, anchor: Stage, out: BlockRef, tile: LoopRef, target: Target) -> None:
    """Let a tile of rows prefetch, before its products, the lines that it writes after them, and those of a residual,
    if the data of the kernel exceed the second level. Then these lines come from beyond it, a few from each row, which
    hardware prefetchers do not follow."""
    block = s.get(out)
    assert isinstance(block, Block)
    wide = {b: None for b in block_buffers(block) if b in s.func.params and len(b.shape) > 1}
    touched = sum(nbytes_of(b, max(LONG_ROWS)) for b in s.func.params)
    if wide and level(touched, target) in SHARED_LEVELS:
        s.annotate(tile, PrefetchTile(buffer_names(wide)))


def block_buffers(block: Block) -> list[Buffer]:
    """The buffers that a block writes and reads, each once."""
    stores = [stmt for stmt in walk(block.body) if isinstance(stmt, Store)]
    reads = [load.buffer for stmt in stores for load in loads(stmt.value)]
    return list(dict.fromkeys([*(stmt.buffer for stmt in stores), *reads]))


def split_rows(s: Schedule, row: LoopRef, candidate: Candidate) -> tuple[LoopRef, ...]:
    """Split the loop over rows into (strip, tile, row in the tile), or (tile, row in the tile) if there is one
    strip."""
    rows, strip = candidate.knob("rows"), candidate.knob("strip")
    return s.split(row, factors=(None, strip // rows, rows) if strip else (None, rows))


def tile_block(
    s: Schedule, anchor: Stage, block: BlockRef, candidate: Candidate, target: Target, chains: int = 1
) -> None:
    """Schedule `block`, the sums of a register tile: the reduction outside, rows inside it, columns innermost, with
    `chains` partial sums of each element."""
    *own, reduce = s.loops(block)[-len(anchor.spatial) - 1 :]
    # Rows outside columns: a row's value is then used at once for all its columns and needs one register.
    inner = [loop for loop in own if extent(s, loop) != 1]
    if candidate.knob("panels") > 1:
        inner[-1:] = s.split(inner[-1], factor=candidate.knob("width"))
    if chains > 1:
        block, reduce, chain = in_chains(s, block, reduce, chains)
        inner = [chain, *inner]
    s.reorder(reduce, *inner)
    products = prod(extent(s, loop) or 1 for loop in inner) // lanes_of(anchor, target)
    copies = unrolled_steps(products, extent(s, reduce))
    reduce, steps = prefetch_panel(s, anchor, reduce, copies, candidate, target)
    if copies > 1:
        s.annotate(steps, Unroll(copies))
    zero = s.decompose_reduction(block, reduce)
    for stage in (block, zero):
        unroll_tile(s, stage, len(inner))


def in_chains(s: Schedule, block: BlockRef, reduce: LoopRef, chains: int) -> tuple[BlockRef, LoopRef, LoopRef]:
    """Split the sum of a reduction into `chains` sums, each of every `chains`-th step, which are added at the end.
    Returns the block of the partial sums with its loops over steps and over these sums."""
    steps, chain = s.split(reduce, factor=chains)
    part = s.rfactor(block, chain)
    s.set_scope(part, "local")
    shared = {loop.name for loop in s.loops(part)}
    *inner, after = (loop for loop in s.loops(block) if loop.name not in shared)
    s.reorder(after, *inner)
    unroll_tile(s, s.decompose_reduction(block, after), len(inner))
    unroll_tile(s, block, len(inner) + 1)
    return part, steps, chain


def prefetch_panel(
    s: Schedule, anchor: Stage, reduce: LoopRef, copies: int, candidate: Candidate, target: Target
) -> tuple[LoopRef, LoopRef]:
    """Add prefetches of the weights to the loop `reduce`, by the candidate's knobs: of the tile's own panel shortly
    before it is read (`ahead`), or of a share of the next panel (`sharing`), a few lines every `copies` steps. Returns
    the outer and inner loop of the reduction, which may be one."""
    weights, row, depth = packed_operand(anchor), row_iter(anchor), extent(s, reduce)
    rows, width, prefetch, sharing = (candidate.knob(name) for name in ("rows", "width", "ahead", "sharing"))
    if weights is None or row is None or as_int(weights.buffer.shape[-1]) != width:
        return reduce, reduce
    if prefetch:
        s.annotate(reduce, Prefetch(buffer_names([weights.buffer]), prefetch, level=1))
    if not sharing or depth is None:
        return reduce, reduce
    steps = inner = reduce
    if depth % copies == 0 and copies > 1:
        steps, inner = s.split(reduce, factor=copies)
    line = width * weights.buffer.dtype.itemsize
    strip = None if as_int(row.extent) == sharing else sharing
    # where their number is unknown, a tile may be all of them.
    part = min(rows, sharing) / sharing if as_int(row.extent) is not None else 1.0
    lines = ceil(line * (1 if steps is inner else copies) * part / target.caches.line)
    into = target.costs.prefetching.panel_level
    note = Prefetch(buffer_names([weights.buffer]), depth * line, level=into, lines=lines, rows=sharing, strip=strip)
    if strip is not None:
        product = product_of(anchor, 1, s.func.notes, target)
        fewer = shared_panel_rows(product, target)
        own = panel_distance(replace(product, rows=fewer - 1), target)
        # Into the first level they pay only from the last one.
        cached: Literal[1] | None = 1 if own and product.level(target) == "l3" else None
        note = replace(note, fewer_than=fewer, distance=own or None, prefetch_level=cached)
    s.annotate(steps, note)
    return steps, inner


PLAN = Plan("contraction", fits, candidates, apply, cases, refines=("rows",))
"""Contractions by this plan, which is chosen before the plan `rows` whatever their estimates are. For one row both are
bound by memory, and the estimates are not comparable: `rows` assumes that a single stream reads at the full bandwidth,
and this plan does not count that narrow weights need less of it."""
