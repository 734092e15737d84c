"""Register tiles of contractions: how many rows by how many columns stay in registers, by an analytic estimate.

A step of the reduction costs the tile's multiply-adds, its loads, or the latency of one multiply-add, whichever is
longest; a tile costs its steps, an epilogue, and a little for the loop around it. Rows and columns that are no multiple
of the tile leave a smaller last tile (rows) or wasted lanes (columns). Estimates assume one full-width multiply-add per
cycle on every core; only ratios matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import gcd

from tilewright.ir.expr import Expr, as_int
from tilewright.plans.framework.cost import SYMBOL
from tilewright.plans.framework.decision_key import Key
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """`rows` x `width` accumulators; `width` is also the width of the packed weight panels."""

    rows: int
    width: int


def conv_tile(key: Callable[[], Key], out: Sequence[Expr], channels: int, target: Target) -> RegisterTile:
    """The tile for a blocked convolution with the output shape `out`: its rows are output columns of one line, its
    width covers the output `channels`. `key` identifies the decision."""
    width = as_int(out[3])
    counts = (max(1, width),) if width is not None else (14, 28, 56)
    ranked = _ranked(counts, channels, 256, target, 14, 14)
    lines = sum(as_int(d) or SYMBOL for d in out[2:3]) * (as_int(out[0]) or SYMBOL)
    return decide(
        key, ranked, lambda r: Setting("panels", (("width", r[1].width),)), lambda r: r[0] * lines * (width or SYMBOL)
    )[1]


def whole_step(rows: int, vectors: int) -> int:
    """The vector registers of a tile if a step's operands are all read before its first product: accumulators,
    operands, and one product."""
    return rows * vectors + rows + vectors + 1


def row_limit(stride: int, target: Target) -> int:
    """How many rows, `stride` bytes apart, can be in the first-level cache at the same time, with room for the panel.

    Rows whose distance is a multiple of the size of a cache way all fall into the same sets.
    """
    ways = target.caches.l1_ways
    way = target.l1 // ways
    distinct = way // gcd(stride, way) if stride else 1
    return (ways - 2) * distinct


@lru_cache(maxsize=4096)
def _ranked(
    counts: tuple[int, ...], columns: int, depth: int, target: Target, most: int, limit: int
) -> tuple[tuple[float, RegisterTile], ...]:
    """For each width of panels the tile that takes the fewest cycles for products with `columns` columns that sum over
    `depth` elements, as (cycles per row summed over `counts`, tile), the fastest first. Tiles have at most `most` rows,
    by the register file, and at most `limit`, by the cache."""
    lanes = target.lanes(4)
    candidates = [
        RegisterTile(rows, vectors * lanes)
        for vectors in range(1, 5)
        for rows in range(1, min(most, limit) + 1)
        if (whole_step(rows, vectors) if target.isa.reads_first else rows * vectors + vectors + 1) <= target.registers
        and (vectors - 1) * lanes < columns
    ]
    scores = [(sum(cycles(t, m, columns, depth, lanes, target) / m for m in counts), t) for t in candidates]
    best: dict[int, tuple[float, RegisterTile]] = {}
    for score, tile in sorted(scores, key=lambda s: (s[0], -s[1].width)):
        best.setdefault(tile.width, (score, tile))
    return tuple(best.values())


def cycles(tile: RegisterTile, rows: int, columns: int, depth: int, lanes: int, target: Target) -> float:
    """Estimated cycles of a rows x columns x depth product done with `tile` on vectors of `lanes` elements."""
    vectors = tile.width // lanes
    whole, rest = divmod(rows, tile.rows)
    panels = -(-columns // tile.width)
    last = _tile_cycles(rest, vectors, depth, target) if rest else 0.0
    return panels * (whole * _tile_cycles(tile.rows, vectors, depth, target) + last)


def mean_cycles(
    tile: RegisterTile, counts: Sequence[int], columns: int, depth: int, lanes: int, target: Target
) -> float:
    """The estimated cycles per row of products of `columns` columns that sum over `depth` elements, computed with
    `tile` on vectors of `lanes` elements, averaged over the numbers of rows in `counts`."""
    return sum(cycles(tile, rows, columns, depth, lanes, target) / rows for rows in counts) / len(counts)


def _tile_cycles(rows: int, vectors: int, depth: int, target: Target) -> float:
    costs = target.costs.arithmetic
    step = max(rows * vectors, (rows + vectors) / costs.loads_per_cycle, costs.fma_latency)
    return depth * step + 2.0 * rows * vectors + costs.tile_overhead
