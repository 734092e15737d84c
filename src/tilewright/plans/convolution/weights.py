"""Estimates for gradients of convolutions by their weights, which sum over pixels: in cycles of one core."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from math import prod

from tilewright.plans.framework.cost import Cost, fetch_cycles, write_cycles
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

MAX_VECTORS = 4
"""The largest number of vectors of wide channels in a register tile of weights."""
ASSUMED_IMAGES = 32
"""The number of images that is assumed for a symbolic one."""
LONGEST = 4096
"""The largest number of products that are summed in registers; longer sums are added in memory."""


@dataclass(frozen=True, slots=True)
class WeightsProblem:
    """A gradient of a convolution's weights: a sum, over `images` (None: any number) of `pixels` each, of products of
    two operands. The result has `wide` blocks of `lanes` channels of one operand x `narrow` blocks of `inner` channels
    of the other x `taps` (lines, columns). `image_bytes` counts both operands of an image."""

    images: int | None
    pixels: int
    wide: int
    narrow: int
    taps: tuple[int, int]
    inner: int
    lanes: int
    image_bytes: int

    @property
    def weights(self) -> int:
        """The number of elements of the result."""
        return self.wide * self.narrow * prod(self.taps) * self.inner * self.lanes


@dataclass(frozen=True, slots=True)
class WeightsWay:
    """The sizes of a register tile of the result: `vectors` of the wide operand's channels x `channels` of the narrow
    one x `lines` x `columns` of the window; `images` are summed before the next tile."""

    vectors: int
    channels: int
    lines: int
    columns: int
    images: int

    @property
    def knobs(self) -> tuple[tuple[str, int], ...]:
        return tuple((f.name, getattr(self, f.name)) for f in fields(self))

    @property
    def rows(self) -> int:
        """The number of accumulators for each vector of the wide operand: channels x lines x columns."""
        return self.channels * self.lines * self.columns


@lru_cache(maxsize=1024)
def ranked(problem: WeightsProblem, target: Target) -> tuple[tuple[Cost, WeightsWay], ...]:
    """The candidate tiles with their costs, the cheapest first."""
    results = [(estimate(problem, way, target), way) for way in ways(problem, target)]
    return tuple(sorted(results, key=lambda option: option[0].cycles))


def ways(problem: WeightsProblem, target: Target) -> Iterator[WeightsWay]:
    for vectors in range(1, MAX_VECTORS + 1):
        for tile in row_tiles(problem):
            if problem.wide % vectors or prod(tile) * vectors + vectors + 1 > target.registers:
                continue
            for images in chunks(problem, target):
                yield WeightsWay(vectors, *tile, images)


def row_tiles(problem: WeightsProblem) -> list[tuple[int, int, int]]:
    """The candidates for (narrow channels, lines, columns of the window) of a register tile."""
    blocks, (lines, columns), inner = problem.narrow, problem.taps, problem.inner
    if inner > 1:
        return [(d, 1, 1) for d in range(1, inner + 1) if inner % d == 0]
    whole = [(1, 1, columns), (1, lines, columns)]
    return [*dict.fromkeys(whole), *((d, lines, columns) for d in range(2, blocks + 1) if blocks % d == 0)]


def chunks(problem: WeightsProblem, target: Target) -> list[int]:
    """Candidate numbers of images to sum at once: as many as half of the second-level cache holds, half of them, or
    all; at most so many that a running sum of f32 does not lose digits."""
    images = problem.images or ASSUMED_IMAGES
    longest = max(1, LONGEST // problem.pixels)
    fitting = max(1, target.l2 // 2 // problem.image_bytes)
    return sorted({min(n, longest, images) for n in (fitting, max(1, fitting // 2), images)})


def estimate(problem: WeightsProblem, way: WeightsWay, target: Target) -> Cost:
    """The estimated cost of `problem`, for all its images, computed with the setting `way`."""
    rows, vectors, images = way.rows, way.vectors, way.images
    count = problem.images or ASSUMED_IMAGES
    tiles = problem.weights / (rows * vectors * problem.lanes)
    times, steps = -(-count // images), images * problem.pixels
    width = 4 * problem.lanes
    costs = target.costs.arithmetic
    compute = max(rows * vectors / target.fma_per_cycle, costs.fma_latency)
    # A broadcast takes a load as a vector does.
    load = (rows + vectors) * width / target.l1_bandwidth
    # A group of wide blocks is read by all tiles of narrow ones, from where a chunk of it lies.
    wide = vectors * width * steps
    moved = fetch_cycles(vectors * width + 4 * rows, wide, target)
    work = Cost(compute=compute, load=load, memory=moved) * (steps * tiles * times)
    whole = 4 * problem.weights
    # Half of a tile's overhead, as in products over pixels: there is no epilogue.
    ends = costs.tile_overhead / 2 * tiles
    retained = Cost(memory=2 * write_cycles(whole, whole, target), overhead=ends) * times
    source = problem.image_bytes * count
    first = Cost(memory=fetch_cycles(source, source, target))
    return work + retained | first
