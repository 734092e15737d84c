"""Convolutions by instructions that multiply two pixels by two filters (`ops/lowered/mmla_conv.py`), in the tiles that
products have (`plans/matmul/mmla.py`).

    pairs = the padded input, in blocks of a group of channels     once, before
    for image, strip of lines, group of panels, line, tile of its pixels:
        tile[couples, panels, 2, 2] = 0                            registers
        for channel block, kh, kw:
            tile[c, p] += multiply(pairs[c], w[p])                 couples and panels unrolled
        rows[2 * couples, 2 * panels] = tile                       registers, in the order of pixels
        out[...] = epilogue(rows)
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from tilewright.ir.expr import as_int
from tilewright.ops.lowered.mmla import SIDE
from tilewright.ops.lowered.mmla_conv import CONV_MMLA, ConvMmlaAttrs
from tilewright.plans.convolution.direct import finish, in_blocks
from tilewright.plans.convolution.dots import strips
from tilewright.plans.convolution.tiles import side
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.cost import Cost, number, outside, roofline, sharing
from tilewright.plans.idioms.conversions import contiguous_output
from tilewright.plans.matmul.mmla import MAX_SIDE, MAX_WASTE, instruction, product_tiles, square_tile, tile_cycles
from tilewright.schedule.dot_intrinsics import Dot
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is a convolution by an instruction for two pixels and two filters, with pointwise work after
    it at most."""
    conv = structure.operator(CONV_MMLA)
    if conv is None or len(structure.anchors) != 1:
        return False
    (anchor,), ordered = structure.anchors, conv.stage("conv")
    epilogue, _ = contiguous_output(structure, ordered)
    return (
        instruction(anchor, target) is not None
        and not any(st.block.is_reduction for st in structure.stages if st is not anchor)
        and (not epilogue or len(epilogue[-1].spatial) >= len(ordered.spatial))
    )


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    (anchor,), conv = structure.anchors, structure.operator(CONV_MMLA)
    dot = instruction(anchor, target)
    assert dot is not None and conv is not None
    images, panels = number(anchor.spatial[0].extent), as_int(anchor.spatial[1].extent) or 1
    height, couples = (side(it.extent) for it in anchor.spatial[2:4])
    steps = prod(as_int(it.extent) or 1 for it in anchor.reduce[:-1])
    rest, memory, results = outside(structure, conv.stages, target), roofline(structure, target).memory, []
    for tall, wide in tiles(couples, panels, conv.attrs, target):
        line = _line(tall, wide, couples, steps, dot, target)
        for strip in strips(height, images, target, copied=True):
            parts = -(-height // min(strip, height))
            shares = images * parts * (1 if parts > 1 else panels // wide)
            compute = images * height * (panels // wide) * line * sharing(shares, target)
            knobs = (("rows", SIDE * tall), ("width", SIDE * wide), ("strip", strip))
            results.append(Candidate(knobs, Cost(compute=compute, memory=memory) + rest))
    return sorted(results, key=lambda c: (c.cycles, -c.knob("rows") * c.knob("width")))


def tiles(couples: int, panels: int, conv: ConvMmlaAttrs, target: Target) -> list[tuple[int, int]]:
    """(pairs of pixels, panels) of the register tiles that fit, among `couples` pairs and `panels` panels: of whole
    blocks of the result, and of one group."""
    return [
        (tall, wide)
        for tall, wide in product_tiles(couples, panels, target)
        if SIDE * wide % conv.block == 0 and panels // conv.groups % wide == 0
    ]


def panel_multiple(filters: int, block: int) -> int:
    """The multiple to which the number of panels is rounded up, so that tiles have whole blocks of the result: six if
    that adds few panels, else four or less."""
    least, panels = -(-block // SIDE), -(-filters // SIDE)
    wide = (m for m in (MAX_SIDE, 4) if m % least == 0 and m <= panels and -panels % m <= panels * MAX_WASTE)
    return next(wide, least)


def _line(tall: int, wide: int, couples: int, steps: int, dot: Dot, target: Target) -> float:
    """Estimated cycles of one line of `couples` pairs of pixels, in register tiles of `tall` pairs by `wide` vectors,
    with `steps` steps of the reduction."""
    whole, rest = divmod(couples, tall)
    cycles = whole * tile_cycles(tall, wide, steps, dot, target)
    return cycles + (tile_cycles(rest, wide, steps, dot, target) if rest else 0.0)


@lru_cache(maxsize=4096)
def convolution_cycles(
    conv: ConvMmlaAttrs, lines: int, columns: int, window: int, panels: int, dot: Dot, target: Target
) -> float | None:
    """Estimated cycles, including the copy of the input, of a convolution to `lines` x `columns` pixels by the best
    tile, with `window` taps and `panels` panels of filters; None if no tile fits."""
    couples, blocks = -(-columns // SIDE), -(-conv.depth // dot.group)
    shapes = tiles(couples, panels, conv, target)
    if not shapes:
        return None
    own = min(panels // wide * _line(tall, wide, couples, window * blocks, dot, target) for tall, wide in shapes)
    strides = prod(conv.strides) if window > 1 else 1
    copied = lines * columns * strides * blocks * conv.groups
    return lines * own + target.costs.traffic.copied_vector * 2.0 * copied


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    (anchor,), conv = structure.anchors, structure.operator(CONV_MMLA)
    dot = instruction(anchor, target)
    assert dot is not None and conv is not None
    prologue, ordered = structure.before(anchor), conv.stage("conv")
    blocked = in_blocks(s, structure, prologue, candidate, target, result=ordered)
    square_tile(s, anchor, s.block(anchor.name), blocked.block, blocked.tiles[-1], dot)
    finish(s, blocked, prologue, target)


PLAN = Plan("mmla convolution", fits, candidates, apply)
