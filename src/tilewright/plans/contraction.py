"""Matrix products over packed weights: one register tile of rows x width through the whole reduction.

    for outer..., panel, row tile:                      parallel over what is outermost
        tile[rows, width] = 0                           registers
        for reduction...:
            tile[r, :] += a[r] * w[panel, :]            rows unrolled, width in vectors
        out[...] = epilogue(tile)                       bias, residual, activation

Weights come in panels (`ops/packed.py`), so the innermost loop reads them as one stream.
"""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.target import Target
from tilewright.plans.analysis import Stage, Structure
from tilewright.plans.base import Candidate, Plan
from tilewright.plans.common import extent, inline_all, lanes_of, parallelize
from tilewright.plans.panels import (
    column_iters,
    fits_panels,
    panel_width,
    row_iter,
    schedule_prologue,
    unroll_tile,
    weight_iters,
)
from tilewright.plans.tiles import SYMBOLIC_ROWS, Tile, cycles, row_limit
from tilewright.schedule.schedule import BlockRef, LoopRef, Schedule


def fits(structure: Structure, target: Target) -> bool:
    """One contraction over packed weights that reduces one dimension (those with windows: `plans/convolution.py`)."""
    return fits_panels(structure) and len(structure.anchors[0].reduce) == 1


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
    most = min(most, row_limit(depth * anchor.writes[0].dtype.itemsize, target))
    found = []
    for count in range(1, most + 1):
        if count > 1 and (row is None or count * vectors + vectors + 1 > target.registers):
            break
        cost = sum(cycles(Tile(count, width), m, width, depth, lanes) / m for m in counts) / len(counts)
        found.append(Candidate((("rows", count), ("width", width)), cost))
    return sorted(found, key=lambda c: c.cycles)


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
    panel, vector = s.split(column, factor=width)
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
    s.reorder(*order, *inner, vector)
    at = order[-1]
    s.compute_at(block, at)
    s.set_scope(block, "local")
    mine = s.loops(block)
    shared = len(s.loops(out)) - len(inner) - 1
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
        unroll_tile(s, stage, len(tile_loops) if stage is not out else len(inner) + 1)
    parallelize(s, order[: max(1, len(order) - len(row_outer))])


PLAN = Plan("contraction", fits, candidates, apply)
