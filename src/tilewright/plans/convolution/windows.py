"""Convolutions of any rank over packed weights without stored padding: volumes, and groups that fill blocks.

for image, panel:                                   parallel
    for depth, line, column tile:                   split where the window leaves the image
        tile[pixels, width] = 0                     registers
        for channel block, window, channel:         only what lies inside
            tile[p, :] += x[p] * w[panel, :]
        out[...] = epilogue(tile)                   bias, residual, activation
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import as_int
from tilewright.ops.lowered.packed_windows import CONV_WINDOWS
from tilewright.plans.convolution.depthwise import MAX_TAPS, MAX_TILES
from tilewright.plans.convolution.inside import share_inside
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import extent, inline_all, lanes_of, parallelize
from tilewright.plans.framework.cost import Cost, number, roofline, surrounding
from tilewright.plans.framework.tiles import RegisterTile, mean_cycles
from tilewright.plans.idioms.contraction import tile_contraction, unroll_tiles
from tilewright.plans.idioms.panels import panel_width
from tilewright.plans.matmul.tiles import starts
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is a convolution without stored padding, with nothing before it and pointwise work after
    it."""
    conv = structure.operator(CONV_WINDOWS)
    if conv is None or any(st.role == "reduction" for st in structure.stages):
        return False
    anchor = conv.stage("windows")
    after = structure.after(anchor)
    same = not after or len(after[-1].spatial) == len(anchor.spatial)
    alone = structure.anchors == (anchor,) and not structure.before(anchor)
    return same and alone and panel_width(anchor) is not None


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    anchor = structure.anchors[0]
    width = panel_width(anchor)
    assert width is not None
    columns = as_int(anchor.spatial[-2].extent)
    counts = (14, 28, 56) if columns is None else (max(1, columns),)
    depth = prod(as_int(it.extent) or 64 for it in anchor.reduce)
    lanes = min(lanes_of(anchor, target), as_int(anchor.spatial[-1].extent) or width)
    vectors = max(1, width // lanes)
    times = prod(number(it.extent) for it in anchor.spatial) / width / starts(4 * lanes, target) * share_inside(anchor)
    rest, result = surrounding(structure, anchor, target), []
    for count in range(1, 15):
        if count == 1 or count * vectors + vectors + 1 <= target.registers:
            cost = mean_cycles(RegisterTile(count, width), counts, width, depth, lanes, target)
            own = Cost(compute=times * cost, memory=roofline(structure, target).memory)
            result.append(Candidate((("rows", count), ("width", width)), own + rest))
    return sorted(result, key=lambda c: c.cycles)


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    anchor = structure.anchors[0]
    after = structure.after(anchor)
    inline_all(s, structure, tuple(st for st in structure.stages if st is not anchor))
    block = s.block(anchor.name)
    out = s.block(after[-1].name) if after else s.cache_write(block, "local")
    n, k, *lines, column, lane = s.loops(out)
    lanes = extent(s, lane)
    assert lanes is not None
    panel, part = s.split(k, factor=candidate.knob("width") // lanes)
    tile, row = s.split(column, factor=candidate.knob("rows"))
    order = [n, panel, *lines, tile]
    s.reorder(*order, row, part, lane)
    init, reduce, (own_row, own_part, own_lane) = tile_contraction(s, anchor, block, order)
    if (extent(s, tile) or MAX_TILES + 1) <= MAX_TILES:
        s.unroll(tile)
    # Unrolled, the taps along a line know which pixels of a tile at the border they have. If no channels follow them,
    # several lines of taps are one long step.
    taps = reduce[1 : len(anchor.spatial) - 2]
    s.unroll(taps[-1])
    if len(reduce) == len(taps) + 1 and (extent(s, taps[-1]) or 0) * (extent(s, taps[-2]) or 0) <= MAX_TAPS:
        s.unroll(taps[-2])
    s.unroll(own_row)
    s.unroll(own_part)
    s.vectorize(own_lane)
    unroll_tiles(s, (init, out), len(order))
    parallelize(s, [n, panel])


PLAN = Plan("windows", fits, candidates, apply)
