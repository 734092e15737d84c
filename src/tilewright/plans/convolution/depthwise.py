"""Depthwise convolution over blocked channels: a register tile of output columns, the window unrolled around it.

    for image, block of channels:                       parallel
        for line, column tile:                          split where the window leaves the image
            tile[columns] = 0                           registers, one vector of channels each
            for kh, kw:                                 unrolled; the weights of a block stay in registers or in L1
                tile[v] += x[line + kh, v + kw] * w[kh, kw]
            out[...] = epilogue(tile)                   bias, residual, activation

Padding is a condition on the input's indices. Loops are split where it holds (`transform/loops/partition.py`), so that
padded data are never stored and nothing is tested inside the image.
"""

from __future__ import annotations

from math import ceil, prod

from tilewright.ir.expr import as_int
from tilewright.plans.convolution.inside import share_inside
from tilewright.plans.framework.analysis import Stage, Structure, factors, uses
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import extent, inline_all, lanes_of, parallelize
from tilewright.plans.framework.cost import Cost, number, roofline, surrounding
from tilewright.plans.rows.estimate import scattered
from tilewright.plans.rows.stages import loads_of
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

MAX_TAPS = 9
"""The largest number of multiply-adds of one output vector that are unrolled; a longer window keeps a loop over its
lines."""

MAX_COLUMNS = 8

FMAS = 2.0
"""Multiply-adds per cycle of the core that estimates assume; other cores differ by their ratio."""

MAX_TILES = 3
"""The largest number of column tiles of a line that are unrolled, so that each knows where it leaves the image; of
more, only the first and the last do."""


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function has one contraction, in which both operands and the result have the lanes of one vector of
    channels (or several) as last dimension."""
    if len(structure.anchors) != 1 or any(st.role == "reduction" for st in structure.stages):
        return False
    (anchor,) = structure.anchors
    loads = factors(anchor.block)
    if loads is None or len(anchor.spatial) < 3 or len(anchor.reduce) < 2:
        return False
    lane = anchor.spatial[-1]
    if as_int(lane.extent) in (None, 1) or any(lane not in uses(load, anchor.spatial) for load in loads):
        return False
    epilogue = structure.after(anchor)
    if any(as_int(it.extent) is None for it in anchor.reduce):
        return False
    return not epilogue or len(epilogue[-1].spatial) == len(anchor.spatial)


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    anchor = structure.anchors[0]
    width = as_int(anchor.spatial[-2].extent)
    lines = prod(number(it.extent) for it in anchor.spatial[:-2])
    lines *= ceil(number(anchor.spatial[-1].extent) / lanes_of(anchor, target)) * number(anchor.spatial[-2].extent)
    inside = lines * share_inside(anchor)
    rest, result = surrounding(structure, anchor, target), []
    # Where columns share no load, as in a layer that is connected locally, a tile of them would only read elements that
    # lie apart from more places at once.
    loads = loads_of(anchor)
    shared = any(anchor.spatial[-2] not in uses(load, anchor.spatial) for load in loads)
    separate = 0 if shared else sum(scattered(load, anchor, anchor.spatial[-1]) for load in loads)
    points = prod(number(it.extent) for it in anchor.block.iters)
    gathers = separate * points * target.costs.arithmetic.gathered
    for columns in range(1, 2 if separate else most_columns(anchor, target) + 1):
        if width is None or columns <= width:
            each = cycles(anchor, columns, width or 28, target) / (width or 28)
            compute = each * inside * FMAS / target.fma_per_cycle + gathers
            own = Cost(compute=compute, memory=roofline(structure, target).memory)
            result.append(Candidate((("columns", columns),), own + rest))
    return sorted(result, key=lambda c: c.cycles)


def most_columns(anchor: Stage, target: Target) -> int:
    """The largest number of columns in a tile. If operands are read before products start, the sums, and the inputs and
    weights of a line of the window, must fit the registers."""
    if not target.isa.reads_first:
        return MAX_COLUMNS
    taps = as_int(anchor.reduce[-1].extent) or 1
    return max(1, min(MAX_COLUMNS, target.registers // 2 - taps))


def cycles(anchor: Stage, columns: int, width: int, target: Target) -> float:
    """Estimated cycles of an output line of `width` vectors in tiles of `columns`, with `FMAS` multiply-adds a cycle:
    multiply-adds or loads, whichever take longer; weights are loaded for each tile if the registers cannot hold them.
    """
    taps = prod(as_int(it.extent) or 1 for it in anchor.reduce)
    total = 0.0
    for size in (columns,) * (width // columns) + ((width % columns,) if width % columns else ()):
        resident = taps + size + 2 <= target.registers
        loads = taps * size * 0.5 + (0 if resident else taps)
        total += max(taps * size / FMAS, loads / 2.0) + (0 if resident else taps / 4.0) + size + 4.0
    return total


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    anchor = structure.anchors[0]
    epilogue = structure.after(anchor)
    inline_all(s, structure, tuple(st for st in structure.stages if st is not anchor))
    block = s.block(anchor.name)
    out = s.block(epilogue[-1].name) if epilogue else s.cache_write(block, "local")
    *outer, column, _ = s.loops(out)
    known = extent(s, column) is not None  # of a symbol each version has its own tiles (`transform/loops/overlap.py`)
    tile, _ = s.split(column, factor=candidate.knob("columns"))
    s.compute_at(block, tile)
    s.set_scope(block, "local")
    own = s.loops(block)[len(outer) + 1 :]
    spatial, reduce = own[: len(anchor.spatial)], own[len(anchor.spatial) :]
    s.reorder(*reduce, *spatial)
    init = s.decompose_reduction(block, reduce[0])
    if known and (extent(s, tile) or MAX_TILES + 1) <= MAX_TILES:
        s.unroll(tile)
    taps = 1
    most = extent(s, reduce[-1]) or 1 if target.isa.reads_first else MAX_TAPS
    for loop in reversed(reduce):
        taps *= extent(s, loop) or 1
        if taps <= most:
            s.unroll(loop)
    for stage in (block, init, out):
        *_, enclosing, vector = (tile, *s.loops(stage)[len(outer) + 1 :])
        if enclosing is not tile:
            s.unroll(enclosing)
        s.vectorize(vector)
    parallelize(s, list(outer[:2]))


PLAN = Plan("depthwise", fits, candidates, apply)
