"""The Winograd transform of a convolution, and the number of tiles that its stages process at once: analytic estimates.

The transform determines the layout of the filters, so it is chosen with the algorithm; the plan chooses the block of
tiles.

Cycles of one core, stage by stage, for a block of `rows x columns` tiles:

    input     transform of each channel vector of each tile: straight-line code, its arithmetic and what it does not
              hide of its stores, or what it reads from afar
    product   `products`^2 products of tiles x channels x filters in register tiles; of finishing one, the next one's
              first steps hide most
    filters   the transformed filters stream by once a block, from the level of the memory where they stay; each tile
              prefetches a share of what comes next, so that most of the transfer hides after the products, if there
              are several
    tiles     the transformed tiles are written, each element to a place of its own, and read again for every group of
              panels of filters; the products of a group are written and read, from where they stay while its filters
              pass by
    output    transform, epilogue and stores of each filter vector of each tile

Counting the multiplications alone (Lavin and Gray 2016) would not see narrow layers, where the transforms weigh most,
nor small maps, where the filters do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil
from statistics import fmean, geometric_mean

from tilewright.algorithms.winograd.operators.convolution import ConvWinogradAttrs
from tilewright.algorithms.winograd.operators.correlation import MAX_POINTS, points, products, reach
from tilewright.algorithms.winograd.selection import Winograd
from tilewright.ir.dtype import i8, u8
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.notes import SharedLevel
from tilewright.ir.selection import Direct
from tilewright.plans.convolution import tiles as conv_tiles
from tilewright.plans.convolution.tiles import tile_steps
from tilewright.plans.framework.cost import Cost, from_memory, sharing, store_cycles, weights_level
from tilewright.plans.framework.symbolic import SYMBOLIC_IMAGES, maps_of
from tilewright.plans.framework.tiles import whole_step
from tilewright.plans.matmul import dots
from tilewright.plans.matmul.tiles import WIDE_TILE_REGISTERS
from tilewright.schedule.dot_intrinsics import Dot, find_dot
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

ENOUGH = 4
"""From this number of blocks of tiles on, a few threads share them well."""

SHORT_BLOCKS = 1.1
"""The factor on the time of two or three blocks, compared with more and smaller ones: threads must share the phases of
each, with barriers between. A single block is a small layer, which has no alternative."""

PART = 128
"""The approximate number of channels that are summed in registers: their filters stay in the first level of cache, and
errors grow with the length of sums."""

MAX_SHARE_RATIO = 2.0
"""The largest ratio, either way, between `PART` and the size of a part if all parts are equal. If it is larger, the
last part is smaller than the others."""

SHORT_COLUMNS = 8
MAX_TILES = 64

MAX_EVEN = 14
"""The largest number of rows of a register tile for which the last tiles have separate code
(`transform/loops/even.py`): where tiles are larger, a map of a few tiles takes as long as one that fills a register
tile."""

RUNS = range(4, MAX_TILES + 1, 4)
"""The numbers of consecutive tiles in a block that are tried."""


@dataclass(frozen=True, slots=True)
class WinogradProblem:
    """A convolution: `images` x (`height` x `width`) outputs, square window, the same stride of rows and columns. With
    a dilation of d each of an image's d * d submaps (`winograd/operators/convolution.py`) counts as an image.

    whole: images, height and width before that division; the same as the others if None. model: bytes of all weights of
    the model. A call finds its weights in the last cache only if all of them fit there, as the layers keep them:
    transformed ones are larger. other: the bytes of these that no transform enlarges, those of products and 1x1
    convolutions. pairs: the instruction for 8-bit codes, transformed to 16 bits; None for floats.
    """

    images: int
    height: int
    width: int
    channels: int
    filters: int
    window: int
    model: float = 0.0
    stride: int = 1
    whole: tuple[int, int, int] | None = None
    other: float = 0.0
    pairs: Dot | None = None

    @property
    def pixels(self) -> int:
        """The number of an image's outputs, of one channel."""
        return self.height * self.width

    @property
    def source_bytes(self) -> float:
        """The bytes of an element of the map, and of a weight."""
        return 4.0 if self.pairs is None else 1.0

    @property
    def transformed_bytes(self) -> float:
        """The bytes of an element of a transformed tile or filter."""
        return 4.0 if self.pairs is None else 2.0

    def away(self, size: int, target: Target) -> SharedLevel | None:
        """The level of memory from which weights come if layers like this one store `size` x `size` elements of each
        filter; None if they stay in a core's own cache."""
        growth = (size / self.window) ** 2
        if size != self.window:
            growth *= self.transformed_bytes / self.source_bytes
        return weights_level(self.other + (self.model - self.other) * growth, target)


def problems_of(
    attrs: ConvWinogradAttrs, out: Sequence[Expr], model: float, pairs: Dot | None = None
) -> tuple[WinogradProblem, ...]:
    """The problems by which a Winograd convolution is estimated, one for each number of images. `out` is the shape of
    its result, in channel blocks; `model`: the bytes of all weights that a call reads, which determine the level they
    come from; `pairs`: the instruction for codes."""
    images, separate = as_int(out[0]), attrs.dilation
    maps = [(ceil(h / separate), ceil(w / separate)) for h, w in maps_of(*out[2:4])]
    counts = SYMBOLIC_IMAGES if images is None else (images,)
    rest = (attrs.input_channels, attrs.channels, attrs.window, model, attrs.stride)
    return tuple(WinogradProblem(n * separate**2, h, w, *rest, pairs=pairs) for n in counts for h, w in maps)


@dataclass(frozen=True, slots=True)
class TileBlock:
    """A block of tiles that all stages process together: `rows` x `columns`, or with 0 columns `rows` consecutive tiles
    in row-major order of the map."""

    rows: int
    columns: int

    @property
    def count(self) -> int:
        """The number of tiles in the block."""
        return self.rows * (self.columns or 1)


@lru_cache(maxsize=256)
def ranked(
    shapes: tuple[WinogradProblem, ...], tiles: tuple[int, ...], target: Target
) -> tuple[tuple[float, Direct | Winograd], ...]:
    """(mean cycles for an image of the first size, algorithm) of the direct algorithm and of the transforms of `tiles`
    outputs per side, each with its best blocks of tiles; the best first. The layer may be called with any of `shapes`,
    which differ in images and sizes of maps."""
    choices = [
        Winograd(tile, width, panels)
        for tile in tiles
        for width in _widths(shapes[0], target)
        for panels in groups(ceil(shapes[0].filters / width))
    ]
    directly = mean([direct(s, target) for s in shapes], shapes)
    options: list[tuple[float, Direct | Winograd]] = [(directly, Direct())]
    options += [(blocked(shapes, choice, target)[0][0], choice) for choice in choices]
    return tuple(sorted(options, key=lambda option: option[0]))


def mean(cycles: Sequence[float], shapes: Sequence[WinogradProblem]) -> float:
    """The mean cycles for an image of the first size: the arithmetic mean over numbers of images, the geometric one
    over sizes of maps, so that twice the time on small maps balances half the time on large ones."""
    maps: dict[tuple[int, int], list[float]] = {}
    for each, shape in zip(cycles, shapes, strict=True):
        maps.setdefault((shape.height, shape.width), []).append(each / shape.images)
    ratios = [fmean(own) * shapes[0].pixels / (height * width) for (height, width), own in maps.items()]
    return ratios[0] if len(ratios) == 1 else geometric_mean(ratios)


def weight_of(shape: WinogradProblem, shapes: Sequence[WinogradProblem]) -> float:
    """The weight of `shape` among `shapes` in a sum of cycles, by which each pixel of any size counts equally."""
    return shapes[0].pixels / shape.pixels / shape.images / len(shapes)


@lru_cache(maxsize=4096)
def blocked(
    shapes: tuple[WinogradProblem, ...], choice: Winograd, target: Target
) -> tuple[tuple[float, TileBlock], ...]:
    """(mean cycles per image, block of tiles) of each block of tiles for the transform `choice`, the best first."""

    def cycles(block: TileBlock) -> float:
        rows = best_rows(block, shapes, choice, target)
        each = [
            cost(s, choice, block, target, rows).cycles * unshared_penalty(s, choice, block, target) for s in shapes
        ]
        return mean(each, shapes)

    most = max(s.images for s in shapes)
    maps = {(s.height, s.width): s for s in shapes}.values()
    options = [b for s in maps for b in blocks(s, choice.tile, most)]
    if len(maps) > 1:
        options += [TileBlock(count, 0) for count in RUNS]
    return tuple(sorted(((cycles(block), block) for block in dict.fromkeys(options)), key=lambda option: option[0]))


def _widths(shape: WinogradProblem, target: Target) -> tuple[int, ...]:
    lanes = target.lanes(4)
    if shape.filters <= lanes:
        return lanes, 2 * lanes
    # Vectors that are a quarter of a line: taller tiles of two want more pixels' values at once than there is room for.
    # Pairs of codes are multiplied in half the time, so that loads weigh more.
    narrow = 16 * lanes <= target.caches.line or shape.pairs is not None
    wide = target.registers >= WIDE_TILE_REGISTERS and narrow and shape.filters > 2 * lanes
    return (2 * lanes, 4 * lanes) if wide else (2 * lanes,)


def blocks(shape: WinogradProblem, tile: int, images: int) -> Iterator[TileBlock]:
    """The blocks of tiles to consider for maps like `shape`: whole tile rows of one or several images, or equal parts
    of a long row."""
    down, across = ceil(shape.height / tile), ceil(shape.width / tile)
    for parts in range(1, across + 1):
        columns = ceil(across / parts)
        if columns < SHORT_COLUMNS and parts > 1:
            return
        for rows in range(1, max(1, MAX_TILES // columns) + 1):
            if rows <= down * images:
                yield TileBlock(rows, columns)


def groups(panels: int) -> Iterator[int]:
    """The numbers of panels in a group that are tried: divisors, since a partial group would be computed in full."""
    return (n for n in range(1, panels + 1) if panels % n == 0)


def cost(shape: WinogradProblem, choice: Winograd, block: TileBlock, target: Target, rows: int | None = None) -> Cost:
    """The cost of the convolution for all images, with register tiles of `rows` rows (None: the best number): cycles of
    one core, plus the idle cycles of other cores if threads have unequal shares."""
    rows = rows or best_rows(block, (shape,), choice, target)
    block = divided(shape, choice, block, rows)
    blocks = times(shape, choice, block)
    shared = sharing(blocks, target) if one_block_a_thread(blocks, target) else 1.0
    last = last_block(shape, choice, block)
    if last == block:
        return block_cost(shape, choice, block, target, rows) * (blocks * shared)
    whole = block_cost(shape, choice, block, target, rows) * ((blocks - 1) * shared) if blocks > 1 else Cost()
    return whole + block_cost(shape, choice, last, target, rows) * shared


def divided(shape: WinogradProblem, choice: Winograd, block: TileBlock, rows: int) -> TileBlock:
    """The block of tiles that the loops really use: consecutive tiles are divided into blocks of about equal size, in
    whole register tiles of `rows` rows (`transform/loops/portions.py`)."""
    if block.columns:
        return block
    count = tiles_of(shape, choice)
    return TileBlock(ceil(ceil(count / rows) / ceil(count / block.rows)) * rows, 0)


def last_block(shape: WinogradProblem, choice: Winograd, block: TileBlock) -> TileBlock:
    """The last block of a map as far as it is computed: of consecutive tiles only those that exist."""
    left = 0 if block.columns else tiles_of(shape, choice) % block.rows
    return TileBlock(left, 0) if left else block


def tiles_of(shape: WinogradProblem, choice: Winograd) -> int:
    """The number of tiles of outputs of all images of `shape`, by the transform `choice`."""
    return shape.images * ceil(shape.height / choice.tile) * ceil(shape.width / choice.tile)


def times(shape: WinogradProblem, choice: Winograd, block: TileBlock) -> int:
    """The number of blocks of tiles, each of the size `block`, of all images of `shape`."""
    if not block.columns:
        return ceil(tiles_of(shape, choice) / block.rows)
    down, across = ceil(shape.height / choice.tile), ceil(shape.width / choice.tile)
    return ceil(shape.images * down / block.rows) * ceil(across / block.columns)


def one_block_a_thread(parts: int, target: Target) -> bool:
    """Whether each thread processes blocks of tiles by itself: if there are enough of them (`parts`) for a few threads,
    or equally many for each thread of a call. Otherwise threads share the phases of each block."""
    return parts >= ENOUGH or (target.threads > 1 and parts % target.threads == 0)


def unshared_penalty(shape: WinogradProblem, choice: Winograd, block: TileBlock, target: Target) -> float:
    """The factor on the estimated time: `SHORT_BLOCKS` if there are several blocks and threads cannot share one well,
    else 1.0."""
    blocks = times(shape, choice, block)
    return SHORT_BLOCKS if blocks > 1 and not one_block_a_thread(blocks, target) else 1.0


def block_cost(shape: WinogradProblem, choice: Winograd, block: TileBlock, target: Target, rows: int) -> Cost:
    """The estimate for one block of tiles, multiplied in register tiles of `rows` tiles; threads share its phases if
    they do not share blocks."""
    lanes, tile = target.lanes(4), choice.tile
    vectors, count, advance = choice.width // lanes, block.count, tile * shape.stride
    size = products(tile, shape.window, shape.stride)
    channels = ceil(shape.channels / lanes)
    panels = ceil(shape.filters / choice.width)
    depth, filters = channels * lanes, panels * choice.width
    even = not block.columns
    product = size * size * panels * product_cycles(count, rows, vectors, depth, target, shape.pairs, even=even)
    weights, tiles = (shape.transformed_bytes * size * size * depth * n for n in (filters, count))
    # The first block's filters come from where the last call left them, those of others from where they fit.
    hinted, blocks = rows < count, times(shape, choice, block)
    first, later = (_arrival(weights, target, away, hinted) for away in (shape.away(size, target), None))
    stream = (first + (blocks - 1) * later) / blocks
    passes = ceil(panels / choice.panels)
    outputs = 4.0 * size * size * choice.panels * choice.width * count
    passing = tiles + outputs + weights / passes
    if tiles > target.l1:
        stream += passes * tiles / _bandwidth(max(2 * tiles, passing), target)
    source = shape.source_bytes * depth * shape.height * shape.width * shape.stride**2
    read = shape.source_bytes * depth * count * advance**2 / _bandwidth(source, target)
    scattered = 0.0
    traffic = target.costs.traffic
    if tiles > traffic.reader_l2 * target.l2:
        scattered = tiles / (traffic.scattered_products * _bandwidth(2 * tiles, target))
    if outputs > traffic.reader_l2 * target.l2:
        scattered += 2.0 * passes * outputs / (traffic.scattered_products * _bandwidth(passing, target))
    length = reach(tile, shape.window, shape.stride)
    # Tiles beside each other share the columns that both read.
    own = advance if block.columns else length
    inward = 1.0 * count * channels * (size * size + size * own + length * own)
    outward = 1.0 * count * panels * vectors * (size * size + size * tile + 3 * tile * tile)
    costs = target.costs.arithmetic
    inward *= costs.transformed_inward
    if points(tile, shape.window, shape.stride) > MAX_POINTS:
        inward *= costs.fourier_inward
        outward *= costs.fourier_outward
    if not one_block_a_thread(times(shape, choice, block), target):
        each, after = (size * size, choice.panels) if passes < ENOUGH else (passes, passes)
        product, outward = product * sharing(each, target), outward * sharing(after, target)
        inward *= sharing(channels, target)
    value = costs.transformed_value + costs.transformed_store * store_cycles(target.vector_bits / 8, target)
    transforms = Cost(compute=(inward + outward) * value, memory=read, overhead=scattered)
    if shape.pairs is not None:
        # Pairs are multiplied in half the time of floats, which hides next to nothing of as large a stream: at 14 x 14
        # pixels 256 to 256 channels took 160 us with filters from the last level of cache, 280 with those from memory.
        return Cost(compute=product + stream) + transforms
    return Cost(compute=product, memory=stream) + transforms


@lru_cache(maxsize=4096)
def direct(shape: WinogradProblem, target: Target) -> float:
    """The estimated cycles of the convolution by the direct algorithm (`plans/convolution/tiles.py`)."""
    lanes, channels = target.lanes(4), shape.channels
    images, height, width = shape.whole or (shape.images, shape.height, shape.width)
    weights = shape.source_bytes * shape.window**2 * channels * shape.filters
    stream = weights / _bandwidth(weights, target, shape.away(shape.window, target))
    if shape.pairs is not None:
        dot = find_dot(u8, i8, target) or shape.pairs
        depth = shape.window**2 * ceil(channels / lanes) * lanes
        compute = height * dots.product_cycles(width, depth, shape.filters, dot, target)
        return Cost(compute=compute * images, memory=stream).cycles
    lines, columns = (reach(n, shape.window, shape.stride) for n in (height, width))
    layer = conv_tiles.DirectProblem(
        images=images,
        height=height,
        width=width,
        window=(shape.window, shape.window),
        stride=shape.stride,
        channels=channels,
        block=1 if channels % lanes else lanes,  # as the layout has it: channels that fill no blocks stay NCHW
        filters=shape.filters,
        source=4 * channels * lines * columns,
        copied=True,
    )
    compute, _ = conv_tiles.ranked((layer,), (False,), target)[0]
    return Cost(compute=compute * images, memory=stream).cycles


@lru_cache(maxsize=4096)
def product_cycles(
    count: int, rows: int, vectors: int, depth: int, target: Target, pairs: Dot | None = None, *, even: bool = False
) -> float:
    """The cycles of the products of a panel of `vectors` vectors with one element of `count` tiles, over `depth`
    channels (half as many steps for codes in `pairs`), with `rows` tiles in registers at once. The last register tile
    has the remaining tiles, or the last two are of equal size (`even`, see `transform/loops/even.py`)."""
    stored = target.costs.arithmetic.transformed_store * store_cycles(vectors * target.vector_bits / 8, target)

    steps = depth if pairs is None else depth / pairs.group * pairs.cost

    def tile(rows: int) -> float:
        return steps * tile_steps(rows, vectors, target) + stored * rows

    whole, rest = divmod(count, rows)
    if even and whole and 0 < rest < rows - 1:
        half = (rows + rest) // 2
        return (whole - 1) * tile(rows) + tile(half) + tile(rows + rest - half)
    return whole * tile(rows) + (tile(rest) if rest else 0.0)


def best_rows(block: TileBlock, shapes: Sequence[WinogradProblem], choice: Winograd, target: Target) -> int:
    """The rows of the register tiles with which the products of all blocks take the least time."""
    lanes = target.lanes(4)
    vectors, depth = choice.width // lanes, ceil(shapes[0].channels / lanes) * lanes

    def products(rows: int) -> float:
        total = 0.0
        for s in shapes:
            each = divided(s, choice, block, rows)
            counts = (each.count, times(s, choice, each) - 1), (last_block(s, choice, each).count, 1)
            for count, blocks in counts:
                cycles = product_cycles(count, rows, vectors, depth, target, s.pairs, even=not block.columns)
                total += weight_of(s, shapes) * blocks * cycles
        return total

    return min(heights(block, shapes, choice, target), key=products)


def fewest(block: TileBlock, shapes: Sequence[WinogradProblem], choice: Winograd) -> int:
    """The number of tiles in the smallest block of any map: less than `block.count` if the smallest map has fewer
    tiles."""
    return block.count if block.columns else min(block.count, *(tiles_of(s, choice) for s in shapes))


def heights(block: TileBlock, shapes: Sequence[WinogradProblem], choice: Winograd, target: Target) -> list[int]:
    """The numbers of rows that the register tiles of a block may have.

    Strips of columns allow any number. Where tiles of all lines follow each other, the number divides the tiles of a
    block, so that only the last block has code for each number of rows that may be left. It is also small enough that
    the smallest map has two full register tiles (the first prefetches the filters of the second), unless one register
    tile could hold any smaller map as well.
    """
    vectors = choice.width // target.lanes(4)
    rows = range(1, min(most_rows(block.count, vectors, target), block.count) + 1)
    if block.columns:
        return list(rows)
    whole = [r for r in rows if block.count % r == 0 and r <= MAX_EVEN]
    least = min(tiles_of(s, choice) for s in shapes)
    return [r for r in whole if least >= 2 * r or all(most_rows(n, vectors, target) >= n for n in range(1, r))]


def part_of(blocks: int, lanes: int) -> int:
    """The number of blocks of channels, of `blocks` blocks of `lanes`, whose products are summed in registers before
    they are added in memory: an equal share of all, of about `PART` channels. If no equal share is within
    `MAX_SHARE_RATIO` of it, as with a prime number of blocks, the last part is smaller."""

    def outer(n: int) -> float:
        return max(n * lanes, PART) / min(n * lanes, PART)

    best = min((n for n in range(1, blocks + 1) if blocks % n == 0), key=lambda n: (outer(n), n))
    if blocks * lanes <= PART or outer(best) <= MAX_SHARE_RATIO:
        return best
    return ceil(blocks / ceil(blocks * lanes / PART))


def most_rows(count: int, vectors: int, target: Target) -> int:
    """The largest number of rows of a register tile, for a panel of `vectors` vectors: registers hold accumulators, one
    row of the panel and broadcast values; constants of the transforms also occupy some across the products. One tile
    does not take all of `count` rows if two are large enough, for they prefetch each other's filters."""
    costs = target.costs.arithmetic
    most = max(1, (target.registers - vectors - costs.constant_registers) // vectors)
    if target.isa.reads_first:
        most = max(1, *(n for n in range(1, most + 1) if whole_step(n, vectors) <= target.registers))
    return min(most, max(ceil(count / 2), ceil(costs.accumulators / vectors)))


def _arrival(weights: float, target: Target, away: SharedLevel | None, hinted: bool) -> float:
    """The cycles in which `weights` bytes of filters arrive at the core. `hinted`: register tiles prefetch them for
    each other."""
    rate = _bandwidth(weights, target, away)
    lines = weights / target.caches.line if hinted and rate < target.l2_bandwidth else 0.0
    return max(weights / rate, lines * target.costs.prefetching.hinted_line)


def _bandwidth(size: float, target: Target, away: SharedLevel | None = None) -> float:
    if away is None and size <= target.costs.traffic.reader_l2 * target.l2:
        return target.l2_bandwidth
    return target.memory_bandwidth if away == "memory" or from_memory(size, target) else target.l3_bandwidth
