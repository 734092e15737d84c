"""Tiles of matrix products with packed weights: what stays in registers, by an analytic estimate.

A tile is `rows` x `panels` x `width` accumulators. A step of the reduction costs the tile's multiply-adds, its loads or
the latency of one multiply-add, whichever is longest, beside what the weights' cache level needs to bring the
step's bytes (`plans/framework/cost.py` says how they overlap). With few rows the weights are read once and their level
decides;
then several panels at once keep enough multiply-adds in flight, and are as many streams as the core follows best
(`Target.streams`).
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
"""Rows of a tile. Where their number is symbolic, each remainder becomes a version of its own."""
MAX_PANELS = 4
MAX_VECTORS = 4
"""Vectors of a panel."""
SHORT_ROWS = 6
"""Up to so many rows, about one tile, the weights are read once."""
SHORT_TRANSPOSED_ROWS = 14
"""Up to so many rows of a transposed left operand the right one is read about once, too, with many registers."""
WIDE_TILE_REGISTERS = 32
"""With fewer, a tile has a third of the products for each line of turned rows."""
ADJACENT_TILES = 4
"""Tiles of rows that make a strip for the second level of cache worth while."""
MIN_STRIPS = 16
"""The number of strips from which a small last one costs little."""
SYMBOLIC_SHARING = 96
"""Rows that prefetch a panel together where their number is unknown: of fewer each has a larger part, more
prefetch it again."""
BODY = 48
"""Products (vector multiply-adds) that the body of the innermost loop holds at least,"""
MAX_STEPS = 8
"""unless it would be more steps than this."""
CHAINS = (2, 4, 8)
"""Sums of every second, fourth or eighth step that a tile may hold separately,"""
CHAINED = 1.05
"""and how many times as fast it must be with them, by estimate: where weights come from the second level it is not."""


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """`rows` x (`panels` x `width`) accumulators; `width` is also the width of the packed weight panels. `chains`: how
    many of each, the sums of every so-many-th step of the reduction, which need not wait for each other."""

    rows: int
    width: int
    panels: int = 1
    chains: int = 1


@dataclass(frozen=True, slots=True)
class Product:
    """A product of `rows` x `depth` with `depth` x `columns`, elements of `itemsize` bytes; `count` of them, one after
    the other, have weights of their own. `working_set`: bytes of weights that a call reads, these among them, where
    they are more (`plans/framework/cost.py`). `unpacked`: they are rows as they lie, not packed: nothing follows a
    panel's lines, and it arrives in the first pass of rows."""

    rows: int
    columns: int
    depth: int
    itemsize: int = 4
    count: int = 1
    working_set: float = 0.0
    unpacked: bool = False

    @property
    def weights(self) -> int:
        """Bytes of all weights."""
        return self.depth * self.columns * self.itemsize * self.count

    def level(self, target: Target) -> str:
        """Where the weights are when they are read for the first time in a call."""
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
    fill the columns if any do; `narrow`: they may be half a vector wide."""
    ranked = _ranked(_sizes(rows, as_expr(columns)), max(1, depth), dtype.itemsize, target, narrow)
    known = as_int(as_expr(columns))
    if whole and known is not None:
        ranked = tuple(r for r in ranked if known % r[1].width == 0) or ranked
    return decide(key, ranked, lambda r: Setting("panels", (("width", r[1].width),)), lambda r: r[0])[1]


def multiplies_in_place(
    rows: int | None, columns: int | None, depth: int | None, itemsize: int, target: Target, *, transposed: bool
) -> bool:
    """Whether a product of operands that change with each call is best read where they lie: the right one (depth x
    columns) without being packed and, if `transposed`, the left one (depth x rows) without being transposed.

    Rows of the right operand that are one panel are as good as packed. A few tiles of rows, no more rows than
    registers, read an operand less often than packing does, however many panels it has. Turned rows, and further panels
    after them, are walked with a stride, a line of each step; that pays while these lines do not share the sets of the
    first level and a panel stays in the second one (on some machines all of an operand), and where a tile has products
    enough for a line (docs/decisions/products-in-place.md).
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
    """Whether panels of some width fill the columns."""
    ranked = _ranked(_sizes(rows, const(columns)), max(1, depth), dtype.itemsize, target, False)
    return any(columns % tile.width == 0 for _, tile in ranked)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The numbers of rows and of columns at which a product is estimated, pairwise, and which of the two are not
    known."""

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
    """The best tile of each width of panels with its mean cycles, ordered by the mean distance from the best of each
    number of rows and columns: being slow at any of them counts alike."""
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
    """The estimate of the best tile over panels of any width, of one of the products."""
    lanes = target.lanes(product.itemsize)
    sizes = (product.columns, product.depth, product.itemsize)
    results = [t for v in range(1, MAX_VECTORS + 1) for t in tiles(product.rows, v * lanes, *sizes, target)]
    return min((estimate(t, product, target) for t in results), key=lambda cost: cost.cycles)


def tiles(rows: int | None, width: int, columns: int, depth: int, itemsize: int, target: Target) -> list[MatmulTile]:
    """The tiles over panels of `width` that fit the registers; `rows` None: a symbolic number."""
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
    """The tile with several sums of each element, where its multiply-adds wait for each other: as many as end that."""
    started = starts(tile.width * itemsize, target)
    waiting = target.costs.arithmetic.fma_latency * started
    for chains in CHAINS:
        is_short = tile.rows * vectors * tile.panels * (chains // 2) < waiting
        split = MatmulTile(tile.rows, tile.width, tile.panels, chains)
        if is_short and depth % chains == 0 and depth > chains and in_registers(split, vectors, target):
            yield split


def starts(width: int, target: Target) -> float:
    """Multiply-adds that start in a cycle in vectors of at most so many bytes: a core that needs both its units for a
    vector starts twice as many of half the width."""
    costs, fmas, vector = target.costs.arithmetic, target.fma_per_cycle, target.vector_bits // 8
    return min(max(1.0, vector / width) * fmas, max(costs.narrow_fma_per_cycle, fmas))


def in_registers(tile: MatmulTile, vectors: int, target: Target) -> bool:
    """Whether a tile's accumulators, of so many vectors a panel, stay in registers.

    One row multiplies straight from memory; more rows share the panel's vectors in registers, and a full register file
    leaves the next step's loads no place: the scheduler moves up more of them the more registers there are, and what it
    has no place for are accumulators, spilled in every step.
    """
    if target.isa.reads_first:
        return tile.rows == 1 or whole_step(tile.rows, vectors * tile.panels) * tile.chains <= target.registers
    several = vectors * tile.panels + target.registers // target.costs.arithmetic.registers_a_spare
    spare = 1 if tile.rows == 1 else several
    return tile.rows * vectors * tile.panels * tile.chains + spare <= target.registers


def last_rows(tile: MatmulTile, itemsize: int, target: Target) -> int:
    """The most rows of the last tile of a symbolic number of rows: one more, if registers have room for it and there
    would be no more versions of a tile than one of MAX_ROWS has."""
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
    """How many tiles of how many rows there are, of at most `most`, the last one of `last`
    (`transform/loops/even.py`)."""
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
    """Rows that pass below all panels before the next ones do, 0 for all at once.

    Every panel walks over the rows of a strip again, and each tile of rows begins streams that nothing has prefetched
    yet. Where all rows are more than the second level holds and a few tiles fit in a quarter of it, these make a
    strip, as long as all panels stay in the last level for the next one; what is left of few strips and would be a
    small one, for which all panels arrive once more, goes into the others. Otherwise strips are of about equal size
    and take a quarter of the pages whose translations the second level of their buffer holds.

    Of a symbolic number, `product.rows` at most, the rest is unknown. Where panels do not stay in the second
    level, strips are then half of it: a rest of few rows, for which all panels arrive once more, is a smaller part.
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
    """Whether a tile's rows of the result are written whole before the next ones, where all panels stay in the first
    level: results that do not, unless the last of few tiles has hardly any rows."""
    left = product.rows % tile.rows
    even = product.rows >= MIN_EVEN_TILES * tile.rows or not 0 < 2 * left < tile.rows
    return even and product.rows * product.columns * product.itemsize > 2 * target.l1


MIN_EVEN_TILES = 8
"""Tiles of rows from which on it does not matter how many rows the last one has."""


def sharing_rows(tile: MatmulTile, product: Product, strip: int, target: Target, *, symbolic: bool = False) -> int:
    """Rows that prefetch the next panel together, each its part; 0 if none does.

    Tiles of rows multiply with one panel after another, and only the first tile waits for each, if panels do not stay
    in the second level. It need not if the tiles before it prefetch its lines, a few of them in each step: memory is
    then busy all the time. Hardware sees a new stream in every panel and stops following it at the end of each page.
    """
    is_short = product.rows < shared_panel_rows(product, target) or tile.rows == 1
    if is_short or product.level(target) not in SHARED_LEVELS or tile.panels > 1:
        return 0
    if symbolic:
        return min(SYMBOLIC_SHARING, strip or SYMBOLIC_SHARING)
    return strip or product.rows


def prefetch_distance(tile: MatmulTile, product: Product, target: Target) -> int:
    """How many bytes ahead a single tile of few rows prefetches its own panel, 0 if it does not."""
    return panel_distance(product, target) if tile.panels == 1 else 0


def panel_distance(product: Product, target: Target) -> int:
    """How many bytes ahead few rows prefetch their panel, 0 if they do not.

    A panel takes longer to arrive than its products take, and to prefetch the next one would only delay it. One or two
    rows are bound by memory alone, and what prefetches its lines takes the place of what reads them; from the last
    level of cache, lines come about as fast as two rows are multiplied.
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
    """From how many rows on they prefetch the next panel together, by where panels come from."""
    costs = target.costs.prefetching
    return costs.shared_panel_rows_memory if product.level(target) == "memory" else costs.shared_panel_rows_l3


def unrolled_steps(products: int, depth: int | None) -> int:
    """How many steps of the reduction, of so many products each, one iteration of the loop has.

    A short body ends in a taken branch every few cycles. Fetching then only just keeps up with the multiply-adds, if
    the loop happens to lie well, and does not keep up where another thread shares the core's front end.
    """
    steps = min(MAX_STEPS, -(-BODY // max(1, products)))
    return steps if depth is None or depth >= 2 * steps else 1


def bandwidth(tile: MatmulTile, product: Product, panels: int, target: Target) -> tuple[float, float]:
    """Bytes a cycle at which a group of panels arrives in the first level of cache: for the first tile of rows, and for
    each later one. 0.0 means that the group is in that level already. The two are equal where all tiles of rows share
    the cost of fetching the group once."""
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
    """Bandwidth at which panels arrive that are read for the first time; `shared`: tiles of the panel before prefetch
    them; `prefetch`: a tile prefetches its own."""
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
