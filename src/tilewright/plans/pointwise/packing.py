"""Packing filters: a transposition into the first level of cache, then lines in the order that the panels want.

    for panel, channels:                                             threads
        for lane, place in tiles: rows[place, lane] = w[panel * 16 + lane, place]      through registers
        for ...: packed[panel, channels, i, j, channel, :] = rows[..., :]

Filters are read in order and panels are written in whole lines for every window; a direct transposition into panels
would scatter reads or writes. The stages are those of `ops/lowered/packed.py`, with pointwise ones before them.
"""

from __future__ import annotations

from itertools import pairwise

from tilewright.ir.expr import Load
from tilewright.ir.loops import Store
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import inline_all, parallelize, stream_outputs
from tilewright.plans.framework.cost import roofline
from tilewright.plans.idioms.tile_axes import tile_axes
from tilewright.plans.idioms.transposes import transpose_tiles
from tilewright.schedule.recording import LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

RUN = 64
"""The number of elements of a filter that are read together, if it has so many: some cache lines."""


def fits(structure: Structure, target: Target) -> bool:
    if len(structure.stages) < 2 or any(stage.role != "spatial" for stage in structure.stages):
        return False
    chained = all(structure.consumers(a) == (b,) for a, b in pairwise(structure.stages))
    return chained and _is_scattering(structure.stages[-1]) and _has_tiles(structure, target)


def _has_tiles(structure: Structure, target: Target) -> bool:
    """Whether the last stage but one is a transposition that tiles in registers support."""
    s = Schedule(structure.func)
    inline_all(s, structure, structure.stages[:-2])
    return tile_axes(s, s.block(structure.stages[-2].name), target) is not None


def _is_scattering(pack: Stage) -> bool:
    """Whether a stage copies rows of lanes to other places, without reordering the elements of a row."""
    store = pack.block.body
    if not isinstance(store, Store) or not isinstance(store.value, Load) or len(store.indices) < 4:
        return False
    return store.indices[-1] is store.value.indices[-1] and store.indices[0] is store.value.indices[0]


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    return [Candidate((), roofline(structure, target))]


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    inline_all(s, structure, structure.stages[:-2])
    rows, pack = (s.block(stage.name) for stage in structure.stages[-2:])
    panel, channels, *inner = s.loops(pack)
    shared = [panel]
    together = _channels_together(s, channels, inner)
    if together is not None:
        channels, _ = s.split(channels, factor=together)
        shared.append(channels)
    s.compute_at(rows, shared[-1])
    tile = tile_axes(s, rows, target)
    assert tile is not None
    transpose_tiles(s, rows, tile, target, lines=False)
    s.vectorize(inner[-1])
    stream_outputs(s, pack, inner[-1], target)
    parallelize(s, shared)


def _channels_together(s: Schedule, channels: LoopRef, inner: list[LoopRef]) -> int | None:
    """The number of blocks of channels, iterations of the loop `channels`, to transpose together, so that runs of `RUN`
    elements and more, along the loops `inner`, are written; None: all, as they are few."""
    run, count = 1, s.extent(channels) or 1
    for loop in inner[:-1]:
        run *= s.extent(loop) or 1
    if count * run < 2 * RUN:
        return None
    least = -(-RUN // run)
    return next((n for n in range(least, 4 * least) if count % n == 0), least)


PLAN = Plan("packing", fits, candidates, apply, refines=("elementwise",))
"""The plan is preferred to `elementwise`: both estimates are rooflines, which ignore that direct writes into panels
scatter."""
