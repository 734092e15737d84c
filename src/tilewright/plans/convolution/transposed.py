"""Transposed convolutions over packed weights: a register tile of pixels x width in every phase of the output.

for image, strip of lines:                          the input of a strip stays in the second-level cache
    for panel, phase:                               of each spatial dimension; their weights stay in cache
        for line, column tile:                      lines and columns of this phase
            tile[pixels, width] = 0                 registers
            for taps of the phase, channel block, channel:
                tile[p, :] += x[p] * w[panel, phase, :]
            out[...] = epilogue(tile)               every s-th pixel of a line; bias, residual, activation
"""

from __future__ import annotations

from math import ceil, prod

from tilewright.ir.expr import as_int
from tilewright.ops.lowered.packed_transposed import CONV_TRANSPOSED
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import extent, inline_all, lanes_of, parallelize
from tilewright.plans.framework.cost import Cost, number, roofline, surrounding
from tilewright.plans.framework.symbolic import sides_of
from tilewright.plans.framework.tiles import RegisterTile, mean_cycles
from tilewright.plans.idioms.contraction import tile_contraction, unroll_tiles
from tilewright.plans.idioms.panels import panel_width, schedule_prologue
from tilewright.schedule.recording import LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is a transposed convolution with pointwise work after it."""
    conv = structure.operator(CONV_TRANSPOSED)
    if conv is None or any(st.role == "reduction" for st in structure.stages):
        return False
    anchor = conv.stage("transposed")
    whole = structure.after(anchor)[-1].spatial
    same = structure.anchors == (anchor,) and len(whole) == len(conv.attrs.strides) + 3
    return same and panel_width(anchor) is not None


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    anchor = structure.anchors[0]
    width = panel_width(anchor)
    assert width is not None
    lanes = lanes_of(anchor, target)
    columns = positions(structure)[-1]
    counts = tuple(dict.fromkeys(sides_of(anchor.spatial[-2].extent))) if columns is None else (max(1, columns),)
    depth = prod(as_int(it.extent) or 64 for it in anchor.reduce)
    line = 4 * (max(counts) + 1) * prod(as_int(it.extent) or 64 for it in anchor.reduce[-2:])
    lines = max(1, min(target.l2 // 2 // line, (positions(structure)[0] or 64) if len(positions(structure)) > 1 else 1))
    vectors = max(1, width // lanes)
    times = prod(number(it.extent) for it in anchor.spatial) / width / target.fma_per_cycle
    times *= taps_there(structure)
    rest, result = surrounding(structure, anchor, target), []
    for count in range(1, 15):
        if count == 1 or count * vectors + vectors + 1 <= target.registers:
            cost = mean_cycles(RegisterTile(count, width), counts, width, depth, lanes, target)
            own = Cost(compute=times * cost, memory=roofline(structure, target).memory)
            result.append(Candidate((("rows", count), ("width", width), ("lines", lines)), own + rest))
    return sorted(result, key=lambda c: c.cycles)


def taps_there(structure: Structure) -> float:
    """The share of the taps, rounded up to equal phases, that the window has: with 3 taps and a stride of 2, one phase
    has two taps and the other one, which is 3 of 4."""
    conv = structure.operator(CONV_TRANSPOSED)
    assert conv is not None
    sizes = zip(conv.attrs.window, conv.attrs.strides, strict=True)
    return prod(window / (ceil(window / stride) * stride) for window, stride in sizes)


def positions(structure: Structure) -> list[int | None]:
    """How many positions a phase has in each spatial dimension of the output; None where that is symbolic."""
    anchor = structure.anchors[0]
    out = structure.after(anchor)[-1].spatial[2:-1]
    sizes = [as_int(it.extent) for it in out]
    steps = [as_int(it.extent) or 1 for it in anchor.spatial[2 : 2 + len(out)]]
    return [None if size is None else -(-size // step) for size, step in zip(sizes, steps, strict=True)]


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    anchor = structure.anchors[0]
    prologue, epilogue = structure.before(anchor), structure.after(anchor)
    schedule_prologue(s, structure, prologue, target)
    inline_all(s, structure, tuple(st for st in structure.stages if st is not anchor and st not in prologue))
    block, out = s.block(anchor.name), s.block(epilogue[-1].name)
    n, k, *places, lane = s.loops(out)
    lanes = extent(s, lane)
    assert lanes is not None
    panel, part = s.split(k, factor=candidate.knob("width") // lanes)
    lines: list[LoopRef] = []
    phases: list[LoopRef] = []
    for loop, it in zip(places, anchor.spatial[2:], strict=False):
        position, phase = s.split(loop, factor=as_int(it.extent))
        lines.append(position)
        phases.append(phase)
    tile, row = s.split(lines.pop(), factor=candidate.knob("rows"))
    strips: list[LoopRef] = []
    if lines:
        strip, lines[0] = s.split(lines[0], factor=candidate.knob("lines"))
        strips.append(strip)
    order = [n, *strips, panel, *phases, *lines, tile]
    s.reorder(*order, row, part, lane)
    init, *_ = tile_contraction(s, anchor, block, order)
    unroll_tiles(s, (block, init, out), len(order))
    parallelize(s, [n, *strips, panel])


PLAN = Plan("transposed", fits, candidates, apply)
