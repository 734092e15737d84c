"""Convolutions over packed weights and blocked channels: one register tile of pixels x width through the whole window.

    for image, panel, line, column tile:                parallel over what is outermost
        tile[pixels, width] = 0                         registers
        for channel block, kh, kw, channel:
            tile[p, :] += x[p] * w[panel, :]            pixels unrolled, width in vectors
        out[...] = epilogue(tile)                       bias, residual, activation

Weights come in panels (`ops/packed.py`), so the innermost loop reads them as one stream.
"""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.target import Target
from tilewright.plans.analysis import Stage, Structure
from tilewright.plans.base import Candidate, Plan
from tilewright.plans.common import extent, inline_all, lanes_of, parallelize
from tilewright.plans.panels import column_iters, fits_panels, panel_width, row_iter, schedule_prologue, unroll_tile
from tilewright.plans.tiles import Tile, cycles
from tilewright.schedule.schedule import BlockRef, LoopRef, Schedule


def fits(structure: Structure, target: Target) -> bool:
    """One contraction over packed weights that reduces channels and a window."""
    return fits_panels(structure) and len(structure.anchors[0].reduce) > 1


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    anchor = structure.anchors[0]
    width = panel_width(anchor)
    assert width is not None
    lanes = lanes_of(anchor, target)
    row = row_iter(anchor)
    rows = None if row is None else as_int(row.extent)
    counts = (1,) if row is None else (14, 28, 56) if rows is None else (max(1, rows),)
    vectors = max(1, width // lanes)
    depth = 1
    for it in anchor.reduce:
        depth *= as_int(it.extent) or 64
    found = []
    for count in range(1, 15):
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
    # The image comes first and its lines last, so that a panel stays in cache for all of an image's lines.
    order = [*outer[:1], panel, *outer[1:], *row_outer]
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


PLAN = Plan("convolution", fits, candidates, apply)
