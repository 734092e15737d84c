"""Matrix products and convolutions over packed weights: one register tile of rows x width through the whole reduction.

    for outer..., panel, row tile:                      parallel over what is outermost
        tile[rows, width] = 0                           registers
        for reduction...:
            tile[r, :] += a[r] * w[panel, :]            rows unrolled, width in vectors
        out[...] = epilogue(tile)                       bias, residual, activation

Matmul rows are the product's rows; a convolution's rows are output columns of one line. Weights come in panels
(`ops/packed.py`), so the innermost loop reads them as one stream.
"""

from __future__ import annotations

from tilewright.ir.expr import Const, Load, Op, as_int
from tilewright.ir.loops import BlockIter
from tilewright.ir.target import Target
from tilewright.plans.analysis import Stage, Structure, factors, uses
from tilewright.plans.base import Candidate, Plan
from tilewright.plans.common import extent, inline_all, lanes_of, parallelize, vectorize_spatial
from tilewright.plans.tiles import SYMBOLIC_ROWS, Tile, cycles, row_limit
from tilewright.schedule.schedule import BlockRef, LoopRef, Schedule


def fits(structure: Structure, target: Target) -> bool:
    """One contraction whose weights are panels: the last dimension of an operand is the panel's width."""
    if len(structure.anchors) != 1 or panel_width(structure.anchors[0]) is None:
        return False
    (anchor,) = structure.anchors
    epilogue = structure.after(anchor)
    if any(st.block.is_reduction for st in structure.stages if st is not anchor):
        return False
    return not epilogue or len(epilogue[-1].spatial) == len(anchor.spatial)


def panel_width(anchor: Stage) -> int | None:
    """The width of the weights' panels, None if the operand is not packed."""
    weights = packed_operand(anchor)
    return None if weights is None else as_int(weights.buffer.shape[-1])


def packed_operand(anchor: Stage) -> Load | None:
    """The factor indexed by no spatial iterators but the columns' (and not by rows)."""
    loads = factors(anchor.block)
    if loads is None or not anchor.spatial:
        return None
    last = anchor.spatial[-1]
    with_columns = [load for load in loads if last in uses(load, anchor.spatial)]
    if len(with_columns) != 1 or as_int(with_columns[0].buffer.shape[-1]) is None:
        return None
    (weights,) = with_columns
    match weights.indices[-1]:
        case Op("mod", (_, Const())):
            return weights
    # A single panel: the remainder was folded away.
    return weights if last.var is weights.indices[-1] else None


def weight_iters(anchor: Stage) -> tuple[BlockIter, ...]:
    """All spatial iterators that index the packed operand."""
    weights = packed_operand(anchor)
    assert weights is not None
    return uses(weights, anchor.spatial)


def column_iters(anchor: Stage) -> tuple[BlockIter, ...]:
    """The iterators that index the weights and not the other operand."""
    weights = packed_operand(anchor)
    loads = factors(anchor.block)
    assert weights is not None and loads is not None
    other = next(load for load in loads if load is not weights)
    shared = uses(other, anchor.spatial)
    return tuple(it for it in uses(weights, anchor.spatial) if it not in shared)


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    anchor = structure.anchors[0]
    width = panel_width(anchor)
    assert width is not None
    lanes = lanes_of(anchor, target)
    row = row_iter(anchor)
    rows = None if row is None else as_int(row.extent)
    counts = (1,) if row is None else SYMBOLIC_ROWS if rows is None else (max(1, rows),)
    vectors = max(1, width // lanes)
    most = 4 if row is not None and rows is None else 14
    depth = 1
    for it in anchor.reduce:
        depth *= as_int(it.extent) or 64
    if len(anchor.reduce) == 1:
        most = min(most, row_limit(depth * anchor.writes[0].dtype.itemsize, target))
    found = []
    for count in range(1, most + 1):
        if count > 1 and (row is None or count * vectors + vectors + 1 > target.registers):
            break
        cost = sum(cycles(Tile(count, width), m, width, depth, lanes) / m for m in counts) / len(counts)
        found.append(Candidate((("rows", count), ("width", width)), cost))
    return sorted(found, key=lambda c: c.cycles)


def row_iter(anchor: Stage) -> BlockIter | None:
    """The iterator whose values share the weights: the innermost one that does not index them and is not one."""
    mine = weight_iters(anchor)
    rows = [it for it in anchor.spatial if it not in mine]
    wide = [it for it in rows if as_int(it.extent) != 1]
    return (wide or rows)[-1] if rows else None


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    anchor = structure.anchors[0]
    prologue = structure.before(anchor)
    epilogue = structure.after(anchor)
    schedule_prologue(s, structure, prologue, target)
    others = tuple(st for st in structure.stages if st not in prologue and st not in epilogue and st is not anchor)
    inline_all(s, structure, (*others, *epilogue))
    block = s.block(anchor.name)
    out = s.block(epilogue[-1].name) if epilogue else s.cache_write(block, "local")
    tile_output(s, anchor, block, out, candidate)


def schedule_prologue(s: Schedule, structure: Structure, prologue: tuple[Stage, ...], target: Target) -> None:
    """Padding and pointwise work on the input is done once, before; only the last stage of it is materialised."""
    if not prologue:
        return
    inline_all(s, structure, prologue[:-1])
    last = prologue[-1]
    vectorize_spatial(s, s.block(last.name), target, lanes_of(last, target))


def tile_output(s: Schedule, anchor: Stage, block: BlockRef, out: BlockRef, candidate: Candidate) -> None:
    columns = {it.var for it in column_iters(anchor)}
    row = row_iter(anchor)
    loops = dict(zip([it.var for it in anchor.spatial], s.loops(out), strict=True))
    width = candidate.knob("width")
    own_weights = {loops[it.var].name for it in weight_iters(anchor) if it.var not in columns}
    outer: list[LoopRef] = []
    inner: list[LoopRef] = []
    row_outer: list[LoopRef] = []
    panel, vector = split_columns(s, [loops[it.var] for it in anchor.spatial if it.var in columns], width)
    for it in anchor.spatial:
        if it.var in columns:
            continue
        if row is not None and it.var is row.var:
            tile_outer, tile_inner = s.split(loops[it.var], factor=candidate.knob("rows"))
            row_outer.append(tile_outer)
            inner.append(tile_inner)
        else:
            outer.append(loops[it.var])
    # A matmul walks its panels outside whatever shares them, so that a panel stays in cache for all rows; symbolic
    # loops come first (they are not divided by). A convolution's image comes first and its lines last.
    if len(anchor.reduce) > 1:
        order = [*outer[:1], panel, *outer[1:], *row_outer]
    else:
        first = [loop for loop in outer if extent(s, loop) is None or loop.name in own_weights]
        order = [*first, panel, *(loop for loop in outer if loop not in first), *row_outer]
    s.reorder(*order, *inner, *vector)
    at = order[-1]
    s.compute_at(block, at)
    s.set_scope(block, "local")
    mine = s.loops(block)
    shared = len(s.loops(out)) - len(inner) - len(vector)
    own = list(mine[shared:])
    spatial, reduce = own[: len(anchor.spatial)], own[len(anchor.spatial) :]
    # Rows outside columns: a row's value is then used at once for all its columns and needs one register.
    tile_loops = [
        loop
        for inside in (False, True)
        for it, loop in zip(anchor.spatial, spatial, strict=True)
        if (it.var in columns) is inside and extent(s, loop) != 1
    ]
    s.reorder(*reduce, *tile_loops)
    init = s.decompose_reduction(block, reduce[0])
    for stage in (block, init, out):
        unroll_tile(s, stage, len(tile_loops) if stage is not out else len(inner) + len(vector))
    parallelize(s, order[: max(1, len(order) - len(row_outer))])


def split_columns(s: Schedule, loops: list[LoopRef], width: int) -> tuple[LoopRef, list[LoopRef]]:
    """(panel loop, loops inside the panel) from the column loops: (n,) of a matmul, (block, lane) of a convolution."""
    if len(loops) == 1:
        panel, lane = s.split(loops[0], factor=width)
        return panel, [lane]
    block, lane = loops
    lanes = extent(s, lane)
    assert lanes is not None
    panel, part = s.split(block, factor=width // lanes)
    return panel, [part, lane]


def unroll_tile(s: Schedule, block: BlockRef, count: int) -> None:
    """The innermost `count` loops: the last in vectors, the others unrolled."""
    loops = s.loops(block)[-count:] if count else []
    for loop in loops[:-1]:
        s.unroll(loop)
    if loops:
        s.vectorize(loops[-1])


PLAN = Plan("contraction", fits, candidates, apply)
