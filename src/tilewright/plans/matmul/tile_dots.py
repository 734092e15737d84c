"""Matrix products in matrix registers (AMX).

x' = rows with zeros after them                                   if they do not fill whole registers
for block of rows, outer..., panel group, row tile:                a block's rows stay in the second level
    tile[rows, panels] = 0                                         matrix registers
    for k in the depth of a register:
        tile[r, p] += multiply(x'[r, k], w[p, k])                  rows and panels unrolled
        of pieces (`ops/lowered/split.py`): this for each term     terms unrolled, around rows and panels
    sums = tile                                                    in the first level of cache
    out[...] = epilogue(sums)
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int
from tilewright.ir.notes import Origin, Prefetch, find
from tilewright.ops.lowered.split import MATMUL_PIECES, TOGETHER, MatmulPiecesAttrs, count_of, passes
from tilewright.ops.lowered.split_conv import ConvPiecesAttrs
from tilewright.ops.lowered.tiles import MATMUL_TILES
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import extent, inline_all, own_loops, parallelize
from tilewright.plans.framework.cost import (
    Cost,
    fetch_cycles,
    level,
    load_cycles,
    nbytes_of,
    number,
    roofline,
    store_cycles,
    surrounding,
)
from tilewright.plans.idioms.panels import schedule_prologue
from tilewright.plans.matmul.dots import operands, tile_loops
from tilewright.schedule.dot_intrinsics import Dot, find_tile_dot
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tile_intrinsics import STORE, ZERO
from tilewright.targets.target import Target

SHAPES = ((2, 2), (1, 4), (4, 1), (1, 3), (3, 1), (1, 2), (2, 1), (1, 1))
"""(rows, panels) of the accumulators in a tile: four of eight registers, which leaves two for the operands of each
side."""

REGISTERS = 8
STORED = f32
"""The type in which sums over a block of the depth are stored; i32, for products of bytes, has the same size."""
BEYOND = ("l3", "memory")
"""The levels beyond the second one."""


def instruction(anchor: Stage, target: Target) -> Dot | None:
    """The instruction for which a product's weights are packed; None if there is none."""
    result = operands(anchor)
    if result is None:
        return None
    rows, weights = result
    dot = find_tile_dot(rows.buffer.dtype, weights.buffer.dtype, target)
    *_, steps, lanes, group = (as_int(d) or 0 for d in weights.buffer.shape)
    return dot if dot is not None and (lanes, group, steps % dot.steps) == (dot.lanes, dot.group, 0) else None


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is a product in whole matrix registers, with pointwise work before and after it."""
    if structure.operator(MATMUL_TILES) is None and structure.operator(MATMUL_PIECES) is None:
        return False
    if len(structure.anchors) != 1:
        return False
    (anchor,) = structure.anchors
    epilogue = structure.after(anchor)
    return (
        instruction(anchor, target) is not None
        and not any(st.block.is_reduction for st in structure.stages if st is not anchor)
        and (not epilogue or len(epilogue[-1].spatial) == len(anchor.spatial))
    )


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    (anchor,) = structure.anchors
    dot = instruction(anchor, target)
    assert dot is not None
    rows = as_int(anchor.spatial[-2].extent)
    panels = (as_int(anchor.spatial[-1].extent) or dot.lanes) // dot.lanes
    steps, terms = (as_int(anchor.reduce[-2].extent) or 1) // dot.steps, terms_of(anchor)
    times = 1.0
    for it in anchor.spatial[:-2]:
        times *= number(it.extent)
    tiles = number(anchor.spatial[-2].extent) / dot.rows
    rest, memory, result = surrounding(structure, anchor, target), roofline(structure, target).memory, []
    for tall, wide in SHAPES:
        if panels % wide or (rows is None and tall > 1) or (rows or 0) // dot.rows % tall:
            continue
        compute = times * tiles * panels / (tall * wide) * tile_cycles(tall, wide, steps, dot, target, terms)
        knobs = (("rows", tall * dot.rows), ("panels", wide))
        for block in blocks(anchor, tall * dot.rows, target):
            reread = reread_cycles(anchor, block, panels // wide, target)
            own = (*knobs, ("block", block)) if block else knobs
            result.append(Candidate(own, Cost(compute=compute, memory=memory + reread) + rest))
            for deep in depths(anchor, tall, wide, block or rows, dot, target):
                parts = steps * dot.steps * dot.group // deep
                each = tile_cycles(tall, wide, steps // parts, dot, target, terms)
                sums = parts * times * tiles * dot.rows * panels * dot.lanes * STORED.itemsize
                added = Cost(load=load_cycles(sums, target), store=store_cycles(sums, target))
                multiplied = Cost(compute=times * tiles * panels / (tall * wide) * parts * each, memory=memory + reread)
                result.append(Candidate((*own, ("depth", deep)), multiplied + added + rest))
    return sorted(result, key=lambda c: c.cycles)


def blocks(anchor: Stage, tile: int, target: Target) -> tuple[int, ...]:
    """Candidate numbers of rows of a block, multiples of `tile`, the rows of a tile; all groups of panels use a block
    before the next one; 0: all rows are one block. If all rows exceed the second-level cache, also the largest block
    that takes at most half of it."""
    rows, outer = as_int(anchor.spatial[-2].extent), prod(number(it.extent) for it in anchor.spatial[:-2])
    size = _operand_bytes(anchor, 0)
    if rows is None or outer != 1 or level(size, target) not in BEYOND:
        return (0,)
    fits_l2 = [n for n in range(tile, rows, tile) if rows % n == 0 and size * n // rows <= target.l2 // 2]
    return (0, *fits_l2[-1:])


def depths(anchor: Stage, tall: int, wide: int, rows: int | None, dot: Dot, target: Target) -> tuple[int, ...]:
    """Candidate depths of a block, at most one: the largest with which the first-level cache holds `wide` panels and
    two tiles of `tall` times `dot.rows` rows, while the sums of all `rows` take at most a quarter of the second level.
    () if a single tile has all rows or nothing fits."""
    steps = as_int(anchor.reduce[-2].extent) or 1
    if rows is None or rows <= tall * dot.rows:
        return ()
    count = count_of(terms_of(anchor)) if terms_of(anchor) > 1 else 1
    across = (wide * dot.lanes * dot.b.itemsize + 2 * tall * dot.rows * dot.a.itemsize) * count
    fitting = [
        n * dot.group
        for n in range(dot.steps, steps, dot.steps)
        if steps % n == 0
        and across * n * dot.group <= target.caches.l1
        and steps // n * rows * wide * dot.lanes * STORED.itemsize <= target.l2 // 4
    ]
    return tuple(fitting[-1:])


def reread_cycles(anchor: Stage, block: int, groups: int, target: Target) -> float:
    """Cycles of reading operands again from beyond the second level: all rows for each of the `groups` of panels after
    the first or, with blocks of `block` rows, all panels for each block after the first."""
    rows, panels = _operand_bytes(anchor, 0), _operand_bytes(anchor, 1)
    if block:
        count = (as_int(anchor.spatial[-2].extent) or block) // block
        return (count - 1) * fetch_cycles(panels, panels, target) if level(panels, target) in BEYOND else 0.0
    return (groups - 1) * fetch_cycles(rows, rows, target) if level(rows, target) in BEYOND else 0.0


def _operand_bytes(anchor: Stage, which: int) -> int:
    """The bytes of the rows (`which` 0) or the panels (1) that the product `anchor` reads."""
    result = operands(anchor)
    assert result is not None
    return nbytes_of(result[which].buffer)


def terms_of(anchor: Stage) -> int:
    """The number of products of pieces that make a product; 1 for products of unsplit numbers."""
    has_terms = find(anchor.block.notes, Origin)
    attrs = None if has_terms is None else has_terms.attrs
    return attrs.terms if isinstance(attrs, MatmulPiecesAttrs | ConvPiecesAttrs) else 1


def tile_cycles(tall: int, wide: int, steps: int, dot: Dot, target: Target, terms: int = 1) -> float:
    """Estimated cycles of a tile of `tall` x `wide` matrix registers over `steps` registers of the depth: the larger of
    the times of products and of loads, which overlap. With `terms`, several products of pieces replace one; the pieces
    of one factor then stay in registers between products."""
    count = len(passes(terms)) if terms > 1 else 1
    loads = count * loading(tall, wide, 1, dot, target)
    loads += (terms - count) * max(tall, wide) * dot.rows / target.costs.arithmetic.loads_per_cycle
    step = max(terms * tall * wide * dot.cost / target.fma_per_cycle, loads)
    return (steps + 1) * step + target.costs.arithmetic.tile_overhead


def loading(tall: int, wide: int, steps: int, dot: Dot, target: Target) -> float:
    """The cycles of the loads of `steps` steps of a tile of `tall` x `wide` matrix registers."""
    together = tall + wide if tall * wide + wide < REGISTERS else tall * (1 + wide)
    return steps * together * dot.rows / target.costs.arithmetic.loads_per_cycle


@lru_cache(maxsize=4096)
def product_cycles(rows: int, depth: int, columns: int, tile: Dot, target: Target) -> float:
    """Estimated cycles of a `rows` x `depth` x `columns` product in a kernel of its own."""
    costs = target.costs.matrices
    return costs.configured + registers_cycles(rows, depth, columns, tile, target, costs.stored_product_sums)


def registers_cycles(
    rows: int, depth: int, columns: int, tile: Dot, target: Target, sums: float, terms: int = 1
) -> float:
    """Estimated cycles of a `rows` x `depth` x `columns` product in whole matrix registers, including the copy of rows
    that do not fill them. `sums`: the cycles of the epilogue for each vector of sums. `terms`: the number of products
    of pieces that replace one of f32 (1, 3 or 6)."""
    tiles, panels, steps = -(-rows // tile.rows), -(-columns // tile.lanes), -(-depth // tile.depth)
    shapes = [(tall, wide) for tall, wide in SHAPES if tiles % tall == 0 and panels % wide == 0]
    counts = [
        tiles * panels / (tall * wide) * tile_cycles(tall, wide, steps, tile, target, terms) for tall, wide in shapes
    ]
    copied = tiles * tile.rows * steps if rows % tile.rows or depth % tile.depth else 0
    return min(counts) + sums * tiles * tile.rows * panels + target.costs.matrices.copied_vector * copied


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    (anchor,) = structure.anchors
    dot = instruction(anchor, target)
    assert dot is not None
    prologue, epilogue = structure.before(anchor), structure.after(anchor)
    others = tuple(st for st in structure.stages if st not in (*prologue, *epilogue, anchor))
    inline_all(s, structure, (*others, *epilogue))
    block = s.block(anchor.name)
    out = s.block(epilogue[-1].name) if epilogue else s.cache_write(block, "local")
    order, inner, shared = tile_loops(s, anchor, out, candidate, dot)
    if rows := dict(candidate.knobs).get("block"):
        outer, tile = s.split(order.pop(), factor=rows // candidate.knob("rows"))
        s.reorder(outer, *order)
        order, shared = [outer, *order, tile], shared + 1
    stored, place = None, order[-1]
    if deep := dict(candidate.knobs).get("depth"):
        block, stored, place = _depth_blocks(s, block, order, deep // dot.group, candidate.knob("rows"), dot)
    multiply_tiles(s, anchor, block, place, dot, terms=terms_of(anchor), stored=stored)
    *_, panel, lane = s.loops(out)[-inner:]
    s.unroll(panel)
    s.vectorize(lane)
    # Of a single tile nothing is shared: registers are no memory of all threads.
    several = any(extent(s, loop) != 1 for loop in order)
    schedule_prologue(s, structure, prologue, target, parallel=several)
    parallelize(s, order[:shared])


def _depth_blocks(
    s: Schedule, block: BlockRef, order: list[LoopRef], steps: int, rows: int, dot: Dot
) -> tuple[BlockRef, BlockRef, LoopRef]:
    """Split the depth into blocks of `steps` steps, each of which all tiles of `rows` rows use before the next one,
    inside the loops `order`, so that panels stay in the first-level cache. Sums over each block are stored, and added
    for a tile's result. Returns (the block that multiplies, the one that stores its registers, the loop over tiles of
    rows)."""
    step = [loop for it, loop in own_loops(s, block) if it.kind == "reduce"][-2]
    outer, _ = s.split(step, factor=steps)
    part = s.rfactor(block, outer)
    stored = s.cache_write(part, "tiles")
    s.compute_at(block, order[-1])
    s.set_scope(block, "local")
    *others, row, column, which = [loop for _, loop in own_loops(s, block)]
    panel, lane = s.split(column, factor=dot.lanes)
    s.reorder(*others, row, panel, which, lane)
    for loop in (panel, which):
        s.unroll(loop)
    s.vectorize(lane)
    s.compute_at(stored, order[-2])
    s.set_scope(stored, "local")
    *others, row, column = [loop for _, loop in own_loops(s, stored)]
    tile, inner = s.split(row, factor=rows)
    s.reorder(*others, tile, inner, column)
    return part, stored, tile


def multiply_tiles(
    s: Schedule,
    anchor: Stage,
    block: BlockRef,
    place: LoopRef,
    dot: Dot,
    prefetch: Prefetch | None = None,
    *,
    terms: int = 1,
    stored: BlockRef | None = None,
) -> None:
    """Compute `block` with its sums in matrix registers, at the loop `place`, and store them to memory by the block
    `stored`, created if None. `prefetch` is added to each step of the depth. With several `terms`, a reduction over
    products of pieces is outermost: those of one pass are multiplied at each step of the depth."""
    dtype = anchor.writes[0].dtype
    by_depth = stored is not None
    if stored is None:
        stored = s.cache_write(block, "tiles")
        s.set_scope(stored, "local")
        s.compute_at(stored, place)
    s.compute_at(block, place)
    own = [loop for it, loop in own_loops(s, block) if it.kind == "spatial"]
    *windows, step, member = [loop for it, loop in own_loops(s, block) if it.kind == "reduce"]
    if by_depth and windows:
        windows, step = [step], windows[0]  # rfactor puts the iterator first whose loop it takes
    step, depth = s.split(step, factor=dot.steps)
    matrices, points = _matrices(s, own, dot)
    by_pass = s.split(windows.pop(), factor=TOGETHER[terms]) if terms > 1 else ()
    steps = [*by_pass[:1], *windows, step, *by_pass[1:]]
    s.reorder(*steps, *matrices, points[0], depth, points[1], member)
    if prefetch is not None:
        s.annotate(step, prefetch)
    zero = s.decompose_reduction(block, steps[0])
    for loop in by_pass:
        s.unroll(loop)
    _tensorize(s, matrices, points[0], dot.name)
    *matrices, row, _ = _inside(s, zero, place)
    _tensorize(s, matrices, row, ZERO[dtype].name)
    matrices, points = _matrices(s, _inside(s, stored, place), dot)
    s.reorder(*matrices, *points)
    _tensorize(s, matrices, points[0], STORE[dtype].name)


def _inside(s: Schedule, block: BlockRef, place: LoopRef) -> list[LoopRef]:
    """The loops around `block` that are inside of the loop `place`."""
    loops = list(s.loops(block))
    return loops[[loop.name for loop in loops].index(place.name) + 1 :]


def _tensorize(s: Schedule, matrices: list[LoopRef], row: LoopRef, name: str) -> None:
    for loop in matrices:
        s.unroll(loop)
    s.tensorize(row, name)


def _matrices(s: Schedule, loops: list[LoopRef], dot: Dot) -> tuple[list[LoopRef], list[LoopRef]]:
    """Split the last two of `loops`, rows and columns, into matrices. Returns (the other loops and the loops over
    matrices, the two loops inside a matrix)."""
    *others, rows, columns = loops
    row, i = s.split(rows, factor=dot.rows)
    column, j = s.split(columns, factor=dot.lanes)
    return [*others, row, column], [i, j]


PLAN = Plan("tile dots", fits, candidates, apply)
