"""How a direct convolution is blocked, by an analytic estimate: register tile, strips, blocks of input channels.

    compute   steps of the register tiles: multiply-adds, loads or latency, whichever is longest; the last tile of a
              line (of a strip, if pixels are flat) may have fewer rows, the last panel idle lanes
    memory    reads of each tile from beyond the first level (weights and input that do not stay there), reads of
              all weights by each strip, and one read of the input
    overhead  starting, finishing and accumulating tiles; copying the input where it is padded or sampled

Stages overlap as `plans/framework/cost.py` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil, prod

from tilewright.ir.expr import Expr, as_int
from tilewright.plans.framework.cost import SYMBOL, Cost, bandwidth, sharing
from tilewright.plans.framework.symbolic import sides_of
from tilewright.plans.framework.tiles import whole_step
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

MAX_ROWS = 14
MAX_FLAT_ROWS = 8
"""The largest number of rows in a flat tile: each needs a register for its address."""
MAX_FLAT_PIXELS = 1024
ENOUGH_STRIPS = 8
"""A number of strips, of all images, that a few threads share well."""
SYMBOLIC_SIZE = 28
"""The height or width that is assumed for symbolic ones."""
COPIED_LINES = 8
"""The largest number of lines of a symbolic map that are padded together: eight lines under a window of three read ten
lines of the input; one by one they read 24."""
PARTS = (2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160)
"""The numbers of strips that are considered."""
LISTS = 32
"""The number of problems whose blockings are remembered: as many as a network has convolutions that are blocked so.
Each has some 200, and collections of garbage, those at a process's end as well, walk over all that are left."""
WHOLE = 1 << 20
"""A value that means all: a strip of all pixels, a block of all channels."""


def side(extent: Expr) -> int:
    """A number for a height or width of a map: its value or, if it is symbolic, the middle one of its likely values."""
    known = as_int(extent)
    if known is not None:
        return known or SYMBOLIC_SIZE
    values = sorted(sides_of(extent))
    return values[len(values) // 2]


def share_of(sides: Iterable[Expr]) -> float:
    """The factor by which this module's estimates are multiplied to compare them with other plans' estimates: these
    count each symbolic one of `sides`, the heights and widths, as `SYMBOL`, this module as `side` of it."""
    return prod(SYMBOL / side(d) for d in sides if as_int(d) is None)


@dataclass(frozen=True, slots=True)
class DirectProblem:
    """A convolution of `images` to maps of `height` x `width`.

    window       height and width of the window
    stride       of columns
    channels     input channels, `block` of them in a block
    filters      output channels
    source       bytes of one image's input
    copied       whether the input is padded, sampled or converted first
    known        whether the size is constant, rather than an assumption for symbols
    """

    images: int
    height: int
    width: int
    window: tuple[int, int]
    stride: int
    channels: int
    block: int
    filters: int
    source: int
    copied: bool
    known: bool = True

    @property
    def steps(self) -> int:
        """The multiply-adds per output element: input channels times elements of the window."""
        return self.channels * self.window[0] * self.window[1]

    @property
    def is_pixel(self) -> bool:
        return self.window == (1, 1)


@dataclass(frozen=True, slots=True)
class Blocking:
    """A register tile of `rows` pixels x `width` filters. A `strip` of lines (of pixels if `flat`) is used for all
    panels in turn; products of `channels` blocks of input channels are summed before those of the next blocks."""

    rows: int
    width: int
    strip: int = WHOLE
    channels: int = WHOLE
    flat: bool = False


@lru_cache(maxsize=4096)
def ranked(
    shapes: tuple[DirectProblem, ...], flats: tuple[bool, ...], target: Target
) -> tuple[tuple[float, Blocking], ...]:
    """The best blocking for each width of panels and each value in `flats`, with its estimated cycles per image, the
    best first.

    `shapes` are the problems that a layer is called with.
    """
    results = []
    for vectors in range(1, 5):
        width = vectors * target.lanes(4)
        if vectors > 1 and width - target.lanes(4) >= shapes[0].filters:
            break
        for flat in flats:
            cost, blocking = blockings(shapes, width, flat, target)[0]
            results.append((cost.cycles, blocking))
    return tuple(sorted(results, key=lambda c: (c[0], -c[1].width)))


@lru_cache(maxsize=LISTS)
def blockings(shapes: tuple[DirectProblem, ...], width: int, flat: bool, target: Target) -> list[tuple[Cost, Blocking]]:
    """All blockings with panels of `width` filters, with their costs per image (the mean over `shapes`), the best
    first. With `flat`, lines of the image are joined to one."""
    results = []
    single = [replace(s, images=1) for s in shapes]
    kinds = list(dict.fromkeys(single))  # mostly one: the shapes differ in the number of images alone
    kind = [kinds.index(one) for one in single]
    for alike in _legal(shapes[0], width, flat, target):
        tilings = [_tiling(one, alike[0], target) for one in kinds]
        for blocking in alike:
            images = [_an_image(one, blocking, at, target) for one, at in zip(kinds, tilings, strict=True)]
            costs = [
                images[k] * (_shared(s, tilings[k], target) / s.images / len(shapes))
                for s, k in zip(shapes, kind, strict=True)
            ]
            total = costs[0]
            for cost in costs[1:]:
                total = total + cost
            results.append((total, blocking))
    return sorted(results, key=lambda c: c[0].cycles)


def _legal(shape: DirectProblem, width: int, flat: bool, target: Target) -> Iterator[list[Blocking]]:
    """The blockings with panels of `width` filters whose tiles fit the registers, in lists whose members differ only in
    how many blocks of channels are summed at once. With `flat`, lines of the image are joined to one."""
    vectors = max(1, width // target.lanes(4))
    most = shape.height * shape.width if flat else shape.width
    blocks = _channel_blocks(shape, width, target)
    for rows in range(1, min(most, MAX_ROWS if shape.is_pixel or not flat else MAX_FLAT_ROWS) + 1):
        # Steps over NCHW channels do not come in a stream: with no register to spare LLVM's schedule spills.
        spare = 0 if shape.block > 1 else 1
        if rows > 1 and registers(rows, vectors, target) + spare > target.registers:
            return
        for strip in _strips(shape, rows, flat, target):
            yield [Blocking(rows, width, strip, channels, flat) for channels in blocks]


def _strips(shape: DirectProblem, rows: int, flat: bool, target: Target) -> list[int]:
    """Candidate numbers of lines (of pixels if `flat`) of a strip for tiles of `rows` pixels, about equal parts of a
    map; if the input is copied, only one strip or enough for a few threads. For an unknown number of lines a strip is
    one line, or a few if they are copied, so that overlapping windows share the copy."""
    if not flat and not shape.known:
        return [_short_lines(shape, target) if shape.copied else 1]
    whole = shape.height * shape.width if flat else shape.height
    if flat and not shape.is_pixel:
        return [WHOLE]
    results = [WHOLE if shape.known or not flat else ceil(whole / rows) * rows]
    for parts in PARTS:
        strip = ceil(whole / parts)
        if flat:
            # What is copied first is copied line by line.
            unit = shape.width if shape.copied else rows
            strip = ceil(strip / unit) * unit
            if strip < 8 * rows:
                break
        if parts > whole or strip in results:
            break
        if not shape.copied or shape.images * ceil(whole / strip) >= ENOUGH_STRIPS:
            results.append(strip)
    return results


def _short_lines(shape: DirectProblem, target: Target) -> int:
    """For maps of unknown height, the number of lines of a strip whose input is copied together: at most
    `COPIED_LINES`, with data in a quarter of the second-level cache, and with enough strips for a few threads."""
    line = 4 * shape.channels * shape.stride * ((shape.width - 1) * shape.stride + shape.window[1])
    return max(1, min(COPIED_LINES, ceil(shape.height / ENOUGH_STRIPS), target.l2 // 4 // line))


def _channel_blocks(shape: DirectProblem, width: int, target: Target) -> list[int]:
    """The numbers of channel blocks to sum at once that are considered for tiles of `width` columns: all, or as many as
    have weights of the first level's size, or of a half or a quarter of it."""
    count = max(1, shape.channels // shape.block)
    each = 4 * shape.block * shape.window[0] * shape.window[1] * width
    results = [WHOLE]
    for share in (1.0, 0.5, 0.25):
        step = max((d for d in range(1, count) if count % d == 0 and d * each <= share * target.l1), default=0)
        if step and step not in results:
            results.append(step)
    return results


def estimate(shape: DirectProblem, blocking: Blocking, target: Target) -> Cost:
    """The estimated cycles of all images of the direct convolution `shape` with `blocking`: those of one core, times
    the factor by which threads with unequal shares wait."""
    tiling = _tiling(shape, blocking, target)
    return _an_image(shape, blocking, tiling, target) * _shared(shape, tiling, target)


@dataclass(frozen=True, slots=True)
class _Tiling:
    """The tiles of one image by a blocking, and their traffic, independent of its blocks of channels.

    panels    the number of panels of filters
    strips    the number of strips of the map
    tiles     register tiles as (rows, how many)
    number    the number of register tiles
    step      cycles of one step of the reduction in all tiles
    panel     bytes of the weights of a panel
    strip     bytes of the input of a strip
    window    bytes of the input under a tile
    level     bytes a cycle of the level that a strip is read from
    pixels    a factor on the time of reading pixels
    memory    cycles in which all strips read all weights
    source    cycles in which the input arrives
    copy      cycles of copying the input
    """

    panels: int
    strips: int
    tiles: list[tuple[int, int]]
    number: int
    step: float
    panel: int
    strip: float
    window: int
    level: float
    pixels: float
    memory: float
    source: float
    copy: float


def _tiling(shape: DirectProblem, blocking: Blocking, target: Target) -> _Tiling:
    rows, width = blocking.rows, blocking.width
    vectors = max(1, width // target.lanes(4))
    strips, tiles, lines = _tiles(shape, blocking)
    panels, number = ceil(shape.filters / width), sum(n for _, n in tiles)
    retained, l1 = target.costs.traffic, target.l1
    (kh, kw), itemsize, pixel = shape.window, 4, shape.is_pixel
    panel = itemsize * shape.steps * width
    strip = shape.source / strips * (1.0 if pixel else 1.0 + (kh - 1) / max(1.0, lines * shape.stride))
    # While a strip of pixels is in use the next one arrives in the second level, and the last one has not left it.
    passing = pixel and strips > 1 and strip + panel > retained.resident_l1 * l1
    held = strip * (3.0 if passing else 1.0)
    # Of many channels the pixels of a tile and the narrowest panel do not stay there together.
    pixels = shape.channels * kh * ((MAX_ROWS - 1) * shape.stride + kw)
    is_long = itemsize * (pixels + shape.steps * target.lanes(4)) > retained.resident_l1 * l1
    total = float(panels * panel)
    copy = 0.0
    if shape.copied:
        copied = shape.source if strips == 1 else strips * strip
        copy = 2.0 * copied / bandwidth(max(copied / strips, l1), target)
    return _Tiling(
        panels,
        strips,
        tiles,
        number,
        sum(n * tile_steps(r, vectors, target, operands=True) for r, n in tiles),
        panel,
        strip,
        itemsize * shape.channels * kh * ((rows - 1) * shape.stride + kw),
        bandwidth(held + panel, target),
        retained.passing_pixels if is_long else retained.followed_pixels,
        strips * total / bandwidth(total + held, target),
        shape.source / bandwidth(max(shape.source, target.l2), target),
        copy,
    )


def _shared(shape: DirectProblem, tiling: _Tiling, target: Target) -> float:
    """The factor from the time of one image on one core to that of all images, where threads share strips (and panels,
    unless a copied strip serves all of them)."""
    # A copied strip serves all its panels.
    once = shape.copied and (tiling.strips > 1 or shape.images >= ENOUGH_STRIPS)
    return shape.images * sharing(shape.images * tiling.strips * (1 if once else tiling.panels), target)


def _an_image(shape: DirectProblem, blocking: Blocking, tiling: _Tiling, target: Target) -> Cost:
    """The estimated cost of one image of `shape` on one core, computed with `blocking`, whose tiles are `tiling`."""
    vectors = max(1, blocking.width // target.lanes(4))
    panels, panel, number = tiling.panels, tiling.panel, tiling.number
    count = max(1, shape.channels // shape.block)
    parts = ceil(count / min(count, blocking.channels))
    costs, retained, l1 = target.costs.arithmetic, target.costs.traffic, target.l1
    each, beside = costs.convolution_vector, costs.convolution_tile
    ends = 0.0
    for rows, n in tiling.tiles:
        ends += n * (each * rows * vectors + beside + (parts - 1 and parts * (3.0 * rows * vectors + 8.0)))
    # What stays in the first level: the weights of a block of channels, and the lines under the window.
    kh, kw = shape.window
    weights = panel / parts
    line = 4 * shape.channels / parts * kh * ((shape.width - 1) * shape.stride + kw)
    memory = 0.0
    if weights > retained.panel_l1 * l1:
        memory += retained.followed_weights * number * panel / bandwidth(panel, target)
    stays = not shape.is_pixel and weights + line <= retained.resident_l1 * l1
    read = tiling.strips * tiling.strip if stays else number * tiling.window
    memory += tiling.pixels * read / tiling.level
    memory *= panels
    memory += tiling.memory
    memory += tiling.source
    return Cost(compute=shape.steps * panels * tiling.step, memory=memory, overhead=panels * ends + tiling.copy)


def _tiles(shape: DirectProblem, blocking: Blocking) -> tuple[int, list[tuple[int, int]], float]:
    """(strips, register tiles as (rows, how many), lines of a strip) of one image of `shape` computed with
    `blocking`."""
    pixels = shape.height * shape.width
    if not blocking.flat:
        lines = min(blocking.strip, shape.height)
        whole, rest = divmod(shape.width, blocking.rows)
        tiles = [(blocking.rows, whole * shape.height), *([(rest, shape.height)] if rest else [])]
        return ceil(shape.height / lines), tiles, float(lines)
    strip = min(blocking.strip, pixels)
    strips = ceil(pixels / strip)
    whole, rest = divmod(pixels, blocking.rows)
    # The tail of the last of several strips is found by trying.
    extra = 2 if rest and strips > 1 else 0
    tiles = [(blocking.rows, whole + extra), *([(rest, 1)] if rest else [])]
    return strips, tiles, strip / shape.width


def registers(rows: int, vectors: int, target: Target) -> int:
    """The vector registers of a tile of `rows` pixels x `vectors` of filters: accumulators, the operands of the shorter
    side, and one of the longer side. Targets that read all of a step's operands before its products hold both sides and
    a product."""
    if target.isa.reads_first:
        return whole_step(rows, vectors)
    return rows * vectors + min(rows, vectors) + 1


def tile_steps(rows: int, vectors: int, target: Target, *, operands: bool = False) -> float:
    """Cycles of one step of the reduction in a tile of `rows` x `vectors`.

    `operands`: with one vector, a pixel is read by the multiply-add itself, without a load, if instructions have memory
    operands.
    """
    loads = rows + vectors
    ports = max(1.0, target.l1_bandwidth / (target.vector_bits / 8))
    costs = target.costs.arithmetic
    started, loaded = rows * vectors / target.fma_per_cycle, loads / max(costs.loads_per_cycle, ports)
    beside = costs.load_beside_convolution * loads
    if operands and vectors == 1:
        beside = costs.load_beside_convolution * vectors + costs.operand_beside_convolution * rows
    cycles = max(started, loaded, costs.fma_latency_scheduled) + beside
    return cycles * (costs.full_registers if registers(rows, vectors, target) >= target.registers else 1.0)
