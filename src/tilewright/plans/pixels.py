"""Products of packed weights with plain maps: register tiles of filters x pixels, the pixels in vectors.

    for image, group:                                   parallel
        for run of pixels, panel of filters:            what a run reads stays in the first-level cache
            tile[filters, pixels] = 0                   registers
            for channel:
                tile[f, :] += w[panel, channel, f] * x[channel, pixels]
            out[...] = epilogue(tile)                   bias, residual, activation

For groups whose channels fill no blocks: nothing is converted, and lanes are wasted only at the end of a map.
"""

from __future__ import annotations

from tilewright.ir.expr import Op, as_int
from tilewright.ir.target import Target
from tilewright.plans.analysis import Structure, factors, uses
from tilewright.plans.base import Candidate, Plan
from tilewright.plans.common import extent, inline_all, lanes_of, parallelize
from tilewright.plans.tiles import FMA_LATENCY, LOADS_PER_CYCLE, TILE_OVERHEAD
from tilewright.schedule.schedule import Schedule

MAX_VECTORS = 12


def fits(structure: Structure, target: Target) -> bool:
    """One contraction over (image, group, filter, pixel) in which the weights' last dimension is a panel of filters."""
    if len(structure.anchors) != 1 or any(st.role == "reduction" for st in structure.stages):
        return False
    (anchor,) = structure.anchors
    loads = factors(anchor.block)
    after = structure.after(anchor)
    if loads is None or len(anchor.spatial) != 4 or len(anchor.reduce) != 1 or not after:
        return False
    _, group, filters, pixel = anchor.spatial
    maps = [load for load in loads if pixel in uses(load, anchor.spatial)]
    weights = [load for load in loads if filters in uses(load, anchor.spatial)]
    if len(maps) != 1 or len(weights) != 1 or maps[0] is weights[0] or as_int(pixel.extent) is None:
        return False
    in_both = all(group in uses(load, anchor.spatial) for load in loads) or as_int(group.extent) == 1
    panel = weights[0].indices[-1]
    packed = (
        panel is filters.var
        or as_int(weights[0].buffer.shape[-1]) == 1
        or (isinstance(panel, Op) and panel.name == "mod" and panel.args[0] is filters.var)
    )
    return in_both and packed and len(after[-1].spatial) == 4 and structure.before(anchor) == ()


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    anchor = structure.anchors[0]
    width = panel_of(structure)
    pixels, filters = (as_int(anchor.spatial[k].extent) or 1 for k in (3, 2))
    lanes = lanes_of(anchor, target)
    depth = as_int(anchor.reduce[0].extent) or 64
    found = []
    for vectors in range(1, MAX_VECTORS + 1):
        if registers(width, vectors) <= target.registers and (vectors - 1) * lanes < pixels:
            cost = cycles(width, vectors, pixels, lanes, depth, target) * (filters // width)
            found.append(Candidate((("filters", width), ("vectors", vectors)), cost))
    return sorted(found or [Candidate((("filters", width), ("vectors", 1)), 0.0)], key=lambda c: c.cycles)


def registers(filters: int, vectors: int) -> int:
    """Accumulators, the pixels of a step (read in place by a single filter), and one weight."""
    return filters * vectors + (vectors if filters > 1 else 0) + 1


def cycles(filters: int, vectors: int, pixels: int, lanes: int, depth: int, target: Target) -> float:
    """Estimated cycles of a panel of filters over all pixels. A last vector of few lanes is several shorter ones; what
    a run reads comes from the second level of cache when it takes more than half of the first."""
    rate = LOADS_PER_CYCLE if 8 * depth * vectors * lanes <= target.l1 else LOADS_PER_CYCLE / 2.0
    whole, rest = divmod(pixels, vectors * lanes)
    tail = rest // lanes + (rest % lanes).bit_count()
    total = 0.0
    for count, used in ((whole, vectors), (1 if rest else 0, tail)):
        step = max(filters * used / target.fma_per_cycle, (filters + used) / rate, FMA_LATENCY)
        total += count * (depth * step + filters * used + TILE_OVERHEAD / 2.0)
    return total


def tile(filters: int, pixels: int, depth: int, target: Target) -> int:
    """How many filters a panel has, for `filters` of each group: a divisor of them."""
    lanes = target.vector_bits // 32
    best = min(
        (-(-filters // width) * cycles(width, vectors, pixels, lanes, depth, target), width)
        for vectors in range(1, MAX_VECTORS + 1)
        for width in range(1, filters + 1)
        if filters % width == 0 and registers(width, vectors) <= target.registers
    )
    return best[1]


def panel_of(structure: Structure) -> int:
    """The width of the weights' panels."""
    anchor = structure.anchors[0]
    loads = factors(anchor.block)
    assert loads is not None
    (weights,) = (load for load in loads if anchor.spatial[2] in uses(load, anchor.spatial))
    return as_int(weights.buffer.shape[-1]) or 1


def filters_of(structure: Structure) -> int:
    """Filters of a group, as the output has them."""
    anchor = structure.anchors[0]
    out = structure.after(anchor)[-1]
    return (as_int(out.spatial[1].extent) or 1) // (as_int(anchor.spatial[1].extent) or 1)


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    anchor = structure.anchors[0]
    after = structure.after(anchor)
    inline_all(s, structure, tuple(st for st in structure.stages if st is not anchor))
    block, out = s.block(anchor.name), s.block(after[-1].name)
    n, k, h, v = s.loops(out)
    filters = filters_of(structure)
    group, f = s.split(k, factor=filters)
    panel, f = s.split(f, factor=candidate.knob("filters"))
    pixel = s.fuse(h, v)
    run, lane = s.split(pixel, factor=min(candidate.knob("vectors") * lanes_of(anchor, target), extent(s, pixel) or 1))
    s.reorder(n, group, run, panel, f, lane)
    s.compute_at(block, panel)
    s.set_scope(block, "local")
    own = s.loops(block)[4:]
    _, _, own_f, own_lane, channel = own
    s.reorder(channel, own_f, own_lane)
    init = s.decompose_reduction(block, channel)
    for stage in (block, init, out):
        *_, around, vector = s.loops(stage)
        if around not in (panel, channel):
            s.unroll(around)
        if extent(s, lane) != 1:
            s.vectorize(vector)
    parallelize(s, [n, group])


PLAN = Plan("pixels", fits, candidates, apply)
