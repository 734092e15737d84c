"""Convolutions by dot instructions over blocked channels: the register tile of `direct.py` with an instruction for its
innermost loops.

    for image, strip of lines:                      parallel
        x' = the strip's part of the padded input
        for panels:                                 parallel where nothing is copied strip by strip
            for line, tile of its pixels:
                tile[pixels, panels, lanes] = 0     registers
                for channel block, kh, kw, group of channels:
                    tile[p, k, :] += dot(x'[p, group], w[k, group, :])
                out[...] = epilogue(tile)           scales, bias, rounding to narrow numbers
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import as_int
from tilewright.ops.lowered.dot_conv import CONV_DOT
from tilewright.plans.convolution.direct import BODY, finish, in_blocks, unroll_steps
from tilewright.plans.convolution.tiles import ENOUGH_STRIPS, PARTS, WHOLE, side
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import extent, own_loops
from tilewright.plans.framework.cost import Cost, number, roofline, sharing, surrounding
from tilewright.plans.idioms.conversions import contiguous_output
from tilewright.plans.idioms.panels import unroll_tile
from tilewright.plans.matmul.dots import instruction, tile_cycles
from tilewright.plans.matmul.tiles import MAX_ROWS
from tilewright.schedule.dot_intrinsics import Dot
from tilewright.schedule.recording import BlockRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

MAX_PANELS = 4
"""The largest number of panels in a register tile."""


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is a convolution by a dot instruction of the target, without a reduction after it."""
    if structure.operator(CONV_DOT) is None or len(structure.anchors) != 1:
        return False
    (anchor,) = structure.anchors
    epilogue, _ = contiguous_output(structure, anchor)
    return (
        instruction(anchor, target) is not None
        and not any(st.block.is_reduction for st in structure.stages if st is not anchor)
        and (not epilogue or len(epilogue[-1].spatial) >= len(anchor.spatial))
    )


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    (anchor,) = structure.anchors
    dot = instruction(anchor, target)
    assert dot is not None
    panels = as_int(anchor.spatial[1].extent) or 1
    height, width = (side(it.extent) for it in anchor.spatial[2:4])
    copied, images = bool(structure.before(anchor)), number(anchor.spatial[0].extent)
    rest, memory = surrounding(structure, anchor, target), roofline(structure, target).memory
    results = []
    # With two LLVM moves all accumulators on by a register in every step.
    spare = 4 if target.isa.elements or target.isa.scalable else 2
    for rows in range(1, min(MAX_ROWS, width) + 1):
        for wide in range(1, min(MAX_PANELS, panels) + 1):
            if panels % wide or rows * wide + wide + spare > target.registers:
                continue  # an instruction cannot do a part of a panel
            line = _line(anchor, rows, wide, width, dot, target)
            for strip in strips(height, images, target, copied=copied):
                parts = -(-height // min(strip, height))
                shares = images * parts * (1 if copied and parts > 1 else panels // wide)
                compute = images * height * (panels // wide) * line * sharing(shares, target)
                knobs = (("rows", rows), ("width", wide * dot.lanes), ("strip", strip))
                results.append(Candidate(knobs, Cost(compute=compute, memory=memory) + rest))
    return sorted(results, key=lambda c: c.cycles)


def _line(anchor: Stage, rows: int, wide: int, width: int, dot: Dot, target: Target) -> float:
    """Estimated cycles of one output line of `width` pixels, in tiles of `rows` pixels by `wide` panels of filters."""
    steps = prod(as_int(it.extent) or 1 for it in anchor.reduce[:-1])
    whole, rest = divmod(width, rows)
    cycles = whole * tile_cycles(rows, wide, steps, dot, target)
    return cycles + (tile_cycles(rest, wide, steps, dot, target) if rest else 0.0)


def strips(height: int, images: float, target: Target, *, copied: bool) -> list[int]:
    """The numbers of lines per strip to consider for `images` images of `height` lines: all lines, or parts for threads
    to share."""
    if target.threads == 1:
        return [WHOLE]
    parts = [n for n in PARTS if n <= height and (not copied or images * n >= ENOUGH_STRIPS)]
    return [WHOLE, *dict.fromkeys(-(-height // n) for n in parts[:8])]


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    (anchor,) = structure.anchors
    dot = instruction(anchor, target)
    assert dot is not None
    prologue = structure.before(anchor)
    blocked = in_blocks(s, structure, prologue, candidate, target)
    s.compute_at(blocked.block, blocked.tiles[-1])
    _register_tile(s, anchor, blocked.block, candidate, dot, target)
    finish(s, blocked, prologue, target)


def _register_tile(s: Schedule, anchor: Stage, block: BlockRef, candidate: Candidate, dot: Dot, target: Target) -> None:
    """Schedule `block`, the sums of a tile, in registers, with one dot instruction's group of channels as innermost
    step: each group of a pixel is multiplied with all panels at once."""
    s.set_scope(block, "local")
    own = own_loops(s, block)
    _, panel, *pixels, lane = [loop for it, loop in own if it.kind == "spatial"][-len(anchor.spatial) :]
    *steps, member = [loop for it, loop in own if it.kind == "reduce"]
    rows, panels = candidate.knob("rows"), candidate.knob("width") // dot.lanes
    channel, line, column, group = steps
    together = [group]
    if (extent(s, steps[-1]) or 1) * rows * panels < BODY:
        # Steps that are unrolled together must not share what they read, for LLVM would keep all of it in registers;
        # those of neighbouring columns do, those of lines and blocks do not.
        together = [channel, line, group]
        steps = [column, *together]
    inner = (panel, pixels[-1]) if panels > rows else (pixels[-1], panel)
    s.reorder(*steps, *inner, lane, member)
    zero = s.decompose_reduction(block, steps[0])
    # A group that is broadcast by a load has a register of its own there: of more steps at once there is no room. Of
    # windows of one column LLVM loads the weights of two steps, which are neighbours, by one instruction.
    if extent(s, column) != 1 or not target.isa.elements or rows * panels + 2 * panels + 2 <= target.registers:
        unroll_steps(s, together, rows * panels * (2 if target.isa.elements else 1))
    for loop in inner:
        s.unroll(loop)
    s.tensorize(lane, dot.name)
    unroll_tile(s, zero, 3)


PLAN = Plan("dot convolution", fits, candidates, apply)
