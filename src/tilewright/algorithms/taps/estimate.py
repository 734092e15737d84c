"""Offers of convolutions of few filters by their taps (`layout.py`), with estimated cycles per image.

The width of a register tile is whole vectors of filters. With two filters, a vector of sixteen has fourteen zeros,
while the taps of their windows fill any tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, prod

from tilewright.algorithms.taps.products import tap_products, tap_sums
from tilewright.algorithms.taps.selection import Taps
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Direct
from tilewright.ops.conv import ConvAttrs
from tilewright.plans.convolution.pixels import panels
from tilewright.plans.convolution.tiles import side
from tilewright.plans.framework.alone import alone_if_small
from tilewright.plans.framework.cost import Cost, fetch_cycles, load_cycles, write_cycles
from tilewright.plans.idioms.reducing import WINDOW
from tilewright.targets.target import Target
from tilewright.transform.algorithm import Option
from tilewright.transform.problems import blockings_of, pixel_problem
from tilewright.transform.select.nchw import conversion
from tilewright.transform.select.surroundings import Surroundings

MAX_MAPS = 4
"""The largest memory of the taps' maps, relative to the input, if they exceed the second level of cache."""


def with_taps(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """`options`, the ways to compute the convolution `node`, with the ways by taps (products with each tap of the
    filters, then sums) added if the filters fill no block. All estimates then include changes of layout, as the result
    of such a way is NCHW."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    filters, channels, *window = (as_int(d) or 0 for d in w.shape)
    if filters >= enclosing.block or window == [1, 1]:
        return options
    block = enclosing.block if channels % enclosing.block == 0 else 1
    changed, blocked = conversion(x, enclosing.target), x in enclosing.blocked
    after, needed = conversion(node.output, enclosing.target), enclosing.row_major_use.get(node.output)
    results: list[Option] = []
    for cycles, way in options:
        if cycles == 0.0 and isinstance(way, Direct):  # the only one so far
            cycles = blockings_of(node, filters, channels, block, enclosing.target)[1][0][0]
        before = changed if block > 1 and not blocked else 0.0
        results.append((cycles + before + (after if needed else 0.0), way))
    for cycles, choice in estimated(node, block, enclosing.target):
        wanted = block > 1 and not choice.nchw
        before = changed if wanted != blocked else 0.0
        results.append((cycles + before + (after if needed is None else 0.0), choice))
    return results


def estimated(node: Node, block: int, target: Target) -> Sequence[tuple[float, Taps]]:
    """(cycles per image, setting) of each setting, for one thread if there is little work; the best first."""
    images = as_int(node.output.shape[0])

    def rank(target: Target) -> Sequence[tuple[float, Taps]]:
        ways = [(estimate(node, choice, block, target), choice) for choice in choices(node, target)]
        return sorted(ways, key=lambda way: way[0])

    return rank(target) if images is None else alone_if_small(rank, lambda way: way[0] * images, target)


def choices(node: Node, target: Target) -> Iterator[Taps]:
    """The settings to consider: those whose maps of taps take not too much memory, and whose sums have few enough taps
    to be unrolled."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    kh, kw = (as_int(d) or 0 for d in w.shape[2:])
    room = max(MAX_MAPS * image_bytes(x), target.l2)
    if 1 < kh * kw <= WINDOW and image_bytes(tap_products(node, True).output) <= room:
        yield from (Taps(1, 1), Taps(1, 0))
    if kh > 1 and 1 < kw <= WINDOW and image_bytes(tap_products(node, False).output) <= room:
        yield Taps(0, 0)


def image_bytes(value: Value) -> int:
    """The bytes of a value's maps for one image."""
    return 4 * (as_int(value.shape[1]) or 0) * prod(side(d) for d in value.shape[2:])


def estimate(node: Node, choice: Taps, block: int, target: Target) -> float:
    """The cycles for an image: of the convolution that multiplies all taps, and of the sums over the taps."""
    is_long = tap_products(node, bool(choice.whole))
    filters, channels = (
        (as_int(d) or 0 for d in is_long.inputs[1].shape[:2]) if is_long.inputs[1] is not None else (0, 0)
    )
    if choice.nchw:
        created = panels(pixel_problem(is_long), target)[0][0]
    else:
        created = blockings_of(is_long, filters, channels, block, target)[1][0][0] + conversion(is_long.output, target)
    return created + summed(node, is_long, bool(choice.whole), target).cycles


def summed(node: Node, several: Node, whole: bool, target: Target) -> Cost:
    """The cost of summing an image's maps of taps, the result of `several`, over all taps of the window (`whole`) or
    over one direction: each tap loads a vector, and the maps come from the level of cache that holds them."""
    (lines, columns), taps = map(side, node.output.shape[2:]), prod(tap_sums(node, whole).window)
    filters, lanes = as_int(node.output.shape[1]) or 0, target.lanes(4)
    loaded = filters * taps * lines * ceil(columns / lanes) * node.of(ConvAttrs).strides[1] * 4 * lanes
    maps, result = image_bytes(several.output), image_bytes(node.output)
    memory = fetch_cycles(maps, maps + result, target) + write_cycles(result, maps + result, target)
    return Cost(load=load_cycles(loaded, target), memory=memory)
