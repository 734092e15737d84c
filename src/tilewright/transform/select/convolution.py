"""The algorithm of a convolution of one group: direct, Winograd's or Fourier's transforms, products over NCHW maps, or
one of a folder (`tilewright/algorithms/`). All are estimated in cycles an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil

from tilewright.ir.dtype import bf16
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Algorithm, Direct, Matrices, Pixels, SplitMatrices, Winograd
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.lowered.correlation import points, products
from tilewright.ops.lowered.split import count_of
from tilewright.ops.lowered.tiles import ConvTilesAttrs
from tilewright.plans.convolution.pixels import panels
from tilewright.plans.convolution.tile_dots import convolution_cycles, crosses_lines
from tilewright.plans.framework.alone import alone_if_small
from tilewright.plans.framework.cost import Cost, bandwidth, fma_cycles, write_cycles
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.plans.framework.symbolic import SYMBOLIC_IMAGES, maps_of, small_maps_of
from tilewright.plans.matmul.split import pieces_cost, terms_within
from tilewright.plans.winograd.by_size import with_pairs
from tilewright.plans.winograd.errors import largest_error
from tilewright.plans.winograd.tiles import WinogradProblem, ranked
from tilewright.schedule.dot_intrinsics import find_tile_dot
from tilewright.targets.target import Target
from tilewright.transform.algorithm import Option, offered
from tilewright.transform.problems import blockings_of, is_pointwise, pixel_problem, sampling
from tilewright.transform.select.nchw import conversion
from tilewright.transform.select.surroundings import Surroundings, has_transforms

Maps = Callable[[Expr, Expr], tuple[tuple[int, int], ...]]
"""Sizes of maps that a height and a width are judged by."""

MAX_INPUTS = {"auto": 8, "exact": 0, "f2": 4, "f4": 6, "f6": 8, "strassen": 8}
"""The most inputs of a tile (a side; with a stride, of the largest phase) that each setting of `fast` allows."""

ERRORS = {"auto": 2.5e-5, "exact": 4e-6, "f2": 2e-6, "f4": 1e-5, "f6": 2.5e-5, "strassen": 2.5e-5}
"""The largest error of a layer that each setting of `fast` allows, relative to the layer's largest output
(docs/accuracy.md): a tile that is expected to exceed it (`plans/winograd/errors.py`) is not taken."""

SIZES = (4, 6, 7, 8)
"""Inputs of a tile, a side, for a stride of one: F(2,3), F(4,3), F(5,3), F(6,3), but also F(2,5), F(3,5), F(4,5) and
F(2,7), whose matrices come from the same points. F(3,3) is never much better than its neighbours, and was slower where
its filters come from memory (512 channels, 7 x 7)."""

STRIDED = (3, 4, 5, 6)
"""Inputs of the largest phase of a tile, a side, with a stride. A window of 3 and a stride of 2 take F(2,2) to F(5,2)
beside the identity. 4x4 outputs take 5.06 products for one, 7x7 outputs 4.59 and transformed filters of 2.8 times the
size."""

FOURIER = (12, 16, 20, 24)
"""Inputs of a tile, a side, that all settings but "exact" allow for large windows of stride one: Fourier's transform
loses no digits."""

WORTH = 1.03
"""The least gain of a transform: it loses digits, and its filters take more memory."""

LARGE = 5
"""Taps, a side, of the smallest window for which Fourier's transform is tried."""


def convolution_algorithm(enclosing: Surroundings, node: Node) -> Algorithm | None:
    """The algorithm of a convolution of f32 maps with weights; None for others, which have one way."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    sizes = [as_int(d) for d in w.shape]
    if x.type.rank != 4 or node.of(ConvAttrs).groups != 1 or x.dtype.name != "f32":
        return None
    if None in sizes or 0 in sizes[:2]:
        return None
    if sizes[2:] == [1, 1]:
        options = one_pixel(enclosing, node)
    else:
        ways = [(c if isinstance(way, Direct) else c * WORTH, way) for c, way in windows(enclosing, node)]
        options = with_layouts(enclosing, node, ways)
        if w not in enclosing.fixed:
            options = [(cycles + filters(enclosing, node, choice), choice) for cycles, choice in options]
    options = with_matrices(enclosing, node, offered(enclosing, node, options))
    options.sort(key=lambda option: option[0])
    key = partial(key_of_nodes, "algorithm", [node], enclosing.target)
    return decide(key, options, lambda option: Setting.of(option[1]), lambda option: option[0])[1]


def one_pixel(enclosing: Surroundings, node: Node) -> list[Option]:
    """Direct products, and those over NCHW maps where all maps next to it are row-major: the others change layouts
    before and after."""
    w = node.inputs[1]
    assert w is not None
    filters, channels = (as_int(d) or 1 for d in w.shape[:2])
    block = enclosing.block if channels % enclosing.block == 0 else 1
    _, ways = blockings_of(node, filters, channels, block, enclosing.target)
    arrival = Cost(memory=4 * channels * filters / bandwidth(enclosing.weight_bytes, enclosing.target))
    direct = (Cost(compute=ways[0][0]) | arrival).cycles + conversions(enclosing, node, block)
    options: list[Option] = [(direct, Direct())]
    if stays_row_major(enclosing, node):
        cycles = panels(pixel_problem(node), enclosing.target)[0][0] + sampling(node, enclosing.target)
        options.append(((Cost(compute=cycles) | arrival).cycles, Pixels()))
    return options


def stays_row_major(enclosing: Surroundings, node: Node) -> bool:
    """Whether the maps that a convolution of one pixel reads and writes are row-major and may stay so."""
    return node.inputs[0] not in enclosing.blocked and node.output in enclosing.row_major_use and is_pointwise(node)


def conversions(enclosing: Surroundings, node: Node, block: int) -> float:
    """Cycles of changing the layouts of a convolution's input and result, of an image, to blocks of so many channels
    and back where these are row-major."""
    if not stays_row_major(enclosing, node):
        return 0.0
    x = node.inputs[0]
    assert x is not None
    # Channels that fill no blocks are read where they are.
    changes = (x, block > 1), (node.output, enclosing.row_major_use.get(node.output))
    return sum(conversion(v, enclosing.target) for v, is_changed in changes if is_changed)


def with_matrices(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """The options, and products in registers of matrices, of maps of known size with weights, over whole blocks of
    channels: of bf16 where factors are, or may be, else of pieces of f32."""
    x, w = node.inputs[:2]
    tile, conv = find_tile_dot(bf16, bf16, enclosing.target), node.of(ConvAttrs)
    assert x is not None and w is not None
    filters, channels, *window = (as_int(d) or 1 for d in w.shape)
    sizes = [as_int(d) for d in (*x.shape[2:], *node.output.shape[2:])]
    narrow = enclosing.options.precision == "bf16" or all(_of_bf16(enclosing, v) for v in (x, w))
    if tile is None or not all(sizes) or w not in enclosing.fixed or channels % enclosing.block:
        return options
    if tile.lanes != enclosing.block:
        return options
    if all(cycles == 0.0 for cycles, _ in options):
        _, ways = blockings_of(node, filters, channels, enclosing.block, enclosing.target)
        options = [(ways[0][0], Direct())]
    shape = (channels // enclosing.block, sizes[0] or 1, sizes[1] or 1, enclosing.block)
    costs = enclosing.target.costs.matrices
    arrival = Cost(memory=2 * w.known_bytes / 4 / bandwidth(enclosing.weight_bytes, enclosing.target))
    for flat in (False, True):
        attrs = ConvTilesAttrs(conv.strides, conv.dilations, conv.pads, filters, tile.rows, flat)
        if flat and not crosses_lines(attrs, shape[1:3], window):
            break
        depth = channels + -channels % tile.depth
        cycles = partial(convolution_cycles, attrs, shape, window, depth, tile, enclosing.target)
        if narrow:
            cost = Cost(compute=costs.configured + cycles()) | arrival
            options = [*options, (cost.cycles * costs.worth, Matrices(int(flat)))]
            continue
        for terms in terms_within(ERRORS[enclosing.options.fast]):
            own = Cost(compute=costs.split_slower * (costs.configured + cycles(terms))) | arrival * count_of(terms)
            search = pieces_cost(x.known_bytes // 4, 0, enclosing.target) * (1 / (as_int(x.shape[0]) or 1))
            options = [*options, ((own + search).cycles * costs.split_gain, SplitMatrices(terms, int(flat)))]
    return options


def _of_bf16(enclosing: Surroundings, value: Value) -> bool:
    """Whether a value of f32 was one of bf16."""
    node = enclosing.producers.get(value)
    return node is not None and node.op == "cast" and node.inputs[0] is not None and node.inputs[0].dtype is bf16


def windows(enclosing: Surroundings, node: Node) -> list[Option]:
    """Direct, and all transforms that are allowed, as one thread runs them if there is little to do."""
    shapes = transformed(enclosing, node)
    if not shapes:
        return [(0.0, Direct())]
    setting, first = enclosing.options.fast, shapes[0]
    allowed = tiles(first.window, first.stride, setting)
    sizes = within(ERRORS[setting], allowed, first.window, first.stride, first.channels, enclosing.block)
    images = as_int(node.output.shape[0])
    # Pixels that a dilation keeps apart are images of their own.
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
    """The options with what changing the input's layout takes. Channels that fill no blocks are read as they are by a
    direct convolution and in blocks by a transform, and one of both is not what there is."""
    x = node.inputs[0]
    assert x is not None
    channels = as_int(x.shape[1]) or 0
    if channels % enclosing.block == 0:
        return options
    changed, blocked = conversion(x, enclosing.target), x in enclosing.blocked
    return [(cycles + changed * (blocked == isinstance(way, Direct)), way) for cycles, way in options]


def filters(enclosing: Surroundings, node: Node, choice: Algorithm) -> float:
    """Cycles an image of transforming weights that come with each call: in double precision, by the columns and then
    the rows of a window."""
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
    """The layer as Winograd's estimate knows it, for each number of images and size of maps; nothing where no transform
    fits."""
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
    """Outputs of a tile, a side, that a setting of `fast` allows."""
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
    """The tiles whose largest error is expected to stay within a bound, of channels in blocks of `lanes`."""
    return tuple(m for m in sizes if largest_error(m, window, stride, channels, lanes) <= bound)
