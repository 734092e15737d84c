"""Matrix products over packed weights: one register tile of rows x width through the whole reduction.

    for outer..., panel, row tile:                      parallel over what is outermost
        tile[rows, width] = 0                           registers
        for reduction...:
            tile[r, :] += a[r] * w[panel, :]            rows unrolled, width in vectors
        out[...] = epilogue(tile)                       bias, residual, activation

Weights come in panels (`ops/packed.py`), so the innermost loop reads them as one stream.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import as_int
from tilewright.ir.rewrite import variables
from tilewright.ir.target import Target
from tilewright.plans.analysis import Stage, Structure
from tilewright.plans.base import Candidate, Plan
from tilewright.plans.common import extent, inline_all, parallelize
from tilewright.plans.cost import Cost, number
from tilewright.plans.matmul_tiles import MANY_ROWS, Product, estimate, tiles
from tilewright.plans.panels import (
    column_iters,
    fits_panels,
    panel_width,
    row_iter,
    schedule_prologue,
    unroll_tile,
    weight_iters,
)
from tilewright.plans.variants import Values
from tilewright.schedule.schedule import BlockRef, LoopRef, Schedule


def fits(structure: Structure, target: Target) -> bool:
    """One contraction over packed weights that reduces one dimension (those with windows: `plans/convolution.py`)."""
    return fits_panels(structure) and len(structure.anchors[0].reduce) == 1


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    anchor = structure.anchors[0]
    width = panel_width(anchor)
    assert width is not None
    row = row_iter(anchor)
    rows = 1 if row is None else as_int(row.extent)
    counts = MANY_ROWS if rows is None else (max(1, rows),)
    depth = as_int(anchor.reduce[0].extent) or 64
    (column,) = column_iters(anchor)
    columns = as_int(column.extent) or 4 * width
    itemsize = anchor.writes[0].dtype.itemsize
    others = prod(number(it.extent) for it in anchor.spatial if it is not column and it is not row)
    found = []
    for tile in tiles(rows, width, columns, depth, itemsize, target):
        cost = Cost()
        for count in counts:
            cost |= estimate(tile, Product(count, columns, depth, itemsize), target) * (1 / len(counts))
        knobs = (("rows", tile.rows), ("panels", tile.panels), ("width", width))
        found.append(Candidate.of(knobs, cost * others))
    return sorted(found, key=lambda c: c.cycles)


def cases(structure: Structure) -> list[Values]:
    """One row of a symbolic number is a matrix-vector product, which wants a tile of its own."""
    row = row_iter(structure.anchors[0])
    symbols = () if row is None else variables(row.extent)
    return [{symbols[0]: 1}] if len(symbols) == 1 and (symbols[0].lo or 0) <= 1 else []


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


def tile_output(s: Schedule, anchor: Stage, block: BlockRef, out: BlockRef, candidate: Candidate) -> None:
    columns = {it.var for it in column_iters(anchor)}
    row = row_iter(anchor)
    loops = dict(zip([it.var for it in anchor.spatial], s.loops(out), strict=True))
    width = candidate.knob("width")
    own_weights = {loops[it.var].name for it in weight_iters(anchor) if it.var not in columns}
    outer: list[LoopRef] = []
    inner: list[LoopRef] = []
    row_outer: list[LoopRef] = []
    (column,) = (loops[it.var] for it in anchor.spatial if it.var in columns)
    # Several panels at once: (group, panel in it, lane).
    panel, inside, vector = s.split(column, factors=(None, candidate.knob("panels"), width))
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
    # loops come first (they are not divided by).
    first = [loop for loop in outer if extent(s, loop) is None or loop.name in own_weights]
    order = [*first, panel, *(loop for loop in outer if loop not in first), *row_outer]
    s.reorder(*order, *inner, inside, vector)
    at = order[-1]
    s.compute_at(block, at)
    s.set_scope(block, "local")
    mine = s.loops(block)
    shared = len(s.loops(out)) - len(inner) - 2
    own = list(mine[shared:])
    spatial, reduce = own[: len(anchor.spatial)], own[len(anchor.spatial) :]
    # Rows outside columns: a row's value is then used at once for all its columns and needs one register.
    tile_loops = [
        loop
        for inside in (False, True)
        for it, loop in zip(anchor.spatial, spatial, strict=True)
        if (it.var in columns) is inside and extent(s, loop) != 1
    ]
    if candidate.knob("panels") > 1:
        tile_loops[-1:] = s.split(tile_loops[-1], factor=width)
    s.reorder(*reduce, *tile_loops)
    init = s.decompose_reduction(block, reduce[0])
    for stage in (block, init, out):
        unroll_tile(s, stage, len(tile_loops) if stage is not out else len(inner) + 2)
    parallelize(s, order[: max(1, len(order) - len(row_outer))])


PLAN = Plan("contraction", fits, candidates, apply, cases)
