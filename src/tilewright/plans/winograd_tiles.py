"""Which Winograd transform a convolution takes, and how many tiles go through its stages at once: analytic estimates.

Cycles of one core, stage by stage, for a block of `rows x columns` tiles:

    input     transform of each channel vector of each tile: straight-line code, bound by its stores
    product   alpha^2 products of tiles x channels x filters in register tiles
    filters   the transformed filters stream by once a block, from the level of the memory where they stay
    tiles     the transformed tiles are read again for every panel of filters
    output    transform, epilogue and stores of each filter vector of each tile

Streams overlap with the arithmetic as far as prefetching goes (`EXPOSED` of the shorter one remains). Counting the
multiplications alone (Lavin and Gray 2016) would not see narrow layers, where the transforms weigh most, nor small maps,
where the filters do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from tilewright.ir.target import Target

PRODUCT_EFFICIENCY = 0.93
DIRECT_EFFICIENCY = 0.9
EXPOSED = 0.3
LAST_LEVEL = 0.75
"""Share of the last cache that weights may fill and still be found there at the next call."""

L2_SHARE, L3_SHARE, MEMORY_SHARE = 0.75, 0.4, 0.75
"""What a stream beside arithmetic gets of a level's bandwidth."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A convolution of stride one: `images` x (`height` x `width`) outputs, square window.

    cold: the model's weights do not fit the last cache together, so that each call reads them from memory.
    """

    images: int
    height: int
    width: int
    channels: int
    filters: int
    window: int
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """`tile` outputs a side, blocks of `rows` x `columns` tiles, panels of `width` filters; cycles for all images."""

    tile: int
    rows: int
    columns: int
    width: int
    cycles: float


def choose(shapes: tuple[Shape, ...], tiles: tuple[int, ...], target: Target) -> Choice | None:
    """The best transform for a layer that is called with any of `shapes` (they differ in images), or None if computing
    it directly is estimated to be faster."""
    options = [
        Choice(tile, rows, columns, width, _mean(shapes, tile, rows, columns, width, target))
        for tile in tiles
        for width in _widths(shapes[0], target)
        for rows, columns in blocks(shapes[0], tile, max(s.images for s in shapes))
    ]
    if not options:
        return None
    best = min(options, key=lambda c: c.cycles)
    return best if best.cycles < sum(direct(s, target) / s.images for s in shapes) / len(shapes) else None


def _mean(shapes: tuple[Shape, ...], tile: int, rows: int, columns: int, width: int, target: Target) -> float:
    return sum(cycles(s, tile, rows, columns, width, target) / s.images for s in shapes) / len(shapes)


def _widths(shape: Shape, target: Target) -> tuple[int, ...]:
    lanes = target.lanes(4)
    return (lanes, 2 * lanes) if shape.filters <= lanes else (2 * lanes,)


def blocks(shape: Shape, tile: int, images: int) -> Iterator[tuple[int, int]]:
    """Blocks of tiles: whole tile rows of one or several images, or equal parts of a row that is long."""
    down, across = -(-shape.height // tile), -(-shape.width // tile)
    for parts in range(1, across + 1):
        columns = -(-across // parts)
        if columns < 8 and parts > 1:
            return
        for rows in range(1, max(1, 64 // columns) + 1):
            if rows <= down * images:
                yield rows, columns


def cycles(shape: Shape, tile: int, rows: int, columns: int, width: int, target: Target) -> float:
    """Estimated cycles of all images."""
    lanes, size = target.lanes(4), tile + shape.window - 1
    channel_vectors, filter_vectors = -(-shape.channels // lanes), -(-shape.filters // width) * (width // lanes)
    depth, filters = channel_vectors * lanes, filter_vectors * lanes
    count = rows * columns
    down, across = ceil(shape.height / tile), ceil(shape.width / tile)
    row_blocks, column_blocks = ceil(shape.images * down / rows), ceil(across / columns)
    product = size * size * depth * filter_vectors / (width // lanes) * _tile_steps(count, width // lanes, target)
    product /= PRODUCT_EFFICIENCY
    weights = 4.0 * size * size * depth * filters
    moved = 4.0 * size * size * depth * count
    stream = weights / _bandwidth(weights, target, shape.cold)
    if moved > target.l1:
        stream += moved * (filters // width) / _bandwidth(2 * moved, target)
    inward = count * channel_vectors * (size * size + 2.0 * size * tile) * 1.2
    outward = count * filter_vectors * (size * size + size * tile + 3.0 * tile * tile) * 1.2
    block = max(product, stream) + EXPOSED * min(product, stream) + inward + outward
    return row_blocks * column_blocks * block


def direct(shape: Shape, target: Target) -> float:
    """Estimated cycles of the same convolution computed directly."""
    lanes = target.lanes(4)
    vectors = -(-shape.filters // lanes)
    products = shape.images * shape.height * shape.width * shape.window**2 * shape.channels * vectors
    weights = 4.0 * shape.window**2 * shape.channels * vectors * lanes
    return max(products / target.fma_per_cycle / DIRECT_EFFICIENCY, weights / _bandwidth(weights, target, shape.cold))


@lru_cache(maxsize=4096)
def _tile_steps(count: int, vectors: int, target: Target) -> float:
    """Cycles of one step of the reduction for `count` tiles in the best register tile."""
    return min(row_steps(count, rows, vectors, target) for rows in range(1, most_rows(vectors, target) + 1))


def row_steps(count: int, rows: int, vectors: int, target: Target) -> float:
    """The same with `rows` tiles in registers; the last register tile may have fewer."""
    whole, rest = divmod(count, rows)
    return whole * _step(rows, vectors, target) + (_step(rest, vectors, target) if rest else 0.0)


def most_rows(vectors: int, target: Target) -> int:
    """Rows of a register tile: accumulators, one panel row and one broadcast value fill the register file."""
    return max(1, (target.registers - vectors - 1) // vectors)


def _step(rows: int, vectors: int, target: Target) -> float:
    ports = target.fma_per_cycle
    return max(rows * vectors / ports, (rows + vectors) / 2.0, 4.0) + 0.05 * (rows + vectors)


def _bandwidth(size: float, target: Target, cold: bool = False) -> float:
    if size <= 0.6 * target.l2 and not cold:
        return L2_SHARE * target.l2_bandwidth
    if size <= LAST_LEVEL * target.l3 and not cold:
        return L3_SHARE * target.l3_bandwidth
    return MEMORY_SHARE * target.memory_bandwidth
