"""Schedule a contraction with its sums in registers, inside the loops of its result: rows by vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.plans.framework.analysis import Stage
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule


def tile_contraction(
    s: Schedule, anchor: Stage, block: BlockRef, order: Sequence[LoopRef]
) -> tuple[BlockRef, Sequence[LoopRef], tuple[LoopRef, LoopRef, LoopRef]]:
    """Compute a contraction inside the loops `order` of its result, a register tile of spatial loops (images, panel,
    ..., row, lane) in the loops of the reduction. Returns the block of the initial values, the loops of the reduction,
    and those of the tile: rows, vectors, lanes."""
    s.compute_at(block, order[-1])
    s.set_scope(block, "local")
    own = s.loops(block)[len(order) :]
    spatial, reduce = own[: len(anchor.spatial)], own[len(anchor.spatial) :]
    _, part, *_, row, lane = spatial
    s.reorder(*reduce, row, part, lane)
    return s.decompose_reduction(block, reduce[0]), reduce, (row, part, lane)


def unroll_tiles(s: Schedule, stages: Iterable[BlockRef], depth: int) -> None:
    """Unroll the loops over rows and vectors of stages inside of `depth` outer loops."""
    for stage in stages:
        *enclosing, vector = s.loops(stage)[depth:][-3:]
        for loop in enclosing:
            s.unroll(loop)
        s.vectorize(vector)
