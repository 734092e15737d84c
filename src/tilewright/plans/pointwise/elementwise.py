"""The plan of pointwise and data-moving functions: stages are inlined into the outputs, with vectors inside and threads
outside.

Transpositions have separate schedules (`plans/idioms/transposes.py`).
"""

from __future__ import annotations

from math import prod

from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import inline_all, lanes_of, parallelize, streams, vectorize_spatial
from tilewright.plans.framework.cost import Cost, number, roofline
from tilewright.plans.framework.nests import nest
from tilewright.plans.idioms.tile_axes import colliding_lines, scattered_loads, shuffle_cycles, split_stores, tile_axes
from tilewright.plans.idioms.transposes import (
    is_staged,
    panel_groups,
    panel_pieces,
    source_order,
    transpose_boxes,
    transpose_staged,
    transpose_tiles,
)
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target


def fits(structure: Structure, target: Target) -> bool:
    return all(stage.role == "spatial" for stage in structure.stages)


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    if not structure.stages:
        return [Candidate((), nest(structure.func, target))]
    return [Candidate((), roofline(structure, target) | Cost(compute=shuffles(structure, target)))]


def shuffles(structure: Structure, target: Target) -> float:
    """The cycles of moving elements in transpositions: by shuffles of tiles in registers or, if no tile fits, element
    by element."""
    if all(len(stage.spatial) < 2 for stage in structure.stages):
        return 0.0
    s = Schedule(structure.func)
    inline_all(s, structure, structure.stages)
    total = 0.0
    for stage in structure.stages:
        if not structure.is_output(stage):
            continue
        tile = tile_axes(s, s.block(stage.name), target)
        elements = prod(number(it.extent) for it in stage.spatial)
        if tile:
            total += len(tile.sources) * shuffle_cycles(elements, target, tile.lanes)
            total += colliding_lines(s, s.block(stage.name), tile, target) * target.costs.traffic.crowded_line
            total += split_stores(s, s.block(stage.name), tile, target) * target.costs.traffic.split_store
        else:
            total += scattered_loads(s, s.block(stage.name)) * elements * target.costs.arithmetic.gathered
    return total


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    inline_all(s, structure, structure.stages)
    for stage in structure.stages:
        if structure.is_output(stage):
            block = s.block(stage.name)
            tile = tile_axes(s, block, target)
            if panel_groups(s, block, target):
                continue
            strip = [] if tile else source_order(s, block)
            if tile and streams(s, block, target) and is_staged(s, block, tile):
                transpose_staged(s, block, tile, target)
            elif tile:
                parallelize(s, transpose_tiles(s, block, tile, target))
            elif strip:
                transpose_boxes(s, block, strip, target)
            elif not panel_pieces(s, block, target):
                vectorize_spatial(s, block, target, lanes_of(stage, target))


PLAN = Plan("elementwise", fits, candidates, apply)
