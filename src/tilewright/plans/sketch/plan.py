"""Schedule any reduction by rules: cheap stages before it and all stages after it are inlined, and one tile of it stays
in registers.

    copies of inputs, transposed                          if vectors would be strided in them
    for outer..., panel, rows:                            parallel over what is outermost
        tile[rows, lanes] = identity                      registers
        for reduction...:
            tile[r, :] = combine(tile[r, :], f(a[r], b[:]))       rows written out, lanes in vectors
        out[...] = epilogue(tile)

Vectors along a reduced iterator have partial results instead, which are folded where a tile ends. Each step is a
primitive of `schedule/`, so that the result is a trace that can be printed and replayed.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import Expr, Op, Var, as_int
from tilewright.ir.loops import Block, Store
from tilewright.ir.notes import Unroll
from tilewright.ir.rewrite import exprs_of, variables, walk, walk_expr
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import extent, inline_all, lanes_of, parallelize, vectorize_spatial
from tilewright.plans.framework.cost import instructions, number, surrounding
from tilewright.plans.idioms.panels import unroll_tile
from tilewright.plans.idioms.tile_axes import tile_axes
from tilewright.plans.idioms.transposes import transpose_tiles
from tilewright.plans.matmul.tiles import unrolled_steps
from tilewright.plans.sketch.access import Access, accesses
from tilewright.plans.sketch.estimate import Estimator
from tilewright.plans.sketch.tiling import Tiling, packed_order, tiling_of, tilings
from tilewright.schedule.index_map import IndexMap
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.state import read_buffers
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

MAX_SKETCHES = 48
"""The largest number of sketches that are offered, by their estimates."""
KINDS = 3
"""The largest number of settings of each kind (choice of iterators and transpositions) that are offered."""
CHEAP = 2.0
"""The largest number of operations per element of a stage before the reduction that is inlined and so recomputed."""

OFTEN = 4
"""The least ratio of the reduction's points to a selected element for which all elements are selected before the
reduction."""


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function has one reduction of one value, whose results share loads, and is followed by stages of the
    same dimensions."""
    anchor = reduction(structure)
    if anchor is None or not shares(anchor):
        return False
    before, after = structure.before(anchor), structure.after(anchor)
    rest = [st for st in structure.stages if st not in before and st not in after and st is not anchor]
    if rest or any(st.role != "spatial" or structure.is_output(st) for st in before):
        return False
    if not after:
        return True
    if structure.is_output(anchor) or any(structure.is_output(st) for st in after[:-1]):
        return False
    there, here = ([it.extent for it in st.spatial] for st in (after[-1], anchor))
    return len(there) == len(here) and all(a is b for a, b in zip(there, here, strict=True))


def shares(anchor: Stage) -> bool:
    """Whether different results share loads, as in a matrix product, so that register tiles pay."""
    loads = accesses(anchor)
    return any(not a.uses(it.var) and number(it.extent) > 1 for it in anchor.spatial for a in loads if a.mentioned)


def reduction(structure: Structure) -> Stage | None:
    """The only reduction; None if there are several, or it is of several values."""
    results = [st for st in structure.stages if st.role != "spatial"]
    if len(results) != 1 or len(results[0].writes) != 1:
        return None
    stores = [s for s in walk(results[0].block.body) if isinstance(s, Store)]
    return results[0] if len(stores) == 1 else None


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    anchor = reduction(structure)
    assert anchor is not None
    loads, lanes = accesses(anchor), lanes_of(anchor, target)
    other = surrounding(structure, anchor, target)
    evaluate = Estimator(anchor, loads, lanes, target)
    results = [(t, evaluate.estimate(t) + other) for t in tilings(anchor, loads, lanes, target)]
    results.sort(key=lambda pair: pair[1].cycles)
    kinds: dict[object, int] = {}
    retained = []
    for tiling, cost in results:
        kind = (tiling.lane, tuple(k for k, _ in tiling.rows), tiling.packed)
        kinds[kind] = kinds.get(kind, 0) + 1
        if kinds[kind] <= KINDS:
            retained.append(Candidate(tiling.knobs, cost))
    return retained[:MAX_SKETCHES]


# the schedule


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    anchor = reduction(structure)
    assert anchor is not None
    tiling = tiling_of(candidate.knobs)
    loads = accesses(anchor)
    before, after = structure.before(anchor), structure.after(anchor)
    costly = [st for st in before if instructions(st.block) > CHEAP or chosen_often(st, anchor)]
    inline_all(s, structure, tuple(st for st in before if st not in costly))
    for stage in costly:
        vectorize_spatial(s, s.block(stage.name), target, lanes_of(stage, target))
    inline_all(s, structure, after)
    block = s.block(anchor.name)
    for k in tiling.packed:
        transpose(s, anchor, block, loads[k], tiling.lane, target)
    out = s.block(after[-1].name) if after else s.cache_write(block, "local")
    if anchor.block.iters[tiling.lane].kind == "reduce":
        tile_folded(s, anchor, block, out, tiling, target)
    else:
        tile_spatial(s, anchor, block, out, tiling, target)


def chosen_often(stage: Stage, anchor: Stage) -> bool:
    """Whether a stage before a reduction selects elements, as padding does, and each is read several times, so that
    inlined tests would take longer than the reduction."""
    values = [value for stmt in walk(stage.block.body) for value in exprs_of(stmt)]
    chooses = any(isinstance(e, Op) and e.name == "select" for value in values for e in walk_expr(value))
    size, points = (prod(number(it.extent) for it in st.block.iters) for st in (stage, anchor))
    return chooses and points >= OFTEN * size


def transpose(s: Schedule, anchor: Stage, block: BlockRef, access: Access, lane: int, target: Target) -> None:
    """Insert a transposed copy of the input that `access` reads, in which the iterator number `lane` is contiguous and
    comes after the reduced dimensions."""
    name = access.buffer.name
    if name not in {b.name for b in read_buffers(_block(s, block))}:
        return  # a stage before it was inlined
    rank = len(access.buffer.shape)
    order = packed_order(access, anchor.block.iters[lane].var, [it.var for it in anchor.reduce])
    copy = s.cache_read(block, name, "global")
    old = [Var(f"i{k}") for k in range(rank)]
    results: list[Expr] = [old[k] for k in order]
    s.transform_layout(copy, IndexMap(tuple(old), tuple(results)))
    axes = tile_axes(s, copy, target)
    if axes is not None:
        parallelize(s, transpose_tiles(s, copy, axes, target))
    else:
        vectorize_spatial(s, copy, target, lanes_of(anchor, target))


def _block(s: Schedule, ref: BlockRef) -> Block:
    entry = s.get(ref)
    assert isinstance(entry, Block)
    return entry


@dataclass(frozen=True, slots=True)
class Tiles:
    """The loops of an anchor's result after its rows have been split: `outer` are not split, `over` go over tiles,
    `inner` over the rows in a tile. `whole` says whether the tiles divide all extents."""

    outer: list[LoopRef]
    over: list[LoopRef]
    inner: list[LoopRef]
    whole: bool


def split_tile(s: Schedule, anchor: Stage, loops: dict[Var, LoopRef], tiling: Tiling) -> Tiles:
    """Split the spatial `loops`, except that of the lane, into loops over tiles and loops inside a tile, by the rows of
    `tiling`."""
    iters = anchor.block.iters
    selected = {iters[k].var for k in (tiling.lane, *(k for k, _ in tiling.rows))}
    outer = [loop for v, loop in loops.items() if v not in selected]
    tiles, inner, whole = [], [], True
    for k, count in tiling.rows:
        whole = whole and (as_int(iters[k].extent) or 1) % count == 0
        tile, row = s.split(loops[iters[k].var], factor=count)
        tiles.append(tile)
        inner.append(row)
    return Tiles(outer, tiles, inner, whole)


def tile_spatial(s: Schedule, anchor: Stage, block: BlockRef, out: BlockRef, tiling: Tiling, target: Target) -> None:
    """Schedule the reduction `block` with vectors along an iterator of its result: each tile of `out`, which stores the
    result, computes its sums in registers."""
    lane = anchor.block.iters[tiling.lane].var
    loops = dict(zip([it.var for it in anchor.spatial], s.loops(out), strict=True))
    tiles = split_tile(s, anchor, loops, tiling)
    width = tiling.vectors * lanes_of(anchor, target)
    size, own = extent(s, loops[lane]), loops[lane]
    panel: list[LoopRef] = []
    if size is None or size > width:
        chunk, own = s.split(own, factor=width)
        panel = [chunk]
    parts = [(tiles.over, tiles.whole), (panel, size is not None and size % width == 0)]
    (first, exact), (second, also) = parts if tiling.swap else reversed(parts)
    order = [*tiles.outer, *first, *second]
    s.reorder(*order, *tiles.inner, own)
    if order:
        s.compute_at(block, order[-1])
    s.set_scope(block, "local")
    tile_block(s, anchor, block, lane, len(order), tiling, target)
    unroll_tile(s, out, len(tiles.inner) + 1)
    # Loops with a last part of their own are joined with no others: it is distinguished by a single loop's end.
    sharing = tiles.outer if not exact else [*tiles.outer, *first] if not also else order
    parallelize(s, sharing or order[:1])


def tile_block(
    s: Schedule, anchor: Stage, block: BlockRef, lane: Var, outside: int, tiling: Tiling, target: Target
) -> None:
    """Schedule `block`, the sums of a register tile below `outside` loops: the reduction outside, rows inside it, the
    loop `lane` innermost."""
    own = s.loops(block)[outside:]
    by_iter = dict(zip([it.var for it in anchor.block.iters], own, strict=True))
    reduce = [by_iter[it.var] for it in anchor.reduce]
    rows = [by_iter[anchor.block.iters[k].var] for k, _ in tiling.rows]
    s.reorder(*reduce, *rows, by_iter[lane])
    products = tiling.vectors
    for _, count in tiling.rows:
        products *= count
    copies = unrolled_steps(products, extent(s, reduce[-1]))
    if copies > 1:
        s.annotate(reduce[-1], Unroll(copies))
    zero = s.decompose_reduction(block, reduce[0])
    if products * lanes_of(anchor, target) == 1:
        return  # one element has no loops
    unroll_tile(s, block, len(rows) + 1)
    # Where a vector is one element, what sets it to zero has no loop over its lanes.
    single = tiling.vectors * lanes_of(anchor, target) == 1
    unroll_tile(s, zero, min(len(rows) + 1, len(s.loops(zero)) - outside) if single else len(rows) + 1)


def tile_folded(s: Schedule, anchor: Stage, block: BlockRef, out: BlockRef, tiling: Tiling, target: Target) -> None:
    """Schedule the reduction `block` with vectors of partial results along a reduced iterator, which are folded at the
    end of each tile of `out`."""
    iters = anchor.block.iters
    results = dict(zip([it.var for it in anchor.spatial], s.loops(out), strict=True))
    tiles = split_tile(s, anchor, results, tiling)
    order = [*tiles.outer, *tiles.over]
    s.reorder(*order, *tiles.inner)
    loops = dict(zip([it.var for it in iters], s.loops(block), strict=True))
    _, lane = s.split(loops[iters[tiling.lane].var], factor=lanes_of(anchor, target))
    partial = s.rfactor(block, lane, factor_axis=-1)
    for stage in (block, partial):
        if order:
            s.compute_at(stage, order[-1])
        s.set_scope(stage, "local")
    inside = s.loops(partial)[len(order) :]
    driven = [{v.name for v in variables(it.binding)} for it in _block(s, partial).iters if it.kind == "reduce"]
    reduce = [loop for loop in inside if any(loop.name in names for names in driven)]
    inner = next(loop for loop in inside if loop.name == lane.name)
    rows = [loop for loop in inside if loop not in reduce and loop is not inner]
    s.reorder(*reduce, *rows, inner)
    zero = s.decompose_reduction(partial, reduce[0])
    unroll_tile(s, partial, len(rows) + 1)
    for stage in (zero, block):
        unroll_tile(s, stage, len(s.loops(stage)) - len(order))
    for loop in s.loops(out)[len(order) :]:
        s.unroll(loop)
    parallelize(s, tiles.outer if tiles.outer and not tiles.whole else order)


PLAN = Plan("sketch", fits, candidates, apply, refines=("rows",))
"""The plan is preferred to that of rows, whose estimate ignores that without a tile each operation loads its
operands."""
