"""Tiles of attention for a target, with their estimated cycles.

Two products alternate with a softmax over a block of scores. The register tile is two vectors wide where that costs
nothing, so that narrow heads waste few lanes, and as tall as the registers allow; the block of scores stays in a
quarter of the second-level cache, and with it the panel of keys that all its tiles share in the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log2

from tilewright.arith import Analyzer
from tilewright.ir.expr import Expr, as_int
from tilewright.ops.lowered.attention import SHORT_ROWS
from tilewright.ops.lowered.split import TERMS, count_of
from tilewright.plans.attention.rows import Tile
from tilewright.plans.framework.cost import FUNCTIONS, SYMBOL, Cost, fetch_cycles, fma_cycles, load_cycles, store_cycles
from tilewright.plans.framework.symbolic import values_of
from tilewright.plans.idioms.tile_axes import SIDES
from tilewright.plans.matmul.split import OPERATIONS
from tilewright.plans.matmul.tile_dots import tile_cycles
from tilewright.plans.matmul.tiles import MatmulTile, Product, estimate, unrolled_steps
from tilewright.schedule.dot_intrinsics import Dot
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

MAX_KEYS = 1024
"""The largest number of keys of which a row of scores is held whole; for more, or if nothing bounds their number, there
are blocks of `BLOCKS`."""

BLOCKS = (512, 256, 1024)
MAX_ROWS = 12
MAX_TILES = 32
VECTORS = (2, 3, 4, 1)
"""The widths of a register tile in vectors, the preferred one first if estimates are equal."""
LENGTHS = (16, 48, 128, 384)
"""The numbers of rows, and of keys, at which symbolic ones are estimated."""
MAX_DIRECT = 32
"""The largest number of rows that may read keys and values in place."""
GROUP = 8
"""The largest number of rows that are multiplied together with keys and values read in place."""
SOFTMAX = 6.0
"""Operations per score besides the exponential: the mask and the scale, the comparison, two additions."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that an attention's tiles depend on: query rows and keys of a head, its depths, heads of all batch
    entries (a symbolic batch counts as `SYMBOL`), bytes of an element, lanes of the instruction that multiplies (1:
    none), the instruction where it multiplies matrices, with the terms of scores and of values."""

    rows: Expr
    keys: Expr
    depth: int
    out_depth: int
    heads: int
    itemsize: int
    lanes: int = 1
    dot: Dot | None = None
    terms: tuple[int, ...] = ()


def tiles(sizes: Sizes, target: Target) -> Iterator[Tile]:
    """The tiles that fit the registers and the caches, the preferred ones first."""
    if sizes.dot is not None:
        yield from matrix_tiles(sizes, sizes.dot, target)
        return
    lanes, known = target.lanes(sizes.itemsize), as_int(sizes.rows)
    _, most = Analyzer().bounds(sizes.keys)
    is_short = known is not None and known <= SHORT_ROWS
    direct = is_short or (known is not None and known <= MAX_DIRECT and sizes.lanes == 1)
    for vectors in VECTORS:
        width = vectors * lanes
        if width % sizes.lanes:
            continue
        whole = max(width, -(-most // width) * width) if most is not None else 0
        blocks = BLOCKS if most is None or most > MAX_KEYS else (whole,)
        if direct and vectors == 1:
            for tall in range(max(1, min(known or 1, GROUP)), 0, -1):
                yield Tile(tall, width, -(-blocks[0] // width) * width, 0, keys_at_once(tall, lanes, target))
        for tall in heights(known, vectors, target) if not is_short else ():
            for keys in blocks:
                fitting = target.l2 // 4 // (tall * keys * sizes.itemsize)
                steps = unrolled_steps(tall * vectors, None)
                for count in dict.fromkeys(max(1, min(n, MAX_TILES)) for n in (fitting, fitting // 2, fitting // 4)):
                    yield Tile(tall, width, -(-keys // width) * width, count, steps, square(sizes, target))


def matrix_tiles(sizes: Sizes, dot: Dot, target: Target) -> Iterator[Tile]:
    """The candidate tiles of whole matrix registers: two by two of them, or one by two, with as many tiles in a block
    as their scores fit a quarter of the second-level cache."""
    known, width = as_int(sizes.rows), 2 * dot.lanes
    _, most = Analyzer().bounds(sizes.keys)
    whole = -(-most // width) * width if most is not None else 0
    for keys in BLOCKS if most is None or most > MAX_KEYS else (max(width, whole),):
        for rows in (2 * dot.rows, dot.rows):
            if known is None or rows <= known:
                fitting = target.l2 // 4 // (rows * keys * sizes.itemsize)
                yield Tile(rows, width, -(-keys // width) * width, max(1, min(fitting, MAX_TILES // 4)), 1)


def keys_at_once(rows: int, lanes: int, target: Target) -> int:
    """How many unpacked keys `rows` rows are multiplied with at once: a power of two. It is at most the lanes of a
    vector, into which the sums of different keys are folded; the sums of all rows and keys take at most three quarters
    of the registers."""
    fitting = [n for n in (1, 2, 4, 8, 16) if n <= lanes and 4 * n * rows <= 3 * target.registers]
    return max(fitting, default=1)


def square(sizes: Sizes, target: Target) -> int:
    """The side of the squares by which keys are transposed in registers; 1 if no such side divides their depth."""
    sides = [n for n in SIDES if n <= target.lanes(sizes.itemsize) and sizes.depth % n == 0]
    return sides[0] if sides and sizes.itemsize == 4 and sizes.lanes == 1 else 1


def heights(rows: int | None, vectors: int, target: Target) -> list[int]:
    """The heights of a register tile that are considered, the tallest first, for tiles of `vectors` vectors a row and
    at most `rows` rows."""
    tallest = max(2, min(MAX_ROWS, (target.registers - vectors - 1) // vectors))
    if rows is not None:
        tallest = min(tallest, rows)
    return list(range(tallest, max(1, tallest - 3) - 1, -1))


def ranked(sizes: Sizes, target: Target) -> list[tuple[Cost, Tile]]:
    """The candidate tiles with their estimated costs for all heads, the cheapest first. Symbolic numbers of rows and
    keys count with the mean over likely values."""
    rows, keys = values_of(sizes.rows, LENGTHS), values_of(sizes.keys, LENGTHS)
    counts = [(rows[k % len(rows)], keys[k % len(keys)]) for k in range(max(len(rows), len(keys)))]
    scale = sizes.heads / len(counts)
    if as_int(sizes.rows) is None:
        scale *= SYMBOL * len(rows) / sum(rows)
    results = []
    for tile in tiles(sizes, target):
        total = Cost()
        for m, n in counts:
            total |= cost(tile, m, n, sizes, target)
        results.append((total * scale, tile))
    return sorted(results, key=lambda option: float(f"{option[0].cycles:.4g}"))


def cost(tile: Tile, rows: int, keys: int, sizes: Sizes, target: Target) -> Cost:
    """The estimated cost of one head with `rows` query rows and `keys` keys: packing, both products, softmax, and
    transfers between levels of cache."""
    lanes, itemsize, costs = target.lanes(sizes.itemsize), sizes.itemsize, target.costs.arithmetic
    scores = rows * keys
    softmax = Cost(
        compute=fma_cycles((SOFTMAX + costs.function * FUNCTIONS["exp_nonpositive"]) * scores, lanes, target),
        load=load_cycles(3.0 * scores * itemsize, target),
        store=store_cycles(2.0 * scores * itemsize, target),
    )
    panels = keys * (sizes.depth + sizes.out_depth) * itemsize
    arrive = Cost(memory=fetch_cycles(panels, panels * sizes.heads, target))
    if not tile.tiles:
        return arrive + _direct(tile, rows, keys, sizes, target) + softmax
    tall = min(tile.rows, rows)
    count = ceil(rows / tall)
    if sizes.dot is not None:
        return _in_matrices(tile, count, keys, sizes, sizes.dot, target) + arrive + softmax
    register = MatmulTile(tall, tile.width)
    first = Product(count * tall, keys, sizes.depth, itemsize)
    second = Product(count * tall, sizes.out_depth, keys, itemsize)
    products = estimate(register, first, target) + estimate(register, second, target)
    held = min(tile.tiles, count) * tall * min(tile.keys, keys) * itemsize
    passes = ceil(count / tile.tiles)
    rereading = Cost(memory=fetch_cycles(passes * panels, panels + held, target))
    # Vectors of values that are copied, and squares of keys that are turned, or keys element by element.
    transposed = costs.transposed_vector * ceil(sizes.depth / lanes) if tile.side > 1 else costs.gathered * sizes.depth
    packing = Cost(compute=keys * transposed, load=load_cycles(panels, target), store=store_cycles(panels, target))
    return arrive + packing + (products | rereading) + softmax


def _in_matrices(tile: Tile, count: int, keys: int, sizes: Sizes, dot: Dot, target: Target) -> Cost:
    """The cost of both products of `count` tiles of one head in matrix registers, and of what prepares them: rounding
    rows, keys, values and probabilities or splitting them into pieces, and packing."""
    costs, rows, lanes = target.costs.matrices, count * tile.rows, target.lanes(sizes.itemsize)
    terms = sizes.terms or (1, 1)
    tall, wide = tile.rows // dot.rows, tile.width // dot.lanes
    products, stored = 0.0, costs.stored_product_sums * tile.rows * tile.width / lanes
    for columns, depth, n in ((keys, sizes.depth, terms[0]), (sizes.out_depth, keys, terms[1])):
        # How much slower products of pieces are was measured with what a tile begins with.
        steps = -(-depth // dot.depth) - (1 if sizes.terms else 0)
        each = tile_cycles(tall, wide, steps, dot, target, n) * (costs.split_slower if sizes.terms else 1.0)
        products += count * -(-columns // tile.width) * (each + stored)
    pieces = [count_of(n) if n in TERMS else 1 for n in terms]
    written = (rows + keys) * sizes.depth * pieces[0] + (keys * sizes.out_depth + rows * keys) * pieces[1]
    looked = 0 if not sizes.terms else (rows + keys) * sizes.depth + keys * sizes.out_depth
    return Cost(compute=products + fma_cycles(OPERATIONS * written + 2 * looked, lanes, target)) + Cost(
        compute=costs.copied_vector * keys * (sizes.depth * pieces[0] + sizes.out_depth * pieces[1]) / lanes,
        store=store_cycles(2.0 * written, target),
    )


def _direct(tile: Tile, rows: int, keys: int, sizes: Sizes, target: Target) -> Cost:
    """The cost of both products of one head with keys and values in place, `tile.rows` rows with `tile.steps` keys at
    once."""
    lanes, costs = target.lanes(sizes.itemsize), target.costs.arithmetic
    scores, together, at_once = rows * keys, min(tile.rows, rows), tile.steps
    depth, out_depth = (ceil(d / lanes) for d in (sizes.depth, sizes.out_depth))
    wide = ceil(out_depth / ceil(out_depth / at_once))
    # Each step makes one vector of two: one of all keys' vectors, then one that is half as wide until a lane is left.
    folds = (at_once - 1 + log2(max(1.0, lanes / at_once))) / at_once
    loads = keys * (ceil(rows / together) * (depth + out_depth) + rows * (depth / at_once + out_depth / wide))
    return Cost(
        compute=fma_cycles(scores * lanes * (depth + out_depth), lanes, target)
        + costs.fold * folds * scores
        + costs.load_beside_scores * loads,
    )
