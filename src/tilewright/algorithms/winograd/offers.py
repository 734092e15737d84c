"""Offers of Winograd's and Fourier's transforms that options allow, with estimated cycles per image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

from tilewright.algorithms.winograd.operators.correlation import points, products
from tilewright.algorithms.winograd.operators.numbers import CODES_TILE, CODES_WINDOW, MAX_CHANNELS
from tilewright.algorithms.winograd.plan.by_size import with_pairs
from tilewright.algorithms.winograd.plan.errors import largest_error
from tilewright.algorithms.winograd.plan.tiles import WinogradProblem, ranked
from tilewright.algorithms.winograd.selection import Winograd
from tilewright.ir.dtype import i8, i16, u8
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import Node
from tilewright.ir.selection import Algorithm, Direct
from tilewright.ops.conv import ConvAttrs
from tilewright.plans.framework.alone import alone_if_small
from tilewright.plans.framework.cost import Cost, fma_cycles, write_cycles
from tilewright.plans.framework.symbolic import SYMBOLIC_IMAGES, maps_of, small_maps_of
from tilewright.schedule.dot_intrinsics import find_dot, find_tile_dot, has_pairs
from tilewright.targets.target import Target
from tilewright.transform.algorithm import Option
from tilewright.transform.graph.bounds import bounds, codes_of, holds, surrounds
from tilewright.transform.graph.options import ERRORS
from tilewright.transform.select.nchw import conversion
from tilewright.transform.select.surroundings import Surroundings, has_transforms

Maps = Callable[[Expr, Expr], tuple[tuple[int, int], ...]]
"""A function from a symbolic height and width to the sizes of maps at which they are estimated."""

MAX_INPUTS = {"auto": 8, "exact": 0, "f2": 4, "f4": 6, "f6": 8, "strassen": 8}
"""For each setting of `fast` the largest number of inputs of a tile per side (with a stride, of its largest phase)."""

SIZES = (4, 6, 7, 8)
"""The numbers of inputs of a tile per side, for stride 1: F(2,3), F(4,3), F(5,3), F(6,3), but also F(2,5), F(3,5),
F(4,5) and F(2,7), whose matrices come from the same points. F(3,3) is never much better than its neighbours, and was
slower where its filters come from memory (512 channels, 7 x 7)."""

STRIDED = (3, 4, 5, 6)
"""The sizes of tiles that are tried for strides above 1, as the number of inputs per side of the largest phase of a
tile. For a window of 3 and a stride of 2 these are F(2,2) to F(5,2) and, for the phase of one tap, the identity.
Outputs of 4x4 take 5.06 products each; outputs of 7x7 4.59, and transformed filters of 2.8 times the size."""

FOURIER = (12, 16, 20, 24)
"""The numbers of inputs of a tile per side that all settings but "exact" allow for large windows of stride 1: Fourier's
transform loses no digits."""

WORTH = 1.03
"""The least gain for which a transform is used: it loses digits, and its filters take more memory."""

WORTH_OF_CODES = 1.1
"""The least gain for which a transform of codes is used. It is exact, but its filters, of eight times as many bytes,
have to be reloaded if other work fills the last level of cache. AZ6's first layer, of 17 channels, was estimated 1.07
times as fast and took 1.2 times as long there (Zen 5, 2026-11-30)."""

LARGE = 5
"""The least number of taps per side of a window for which Fourier's transform is tried."""


def with_transforms(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """The options of a convolution with windows larger than 1x1, extended by its transforms; the direct algorithm gets
    an estimate too. All include changes of layout, and transforming filters that are computed in each call."""
    w = node.inputs[1]
    assert w is not None
    if [as_int(d) for d in w.shape[2:]] == [1, 1]:
        return options
    if node.output.dtype.is_int:
        return [*options, *of_codes(enclosing, node)]
    ways = [(c if isinstance(way, Direct) else c * WORTH, way) for c, way in windows(enclosing, node)]
    others = [option for option in options if not isinstance(option[1], Direct)]
    options = with_layouts(enclosing, node, ways)
    if w not in enclosing.fixed:
        options = [(cycles + filters(enclosing, node, choice), choice) for cycles, choice in options]
    return [*options, *others]


def of_codes(enclosing: Surroundings, node: Node) -> list[Option]:
    """The options for a convolution of 8-bit codes with known weights: the direct algorithm and exact transforms. [] if
    the target multiplies codes much faster, by instructions for matrices or for pairs of rows."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    target, producer = enclosing.target, enclosing.producers.get
    pairs, conv = find_dot(i16, i16, target), node.of(ConvAttrs)
    channels, *window = (as_int(d) or 0 for d in w.shape[1:])
    limits = bounds(producer, w)
    if pairs is None or w not in enclosing.fixed or has_pairs(target) or find_tile_dot(u8, i8, target) is not None:
        return []
    if limits is None or not holds(i8, limits) or codes_of(producer, x) is None:
        return []
    if window != [CODES_WINDOW] * 2 or conv.strides[0] > 1 or not enclosing.block <= channels <= MAX_CHANNELS:
        return []
    if any(conv.pads) and not surrounds(producer, x):
        return []
    shapes = tuple(replace(shape, pairs=pairs) for shape in transformed(enclosing, node))
    images = as_int(node.output.shape[0])
    parts = conv.dilations[0] ** 2
    if not shapes:
        return []
    rank: Callable[[Target], Sequence[Option]] = partial(ranked, shapes, (CODES_TILE,))
    result = rank(target)
    if images is not None:
        result = alone_if_small(rank, lambda option: option[0] * parts * images, target)
    return [(c * parts if isinstance(way, Direct) else c * parts * WORTH_OF_CODES, way) for c, way in result]


def windows(enclosing: Surroundings, node: Node) -> list[Option]:
    """(cycles per image, algorithm) of the direct algorithm and of all transforms that are allowed, for one thread if
    there is little work."""
    shapes = transformed(enclosing, node)
    if not shapes:
        return [(0.0, Direct())]
    setting, first = enclosing.fast(node), shapes[0]
    allowed = tiles(first.window, first.stride, setting)
    sizes = within(ERRORS[setting], allowed, first.window, first.stride, first.channels, enclosing.block)
    images = as_int(node.output.shape[0])
    # The pixels that one tap of a dilated window meets are images of their own.
    parts = node.of(ConvAttrs).dilations[0] ** 2
    if images is None:
        return [(cycles * parts, way) for cycles, way in ranked(shapes, sizes, enclosing.target)]
    rank: Callable[[Target], Sequence[Option]] = partial(ranked, shapes, sizes)
    if node.of(ConvAttrs).dilations == (1, 1) and node.inputs[1] in enclosing.fixed:
        small = transformed(enclosing, node, small_maps_of)
        rank = partial(with_pairs, shapes, small, sizes, directly=first.channels % enclosing.block == 0)
    result = alone_if_small(rank, lambda option: option[0] * parts * images, enclosing.target)
    return [(cycles * parts, way) for cycles, way in result]


def with_layouts(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """The options with the cost of changing the input's layout. If channels fill no blocks, a direct convolution reads
    NCHW and a transform reads blocks, so that one of the two needs a change."""
    x = node.inputs[0]
    assert x is not None
    channels = as_int(x.shape[1]) or 0
    if channels % enclosing.block == 0:
        return options
    changed, blocked = conversion(x, enclosing.target), x in enclosing.blocked
    return [(cycles + changed * (blocked == isinstance(way, Direct)), way) for cycles, way in options]


def filters(enclosing: Surroundings, node: Node, choice: Algorithm) -> float:
    """The cycles per image of transforming the filters, if they are computed at each call: in double precision, first
    the columns and then the rows of a window."""
    w, images = node.inputs[1], as_int(node.output.shape[0])
    if not isinstance(choice, Winograd) or w is None:
        return 0.0
    count, other, window, _ = (as_int(d) or 0 for d in w.shape)
    size = products(choice.tile, window, node.of(ConvAttrs).strides[0])
    each = size * window * window + size * size * window
    work = Cost(
        compute=fma_cycles(count * other * each, enclosing.target.lanes(8), enclosing.target),
        memory=write_cycles(4 * count * other * size * size, enclosing.target.l2, enclosing.target),
    )
    return work.cycles / (images or max(SYMBOLIC_IMAGES))


def transformed(enclosing: Surroundings, node: Node, maps: Maps = maps_of) -> tuple[WinogradProblem, ...]:
    """The problems by which a convolution is estimated for transforms, one for each number of images and size of maps;
    () if no transform fits."""
    w = node.inputs[1]
    assert w is not None
    filters, channels, window, _ = (as_int(d) or 0 for d in w.shape)
    images, _, *sides = node.output.shape
    if any(as_int(d) == 0 for d in (images, *sides)) or not has_transforms(node):
        return ()
    conv = node.of(ConvAttrs)
    stride, separate = conv.strides[0], conv.dilations[0]
    return tuple(
        WinogradProblem(
            n * separate**2,
            ceil(height / separate),
            ceil(width / separate),
            channels,
            filters,
            window,
            enclosing.weight_bytes,
            stride,
            (n, height, width),
            enclosing.other_bytes,
        )
        for n in (SYMBOLIC_IMAGES if as_int(images) is None else (as_int(images) or 1,))
        for height, width in maps(*sides)
    )


def tiles(window: int, stride: int, setting: str) -> tuple[int, ...]:
    """The numbers of outputs of a tile per side that a setting of `fast` allows for filters with `window` taps per side
    at this stride."""
    return tuple(_tiles(window, stride, setting))


def _tiles(window: int, stride: int, setting: str) -> Iterator[int]:
    sizes = [n for n in (SIZES if stride == 1 else STRIDED) if n <= MAX_INPUTS[setting]]
    if sizes and stride == 1 and window >= LARGE:
        sizes += FOURIER
    for n in sizes:
        outputs = n - points(1, window, stride) + 1
        if outputs > 1:
            yield outputs


def within(
    bound: float, sizes: tuple[int, ...], window: int, stride: int, channels: int, lanes: int
) -> tuple[int, ...]:
    """The tiles of `sizes`, as outputs per side, for which the largest error of a convolution by this `window`,
    `stride` and number of `channels`, in blocks of `lanes`, is expected to be at most `bound`."""
    return tuple(m for m in sizes if largest_error(m, window, stride, channels, lanes) <= bound)
