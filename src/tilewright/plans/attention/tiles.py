"""Tiles of attention for a machine, with what they are estimated to take.

Two products alternate with a softmax over a block of scores. The register tile is two vectors wide where that costs
nothing, so that narrow heads waste few lanes, and as tall as the registers allow; the block of scores stays in a
quarter of the second-level cache, and with it the panel of keys that all its tiles share in the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from tilewright.arith import Analyzer
from tilewright.ir.expr import Expr, as_int
from tilewright.ops.lowered.attention import FEW_ROWS
from tilewright.plans.attention.rows import Tile
from tilewright.plans.framework.cost import SYMBOL, Cost, fetch_cycles, fma_cycles, load_cycles, store_cycles
from tilewright.plans.framework.symbolic import values_of
from tilewright.plans.matmul.tiles import MatmulTile, Product, estimate, unrolled_steps
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

MOST_KEYS = 1024
"""Keys up to which a row of scores is held whole; beyond that, and where nothing bounds their number, blocks of
`BLOCKS`."""

BLOCKS = (512, 256, 1024)
MOST_ROWS = 12
MOST_TILES = 32
VECTORS = (2, 3, 4, 1)
"""Widths of a register tile, the preferred one first where several are estimated to be equally fast."""
LENGTHS = (16, 48, 128, 384)
"""Rows, and keys, that a symbolic number of them is judged by."""
MOST_DIRECT = 16
"""Rows up to which keys and values may be read where they are."""
GROUP = 8
"""Rows up to which they are read there together."""
SOFTMAX = 16.0
"""Operations of a score: the mask and the scale, the comparison, the exponential, two additions."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an attention's tiles depend on: query rows and keys of a head, its depths, heads of all batch entries (a
    symbolic batch counts as `SYMBOL`), bytes of an element, lanes of the instruction that multiplies (1: none)."""

    rows: Expr
    keys: Expr
    depth: int
    out_depth: int
    heads: int
    itemsize: int
    lanes: int = 1


def tiles(sizes: Sizes, target: Target) -> Iterator[Tile]:
    """Tiles that fit the registers and the caches, the preferred ones first."""
    lanes, known = target.lanes(sizes.itemsize), as_int(sizes.rows)
    _, most = Analyzer().bounds(sizes.keys)
    few = known is not None and known <= FEW_ROWS
    direct = few or (known is not None and known <= MOST_DIRECT and sizes.lanes == 1)
    for vectors in VECTORS:
        width = vectors * lanes
        if width % sizes.lanes:
            continue
        whole = max(width, -(-most // width) * width) if most is not None else 0
        blocks = BLOCKS if most is None or most > MOST_KEYS else (whole,)
        if direct and vectors <= 2:
            yield Tile(together(known or 1), width, -(-blocks[0] // width) * width, 0, 1)
        for tall in heights(known, vectors, target) if not few else ():
            for keys in blocks:
                fitting = target.l2 // 4 // (tall * keys * sizes.itemsize)
                steps = unrolled_steps(tall * vectors, None)
                for count in dict.fromkeys(max(1, min(n, MOST_TILES)) for n in (fitting, fitting // 2, fitting // 4)):
                    yield Tile(tall, width, -(-keys // width) * width, count, steps)


def together(rows: int) -> int:
    """Rows that read a key or a value together, where those are not packed: an equal part of all."""
    return max(n for n in range(1, GROUP + 1) if rows % n == 0)


def heights(rows: int | None, vectors: int, target: Target) -> list[int]:
    """Heights of a register tile, the tallest first."""
    tallest = max(2, min(MOST_ROWS, (target.registers - vectors - 1) // vectors))
    if rows is not None:
        tallest = min(tallest, rows)
    return list(range(tallest, max(1, tallest - 3) - 1, -1))


def ranked(sizes: Sizes, target: Target) -> list[tuple[Cost, Tile]]:
    """The tiles with their estimates, the best first."""
    rows, keys = values_of(sizes.rows, LENGTHS), values_of(sizes.keys, LENGTHS)
    counts = [(rows[k % len(rows)], keys[k % len(keys)]) for k in range(max(len(rows), len(keys)))]
    scale = sizes.heads / len(counts)
    if as_int(sizes.rows) is None:
        scale *= SYMBOL * len(rows) / sum(rows)
    found = []
    for tile in tiles(sizes, target):
        total = Cost()
        for m, n in counts:
            total |= cost(tile, m, n, sizes, target)
        found.append((total * scale, tile))
    return sorted(found, key=lambda option: float(f"{option[0].cycles:.4g}"))


def cost(tile: Tile, rows: int, keys: int, sizes: Sizes, target: Target) -> Cost:
    """What one head takes."""
    lanes, itemsize = target.lanes(sizes.itemsize), sizes.itemsize
    scores = rows * keys
    softmax = Cost(
        compute=fma_cycles(SOFTMAX * scores, lanes, target),
        load=load_cycles(3.0 * scores * itemsize, target),
        store=store_cycles(2.0 * scores * itemsize, target),
    )
    panels = keys * (sizes.depth + sizes.out_depth) * itemsize
    if not tile.tiles:
        return _direct(tile, rows, keys, sizes, target) + softmax
    tall = min(tile.rows, rows)
    count = ceil(rows / tall)
    register = MatmulTile(tall, tile.width)
    first = Product(count * tall, keys, sizes.depth, itemsize)
    second = Product(count * tall, sizes.out_depth, keys, itemsize)
    products = estimate(register, first, target) + estimate(register, second, target)
    held = min(tile.tiles, count) * tall * min(tile.keys, keys) * itemsize
    passes = ceil(count / tile.tiles)
    again = Cost(memory=fetch_cycles(passes * panels, panels + held, target))
    # Where vectors are not whole a routine packs the keys (`schedule.py`), element by element.
    costs, whole = target.costs.arithmetic, keys % lanes == sizes.out_depth % lanes == 0
    packing = Cost(
        compute=keys * (ceil(sizes.depth / lanes) * costs.turned_vector if whole else sizes.depth * costs.gathered),
        load=load_cycles(panels, target),
        store=store_cycles(panels, target),
    )
    return packing + (products | again) + softmax


def _direct(tile: Tile, rows: int, keys: int, sizes: Sizes, target: Target) -> Cost:
    """Both products of one head, where keys and values are read where they are, each by `tile.rows` rows together. Each
    step of a score loads both of its factors."""
    lanes, itemsize, costs = target.lanes(sizes.itemsize), sizes.itemsize, target.costs.arithmetic
    scores, passes = rows * keys, ceil(rows / tile.rows)
    depth, out_depth = (lanes * ceil(d / lanes) for d in (sizes.depth, sizes.out_depth))
    panels = keys * (sizes.depth + sizes.out_depth) * itemsize
    return Cost(
        compute=fma_cycles(scores * (depth + out_depth), lanes, target) + costs.folded_score * scores,
        load=load_cycles((2.0 * depth * scores + out_depth * (scores / tile.rows + scores / 4)) * itemsize, target),
        memory=fetch_cycles(passes * panels, panels * sizes.heads, target),
    )
