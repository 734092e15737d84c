"""Tiles of matrix products with packed weights: the sums that stay in registers, by an analytic estimate.

A tile is `rows` x `panels` x `width` accumulators. A step of the reduction costs the tile's multiply-adds, its loads or
the latency of one multiply-add, whichever is longest, beside what the weights' cache level needs to bring the step's
bytes (`plans/framework/cost.py` says how they overlap). With few rows the weights are read once, and the level that
they come from limits speed; then several panels at once keep enough multiply-adds in flight, in as many streams as the
core follows best (`Target.streams`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, as_expr, as_int, const
from tilewright.plans.framework.cost import SHARED_LEVELS, Cost, level
from tilewright.plans.framework.decision_key import Key
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.plans.framework.symbolic import SYMBOLIC_ROWS, values_of
from tilewright.plans.framework.tiles import row_limit, whole_step
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

MAX_ROWS = 14
"""The largest number of rows of a tile. If their number is symbolic, each remainder becomes a separate version."""
MAX_PANELS = 4
MAX_VECTORS = 4
"""The largest number of vectors in a panel."""
SHORT_ROWS = 6
"""The largest number of rows, about one tile, for which the weights are read once."""
SHORT_TRANSPOSED_ROWS = 14
"""The largest number of rows of a transposed left operand for which the right one is read about once, if there are many
registers."""
WIDE_TILE_REGISTERS = 32
"""The least number of registers that counts as many: with fewer, a tile has a third of the products per line of
transposed rows."""
ADJACENT_TILES = 4
"""The least number of row tiles that make a strip for the second level of cache worthwhile."""
MIN_STRIPS = 16
"""The number of strips from which on a small last one costs little."""
SYMBOLIC_SHARING = 96
"""The number of rows that is assumed to prefetch a panel together if it is unknown: fewer rows would each need a larger
part, more rows prefetch it again."""
BODY = 48
"""The least number of vector multiply-adds in the innermost loop's body, unless that is more than `MAX_STEPS` steps."""
MAX_STEPS = 8
"""The largest number of unrolled steps of the innermost loop."""
CHAINS = (2, 4, 8)
"""Numbers of partial sums of each element in a tile, each over every 2nd, 4th or 8th step."""
CHAINED = 1.05
"""The factor by which partial sums must be faster by estimate: if weights come from the second level, they are not."""


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """`rows` x (`panels` x `width`) accumulators; `width` is also the width of the packed weight panels. `chains`: the
    number of independent partial sums of each, over every `chains`-th step of the reduction."""

    rows: int
    width: int
    panels: int = 1
    chains: int = 1


@dataclass(frozen=True, slots=True)
class Product:
    """A product of `rows` x `depth` with `depth` x `columns`, elements of `itemsize` bytes; there are `count` of them,
    one after the other, with different weights. `working_set`: the bytes of all weights that a call reads, if these are
    more (`plans/framework/cost.py`)."""

    rows: int
    columns: int
    depth: int
    itemsize: int = 4
    count: int = 1
    working_set: float = 0.0

    @property
    def weights(self) -> int:
        """Bytes of all weights."""
        return self.depth * self.columns * self.itemsize * self.count

    def level(self, target: Target) -> str:
        """The level of memory that the weights come from when a call reads them first."""
        return level(max(self.weights, self.working_set), target)


def matmul_tile(
    key: Callable[[], Key],
    rows: Expr,
    columns: Expr | int,
    depth: int,
    dtype: DType,
    target: Target,
    *,
    whole: bool = False,
    narrow: bool = False,
) -> MatmulTile:
    """The tile for a product of `rows` x `depth` with `depth` x `columns` (both may be symbolic); `whole`: its panels
    divide the columns, if there are such panels; `narrow`: they may be half a vector wide."""
    ranked = _ranked(_sizes(rows, as_expr(columns)), max(1, depth), dtype.itemsize, target, narrow)
    known = as_int(as_expr(columns))
    if whole and known is not None:
        ranked = tuple(r for r in ranked if known % r[1].width == 0) or ranked
    return decide(key, ranked, lambda r: Setting("panels", (("width", r[1].width),)), lambda r: r[0])[1]


def multiplies_in_place(
    rows: int | None, columns: int | None, depth: int | None, itemsize: int, target: Target, *, transposed: bool
) -> bool:
    """Whether a product of two computed operands best reads them in place: the right one (depth x columns) without
    packing and, if `transposed`, the left one (depth x rows) without a transposition.

    If its rows are one panel wide, the right operand needs no packing. With few rows, at most as many as registers,
    reading it in place costs less than packing, for any number of panels. Transposed rows, and further panels, are read
    with a stride, one line per step; that pays if these lines do not share sets of the first level, a panel stays in
    the second one (on some machines all of an operand), and a tile has enough products per line
    (docs/decisions/products-in-place.md).
    """
    lanes = target.lanes(itemsize)
    if columns is None or (transposed and rows is None):
        return False
    single = columns <= MAX_VECTORS * lanes
    if not transposed:
        return columns >= lanes and (single or (rows is not None and rows <= target.registers))
    assert rows is not None
    if rows <= SHORT_ROWS or target.registers < WIDE_TILE_REGISTERS:
        return rows <= SHORT_ROWS
    way, traffic = target.l1 // target.caches.l1_ways, target.costs.traffic
    if rows <= SHORT_TRANSPOSED_ROWS and columns * itemsize <= way:
        return True
    if single and columns <= 2 * lanes:
        return rows * itemsize <= way // 2
    stays = depth is None or max(rows, columns) * depth * itemsize <= traffic.strided_l2 * target.l2
    if single:
        return stays
    panel = None if depth is None else depth * MAX_VECTORS * lanes * itemsize
    whole = columns % lanes == 0 and max(rows, columns) * itemsize <= traffic.strided_row
    return whole and stays and panel is not None and panel <= target.l2 // 2


def has_whole_panels(rows: Expr, columns: int, depth: int, dtype: DType, target: Target) -> bool:
    """Whether a tile that the estimates consider for a product of `rows` x `columns` elements that sums over `depth`
    has panels whose width divides `columns`."""
    ranked = _ranked(_sizes(rows, const(columns)), max(1, depth), dtype.itemsize, target, False)
    return any(columns % tile.width == 0 for _, tile in ranked)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes at which a product's tiles are estimated: `pairs` of (rows, columns); `symbolic`: the number of rows is
    a symbol, `open`: that of columns."""

    pairs: tuple[tuple[int, int], ...]
    symbolic: bool
    open: bool


def _sizes(rows: Expr, columns: Expr) -> _Sizes:
    counts, widths = (values_of(extent, SYMBOLIC_ROWS) for extent in (rows, columns))
    number = max(len(counts), len(widths))
    pairs = tuple((counts[k % len(counts)], widths[k % len(widths)]) for k in range(number))
    return _Sizes(pairs, as_int(rows) is None, as_int(columns) is None)


@lru_cache(maxsize=4096)
def _ranked(
    sizes: _Sizes, depth: int, itemsize: int, target: Target, narrow: bool
) -> tuple[tuple[float, MatmulTile], ...]:
    """For each width of panels its mean cycles and its best tile, as (cycles, tile), for products of `sizes` that sum
    over `depth` elements of `itemsize` bytes; with `narrow`, also panels of half a vector. The order is by how much
    slower a width is than the best one, on average over the pairs of sizes."""
    lanes = max(4, target.lanes(itemsize))
    result: dict[int, list[tuple[float, MatmulTile]]] = {}
    most = max(columns for _, columns in sizes.pairs)
    half_vectors = [lanes // 2] if narrow and most <= lanes // 2 else []
    whole = [v * lanes for v in range(1, MAX_VECTORS + 1) if v == 1 or (v - 1) * lanes < most]
    for width in (*half_vectors, *whole):
        result[width] = []
        for m, columns in sizes.pairs:
            # Panels whose number is unknown come one at a time.
            options = tiles(None if sizes.symbolic else m, width, 1 if sizes.open else columns, depth, itemsize, target)
            product = Product(m, columns, depth, itemsize)
            costs = [(estimate(t, product, target, symbolic=sizes.symbolic).cycles, t) for t in options]
            result[width].append(min(costs, key=lambda c: c[0]))
    least = [min(costs[k][0] for costs in result.values()) for k in range(len(sizes.pairs))]
    scores = {w: sum(c / least[k] for k, (c, _) in enumerate(costs)) / len(costs) for w, costs in result.items()}
    cycles = {w: sum(c for c, _ in costs) / len(costs) for w, costs in result.items()}
    # Of equals the widest; of one row the narrowest, whose function is computed beside the next panel's products, where
    # these wait for nothing else.
    one = sizes.pairs[0] if len(sizes.pairs) == 1 else (0, 0)
    cached = one[0] == 1 and Product(*one, depth, itemsize).level(target) == "l1"
    width = 1 if cached else -1
    return tuple((cycles[w], result[w][-1][1]) for w in sorted(result, key=lambda w: (scores[w], width * w)))


def best(product: Product, target: Target) -> Cost:
    """The estimate of `product` with its best tile, of any width of panels."""
    lanes = target.lanes(product.itemsize)
    sizes = (product.columns, product.depth, product.itemsize)
    results = [t for v in range(1, MAX_VECTORS + 1) for t in tiles(product.rows, v * lanes, *sizes, target)]
    return min((estimate(t, product, target) for t in results), key=lambda cost: cost.cycles)


def tiles(rows: int | None, width: int, columns: int, depth: int, itemsize: int, target: Target) -> list[MatmulTile]:
    """The tiles with panels of `width` columns that fit the registers, for a product of `rows` (None: a symbolic
    number) by `columns` that sums over `depth` elements of `itemsize` bytes."""
    vectors = -(-width // target.lanes(itemsize))
    most = MAX_ROWS if rows is None else min(MAX_ROWS, max(1, rows))
    limit = int(target.costs.traffic.crowded_rows * row_limit(depth * itemsize, target))
    results = []
    for count in range(1, min(most, limit) + 1):
        for panels in range(1, MAX_PANELS + 1):
            fits = in_registers(MatmulTile(count, width, panels), vectors, target)
            if fits and (panels == 1 or (panels - 1) * width < columns):
                results.append(MatmulTile(count, width, panels))
                if count == rows:  # more rows make a taller tile instead
                    results += in_chains(results[-1], vectors, depth, itemsize, target)
    return results or [MatmulTile(1, width)]


def in_chains(tile: MatmulTile, vectors: int, depth: int, itemsize: int, target: Target) -> Iterator[MatmulTile]:
    """Variants of `tile` in which each element has several partial sums, which are added at the end: if a tile of
    `vectors` vectors per panel, of elements of `itemsize` bytes, has too few sums to hide the latency of a
    multiply-add, as many as hide it and divide `depth`."""
    started = starts(tile.width * itemsize, target)
    waiting = target.costs.arithmetic.fma_latency * started
    for chains in CHAINS:
        is_short = tile.rows * vectors * tile.panels * (chains // 2) < waiting
        split = MatmulTile(tile.rows, tile.width, tile.panels, chains)
        if is_short and depth % chains == 0 and depth > chains and in_registers(split, vectors, target):
            yield split


def starts(width: int, target: Target) -> float:
    """The multiply-adds that start per cycle in vectors of `width` bytes. A core that joins two narrow units for its
    widest vectors starts twice as many of half the width."""
    costs, fmas, vector = target.costs.arithmetic, target.fma_per_cycle, target.vector_bits // 8
    return min(max(1.0, vector / width) * fmas, max(costs.narrow_fma_per_cycle, fmas))


def in_registers(tile: MatmulTile, vectors: int, target: Target) -> bool:
    """Whether a tile's accumulators, `vectors` vectors per panel, stay in registers.

    One row multiplies directly from memory; more rows share the panel's vectors in registers. LLVM's scheduler moves
    loads of the next step up, the more the more registers there are; if the register file is full, it spills
    accumulators in every step.
    """
    if target.isa.reads_first:
        return tile.rows == 1 or whole_step(tile.rows, vectors * tile.panels) * tile.chains <= target.registers
    several = vectors * tile.panels + target.registers // target.costs.arithmetic.registers_a_spare
    spare = 1 if tile.rows == 1 else several
    return tile.rows * vectors * tile.panels * tile.chains + spare <= target.registers


def last_rows(tile: MatmulTile, itemsize: int, target: Target) -> int:
    """The largest number of rows in the last tile of a symbolic number of rows: one more than `tile` has, if registers
    hold it, so that no tile of a single row remains."""
    vectors = -(-tile.width // target.lanes(itemsize))
    more = MatmulTile(tile.rows + 1, tile.width, tile.panels)
    return more.rows if 2 < tile.rows < MAX_ROWS - 1 and in_registers(more, vectors, target) else tile.rows


def estimate(tile: MatmulTile, product: Product, target: Target, *, symbolic: bool = False) -> Cost:
    """The estimated cycles of a product done with `tile`; `symbolic`: its last tiles are of about equal size."""
    groups, last = divmod(-(-product.columns // tile.width), tile.panels)
    total = Cost()
    for count, panels in ((groups, tile.panels), (1, last)):
        if panels and count:
            first, rereading = bandwidth(tile, product, panels, target)
            last = last_rows(tile, product.itemsize, target) if symbolic else tile.rows
            for k, (times, rows) in enumerate(_divided(product.rows, tile.rows, last, symbolic)):
                alone = 1 if k == 0 and first != rereading else 0
                for tiles, rate in ((alone, first), (times - alone, rereading)):
                    if tiles:
                        total += _tile(tile, product, rows, panels, rate, target) * (count * tiles)
    is_crowded = row_limit(product.depth * product.itemsize, target) < tile.rows < product.rows
    total *= target.costs.traffic.crowded_passes if is_crowded else 1.0
    return total * CHAINED if tile.chains > 1 else total


def _divided(rows: int, most: int, last: int, symbolic: bool) -> list[tuple[int, int]]:
    """How `rows` rows are divided into tiles of at most `most` rows, as (number of tiles, rows of each); for `symbolic`
    rows as `transform/loops/even.py` does: the last tile has up to `last` rows, or the last two are about equal."""
    whole, rest = divmod(rows, most)
    if symbolic and whole and rest == last - most == 1:
        parts = [(whole - 1, most), (1, last)]
    elif symbolic and whole and 0 < rest < most - 1:
        parts = [(whole - 1, most), (1, (most + rest + 1) // 2), (1, (most + rest) // 2)]
    else:
        parts = [(whole, most), (1, rest)]
    return [(times, size) for times, size in parts if times and size]


def _tile(tile: MatmulTile, product: Product, rows: int, panels: int, rate: float, target: Target) -> Cost:
    vector, width = target.vector_bits // 8, tile.width * product.itemsize
    vectors = -(-width // vector) * panels
    costs = target.costs.arithmetic
    loads = max(vectors * vector / target.l1_bandwidth, (rows + vectors) / costs.loads_per_cycle)
    steps, sums = product.depth, rows * vectors
    # Sums of several chains are added pairwise.
    together = (tile.chains - 1) * sums / 2 + (tile.chains.bit_length() - 1) * costs.fma_latency
    return Cost(
        compute=steps * max(sums / starts(width, target), costs.fma_latency / tile.chains),
        load=steps * loads,
        memory=steps * width * panels / rate if rate else 0.0,
        overhead=steps * costs.load_beside_products * loads + 2.0 * sums + together + costs.tile_overhead,
    )


def strip_rows(tile: MatmulTile, product: Product, target: Target, *, symbolic: bool = False) -> int:
    """The number of rows in a strip, which all panels use before the next strip; 0 if all rows are one.

    Every panel reads the rows of a strip again, and each tile of rows starts streams that nothing has prefetched. If
    all rows exceed the second level and a few tiles fit in a quarter of it, these tiles make a strip, provided that all
    panels stay in the last level for the next strip; rows left over after few strips are distributed to these, since a
    small last strip would reload all panels. Otherwise strips are of about equal size and take a quarter of the pages
    in the second-level TLB.

    For a symbolic number of rows, at most `product.rows`, the remainder is unknown. Then, if panels do not stay in the
    second level, strips are half of it, so that a short last strip, which reloads all panels, costs relatively less.
    """
    row = product.depth * product.itemsize
    panels = product.columns * row
    if not symbolic and panels <= target.l1 // 2 and _in_whole_rows(tile, product, target):
        return tile.rows
    parts = 2 if symbolic and panels > target.l2 // 2 else 4
    cached = target.l2 // parts // row // tile.rows * tile.rows
    fits = level(product.rows * row, target) in ("l1", "l2")
    if cached >= ADJACENT_TILES * tile.rows and not fits and panels <= target.l3 // 8:
        count, left = divmod(product.rows, cached)
        if symbolic or left >= cached // 4 or count >= MIN_STRIPS:
            return cached
    else:
        count = -(-product.rows * row // (target.caches.l2_pages * target.caches.page // 4))
        if count <= 2:
            return 0
    rows = -(-product.rows // count)
    return -(-rows // tile.rows) * tile.rows


def _in_whole_rows(tile: MatmulTile, product: Product, target: Target) -> bool:
    """Whether to finish each tile of rows over all panels before the next tile, for panels that all stay in the first
    level of cache: the result is more than twice as large as that level, and the last of few tiles is at least half
    full."""
    left = product.rows % tile.rows
    even = product.rows >= MIN_EVEN_TILES * tile.rows or not 0 < 2 * left < tile.rows
    return even and product.rows * product.columns * product.itemsize > 2 * target.l1


MIN_EVEN_TILES = 8
"""The number of row tiles from which on the rows of the last one do not matter."""


def sharing_rows(tile: MatmulTile, product: Product, strip: int, target: Target, *, symbolic: bool = False) -> int:
    """The number of rows that prefetch the next panel together, each a part; 0 if none does. A block of rows has
    `strip` rows (0: all); `symbolic`: the number of rows is not known.

    Tiles of rows multiply with one panel after another, and if panels do not stay in the second level, the first tile
    waits for each. It need not wait if the tiles of the panel before prefetch its lines, a few in each step: then
    memory is always busy. Hardware sees a new stream in every panel and stops following it at the end of each page.
    """
    is_short = product.rows < shared_panel_rows(product, target) or tile.rows == 1
    if is_short or product.level(target) not in SHARED_LEVELS or tile.panels > 1:
        return 0
    if symbolic:
        return min(SYMBOLIC_SHARING, strip or SYMBOLIC_SHARING)
    return strip or product.rows


def prefetch_distance(tile: MatmulTile, product: Product, target: Target) -> int:
    """The distance in bytes at which a single tile of few rows prefetches its own panel; 0 if it does not."""
    return panel_distance(product, target) if tile.panels == 1 else 0


def panel_distance(product: Product, target: Target) -> int:
    """The distance in bytes at which few rows prefetch their own panel; 0 if they do not.

    A panel takes longer to arrive than its products take, and to prefetch the next one would only delay it. One or two
    rows are limited by memory alone, and prefetches would only delay the loads; from the last level of cache, lines
    arrive about as fast as two rows are multiplied.
    """
    prefetch = target.costs.prefetching
    match product.level(target):
        case "l3":
            least, nbytes = prefetch.panel_rows_l3, prefetch.panel_bytes_l3
        case "memory":
            least, nbytes = prefetch.panel_rows_memory, prefetch.panel_bytes_memory
        case _:
            return 0
    return nbytes if least <= product.rows < shared_panel_rows(product, target) else 0


def shared_panel_rows(product: Product, target: Target) -> int:
    """The smallest number of rows for which the tiles of a panel together prefetch the next one: with fewer, a panel's
    products end before the next panel arrives from the level that holds the weights."""
    costs = target.costs.prefetching
    return costs.shared_panel_rows_memory if product.level(target) == "memory" else costs.shared_panel_rows_l3


def unrolled_steps(products: int, depth: int | None) -> int:
    """The number of unrolled steps of the reduction, of `products` multiply-adds each, in one iteration of the loop.

    A short body ends in a taken branch every few cycles. Instruction fetch then just keeps up with the multiply-adds if
    the loop happens to be well aligned, and does not if another thread shares the core's front end.
    """
    steps = min(MAX_STEPS, -(-BODY // max(1, products)))
    return steps if depth is None or depth >= 2 * steps else 1


def bandwidth(tile: MatmulTile, product: Product, panels: int, target: Target) -> tuple[float, float]:
    """Bytes per cycle at which a group of `panels` panels arrives in the first level of cache: (for the first tile of
    rows, for each later tile). 0.0: the group is there already. Both are equal if all tiles share the cost of one
    transfer."""
    group = product.depth * tile.width * panels * product.itemsize
    away = product.level(target) in SHARED_LEVELS
    shared = away and sharing_rows(tile, product, 0, target) > 0
    prefetch = away and panels == 1 and prefetch_distance(tile, product, target) > 0
    from_memory = _first_bandwidth(product, panels, target, shared=shared, prefetch=prefetch)
    passes = -(-product.rows // tile.rows)
    if passes == 1:
        return from_memory, from_memory
    # Read once for every tile of rows: it stays where it fits beside those rows.
    beside = product.depth * tile.rows * product.itemsize
    stays = group + beside <= target.l1 * (target.caches.l1_ways - 1) // target.caches.l1_ways
    # What is not in the core's own caches comes from beyond them once, by whichever prefetch.
    if stays:
        return (from_memory, 0.0) if away and not shared else (passes * from_memory, passes * from_memory)
    rereading = target.l2_bandwidth if group <= target.l2 // 2 else target.l3_bandwidth
    if passes > 2 and group <= target.l2 // 2 and panels == 1 and (shared or not away):
        traffic = target.costs.traffic  # The tiles of the panel before have prefetched it.
        rereading *= traffic.shared_stream if shared else traffic.followed_stream
    if away and not shared:
        return from_memory, rereading  # The first tile waits for it.
    if from_memory and (panels > 1 or away):
        rereading = passes / (1 / from_memory + (passes - 1) / rereading)
    return rereading, rereading


def _first_bandwidth(product: Product, panels: int, target: Target, *, shared: bool, prefetch: bool) -> float:
    """Bytes per cycle at which panels arrive that are read for the first time; `shared`: the tiles of the panel before
    have prefetched them, `prefetch`: the tile itself prefetches."""
    traffic = target.costs.traffic
    match product.level(target):
        case "l1":
            return 0.0
        case "l2":
            return target.l2_bandwidth
        case "l3":
            streams = traffic.excess_streams if panels > target.streams else 1.0
            return target.l3_bandwidth * streams * (1.0 if shared or prefetch else traffic.unfollowed_l3)
    if panels > target.streams:
        return target.memory_bandwidth * traffic.excess_streams
    return target.memory_bandwidth * (1.0 if shared or panels == target.streams else traffic.limited_streams)
