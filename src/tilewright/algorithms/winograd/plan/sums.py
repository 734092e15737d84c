"""Gradients of convolutions by their weights by Winograd's transforms: analytic estimates, in cycles of one core.

    data, gradient   transforms of both operands, for each group of blocks of filters and channels anew
    product          register tiles of channels x filters, summed over the tiles of a chunk and added in memory
    sums             read and written for each chunk, element by element, from where a group and a chunk stay
    weight           the transform back, once

The length of a sum is the number of tiles, not of channels, so that narrow layers have long sums too; and since the
sums of a group stay in cache, small maps need not stream weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from math import ceil

from tilewright.plans.convolution.tiles import tile_steps
from tilewright.plans.convolution.weights import MAX_VECTORS
from tilewright.plans.framework.cost import (
    Cost,
    bandwidth,
    fetch_cycles,
    level,
    load_cycles,
    sharing,
    store_cycles,
    write_cycles,
)
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

MAX_TILES = 128
"""The approximate number of tiles in a chunk: sums of so many products stay in registers."""

FEWEST_TILES = 16
"""The least number of tiles in a chunk, if the map has that many: with fewer, accumulating in memory costs as much as
the products."""


@dataclass(frozen=True, slots=True)
class SumsProblem:
    """A gradient by the weights of a convolution with strides of one: `images` maps of `height` x `width` outputs, the
    blocks of channels and of filters, and the side of the window."""

    images: int
    height: int
    width: int
    channels: int
    filters: int
    window: int


@dataclass(frozen=True, slots=True)
class SumsWay:
    """A setting for sums over tiles: the tile rows of a chunk, the blocks of filters and of channels in a group, and
    the register tile, `vectors` blocks of filters by `rows` channels."""

    tilerows: int
    filters: int
    channels: int
    vectors: int
    rows: int

    @property
    def knobs(self) -> tuple[tuple[str, int], ...]:
        return tuple((f.name, getattr(self, f.name)) for f in fields(self))


@lru_cache(maxsize=1024)
def ranked(problem: SumsProblem, tile: int, target: Target) -> tuple[tuple[Cost, SumsWay], ...]:
    """(cost, setting) of each setting for sums over tiles of `tile` pixels per side, the cheapest first."""
    results = [(cost(problem, tile, way, target), way) for way in ways(problem, tile, target)]
    return tuple(sorted(results, key=lambda option: option[0].cycles))


def ways(problem: SumsProblem, tile: int, target: Target) -> Iterator[SumsWay]:
    """All settings for sums over tiles: chunks are whole rows of tiles, groups divide the blocks of filters and
    channels, and register tiles divide groups and blocks."""
    down, across, lanes = ceil(problem.height / tile), ceil(problem.width / tile), target.lanes(4)
    lines = problem.images * down
    most, fewest = (max(1, n // across) for n in (MAX_TILES, FEWEST_TILES))
    counts = sorted({min(lines, n) for n in range(fewest, most + 1) if lines % n == 0 or n in (fewest, most)})
    for filters in divisors(problem.filters):
        for channels in divisors(problem.channels):
            for vectors in (v for v in divisors(filters) if v <= MAX_VECTORS):
                rows = max(d for d in divisors(lanes) if d * vectors + vectors + 1 <= target.registers)
                for tilerows in counts:
                    yield SumsWay(tilerows, filters, channels, vectors, rows)


def lengths(problem: SumsProblem, tile: int, target: Target) -> set[tuple[int, int]]:
    """For all settings: (tiles that one chunk sums, number of chunks, whose sums are then added)."""
    down, across = ceil(problem.height / tile), ceil(problem.width / tile)
    counts = {way.tilerows for way in ways(problem, tile, target)}
    return {(rows * across, ceil(problem.images * down / rows)) for rows in counts}


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def cost(problem: SumsProblem, tile: int, way: SumsWay, target: Target) -> Cost:
    """The estimated cost of the gradient of the weights with `tile` outputs per side of a tile and the setting `way`,
    for all images."""
    lanes, window = target.lanes(4), problem.window
    size, costs = tile + window - 1, target.costs.arithmetic
    down, across = ceil(problem.height / tile), ceil(problem.width / tile)
    chunks, count = ceil(problem.images * down / way.tilerows), way.tilerows * across
    by_filters, by_channels = problem.filters // way.filters, problem.channels // way.channels
    groups = by_filters * by_channels
    line = 4.0 * lanes
    # One element of a tile: operands of the chunk, and sums.
    data, gradient = line * count * way.channels, line * count * way.filters
    sums = line * lanes * way.channels * way.filters
    tiles = way.filters // way.vectors * way.channels * (lanes // way.rows)
    stored = way.rows * way.vectors * line
    ends = load_cycles(stored, target) + store_cycles(stored, target) + costs.tile_overhead / 2
    product = tiles * (count * tile_steps(way.rows, way.vectors, target) + ends)
    retained = size * size * (data + gradient + sums)
    cached = max(retained, target.l2 / 2)
    repeated = way.filters // way.vectors if data + gradient > target.costs.traffic.resident_l1 * target.l1 else 1
    read = repeated * data + gradient + (sums if chunks > 1 else 0.0)
    passing = fetch_cycles(read, cached, target) + write_cycles(sums, cached, target)
    # Sums that do not stay in the second level wait for its lines to be written back.
    deferred = sums / bandwidth(cached, target) if level(cached, target) != "l2" else 0.0
    each = Cost(compute=product, memory=passing, overhead=deferred) * (size * size)
    value = costs.transformed_value + costs.transformed_store * store_cycles(line, target)
    of_data = way.channels * (size * size + size * tile + size * tile)
    of_gradient = way.filters * (size * size + size * tile + tile * tile)
    forth = Cost(compute=costs.transformed_inward * value * count * (of_data + of_gradient))
    total = (each + forth) * (chunks * groups)
    pixels = 4.0 * problem.images * problem.height * problem.width * lanes
    sources = pixels * (by_filters * problem.channels + by_channels * problem.filters)
    source = pixels * (problem.channels + problem.filters)
    first = Cost(memory=sources / bandwidth(max(source, target.l2), target))
    whole = problem.filters * problem.channels * lanes
    back = Cost(compute=value * whole * (size * size + size * window + window * window))
    result = Cost(memory=2 * line * whole * window * window / bandwidth(target.l2, target))
    return (total + back + first + result) * sharing(groups, target)
