"""Schedule a contraction with its sums in registers, inside the loops of its result: rows by vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.plans.framework.analysis import Stage
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule


def tile_contraction(
    s: Schedule, anchor: Stage, block: BlockRef, order: Sequence[LoopRef]
) -> tuple[BlockRef, Sequence[LoopRef], tuple[LoopRef, LoopRef, LoopRef]]:
    """Compute the contraction `block` in registers, inside the loops `order` of its result: the reduction outside, a
    tile of (row, panels, lane) inside. Returns (the block that sets the sums to zero, the loops of the reduction, the
    loops of the tile)."""
    s.compute_at(block, order[-1])
    s.set_scope(block, "local")
    own = s.loops(block)[len(order) :]
    spatial, reduce = own[: len(anchor.spatial)], own[len(anchor.spatial) :]
    _, part, *_, row, lane = spatial
    s.reorder(*reduce, row, part, lane)
    return s.decompose_reduction(block, reduce[0]), reduce, (row, part, lane)


def unroll_tiles(s: Schedule, stages: Iterable[BlockRef], depth: int) -> None:
    """For each stage, whose innermost three loops form its register tile inside of `depth` outer loops, vectorise the
    innermost one and unroll the others."""
    for stage in stages:
        *enclosing, vector = s.loops(stage)[depth:][-3:]
        for loop in enclosing:
            s.unroll(loop)
        s.vectorize(vector)
