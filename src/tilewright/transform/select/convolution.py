"""Choose the algorithm of a convolution: direct, a product over NCHW maps or in matrix registers, or one of a folder in
`tilewright/algorithms/`. All are estimated in cycles per image."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from tilewright.ir.dtype import bf16, f16, i16
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Algorithm, Direct, Dots, Matrices, Pairs, Pixels, SplitGathered, SplitMatrices
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.lowered.split import count_of
from tilewright.ops.lowered.tiles import ConvTilesAttrs
from tilewright.plans.convolution.pixels import panels
from tilewright.plans.convolution.tile_dots import convolution_cycles, crosses_lines, gatherings
from tilewright.plans.convolution.tiles import side
from tilewright.plans.framework.cost import Cost, bandwidth
from tilewright.plans.matmul.dots import product_cycles
from tilewright.plans.matmul.split import pieces_cost, terms_within
from tilewright.schedule.dot_intrinsics import find_dot, find_tile_dot
from tilewright.transform.algorithm import Option, cheapest_algorithm, offered
from tilewright.transform.graph.options import ERRORS
from tilewright.transform.problems import (
    blockings_of,
    convolution_in_pairs,
    convolves_maps,
    is_pointwise,
    pixel_problem,
    sampling,
)
from tilewright.transform.select.nchw import conversion
from tilewright.transform.select.surroundings import Surroundings


def convolution_algorithm(enclosing: Surroundings, node: Node) -> Algorithm | None:
    """The algorithm of a convolution; None if there is no choice."""
    if node.of(ConvAttrs).groups != 1 and not node.output.dtype.is_int:
        return grouped_algorithm(enclosing, node)
    options = convolution_options(enclosing, node) if convolves_maps(node) else offered(enclosing, node, [])
    return cheapest_algorithm(enclosing, node, options) if options else None


def convolution_options(enclosing: Surroundings, node: Node) -> list[Option]:
    """The options of a convolution of one group, or of codes, for which there may be none."""
    w = node.inputs[1]
    assert w is not None
    if node.output.dtype.is_int:
        return offered(enclosing, node, [])
    options: list[Option] = [(0.0, Direct())]
    if [as_int(d) for d in w.shape[2:]] == [1, 1]:
        options = one_pixel(enclosing, node)
    options = with_pairs(enclosing, node, with_matrices(enclosing, node, offered(enclosing, node, options)))
    return with_dots(enclosing, node, options)


WORTH_OF_CODES = 1.1
"""The least ratio of estimates at which codes are multiplied in pairs of 16 bits instead of the numbers that they stand
for."""


def codes_are_faster(enclosing: Surroundings, numbers: Node, codes: Node) -> bool:
    """Whether the convolution `codes`, transformed or directly in pairs of 16 bits, is estimated to be faster than
    `numbers`, that of the dequantised numbers."""
    w, pairs = codes.inputs[1], find_dot(i16, i16, enclosing.target)
    sizes = [] if w is None else [as_int(d) for d in w.shape]
    if pairs is None or len(sizes) != 4 or None in sizes or 0 in sizes:
        return False
    filters, channels, *window = (d or 1 for d in sizes)
    lines, columns = map(side, codes.output.shape[2:])
    direct = lines * product_cycles(columns, channels * prod(window), filters, pairs, enclosing.target)
    own = min([direct, *(cycles for cycles, _ in convolution_options(enclosing, codes))])
    block = enclosing.block if channels % enclosing.block == 0 else 1
    others = estimated(enclosing, numbers, convolution_options(enclosing, numbers), block)
    return own * WORTH_OF_CODES < min(cycles for cycles, _ in others)


def one_pixel(enclosing: Surroundings, node: Node) -> list[Option]:
    """The options of a 1x1 convolution: direct, and over NCHW maps if all adjacent maps are row-major, where direct
    ones would change layouts before and after."""
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
    """Whether the maps that a 1x1 convolution reads and writes are row-major and may stay so."""
    return node.inputs[0] not in enclosing.blocked and node.output in enclosing.row_major_use and is_pointwise(node)


def conversions(enclosing: Surroundings, node: Node, block: int) -> float:
    """The estimated cycles per image of changing a convolution's row-major input and result to blocks of `block`
    channels and back."""
    if not stays_row_major(enclosing, node):
        return 0.0
    x = node.inputs[0]
    assert x is not None
    # Channels that fill no blocks are read where they are.
    changes = (x, block > 1), (node.output, enclosing.row_major_use.get(node.output))
    return sum(conversion(v, enclosing.target) for v, is_changed in changes if is_changed)


def with_matrices(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """The options of a convolution with products in matrix registers added, if the target has such registers.

    These require maps of known size, constant weights, and in each group whole blocks of channels or less than one
    block. Factors are bf16 or f16 if the precision allows them, else bf16 pieces of f32.
    """
    x, w = node.inputs[:2]
    kind = f16 if rounds_to_f16(enclosing, node) else bf16
    tile, conv = find_tile_dot(kind, kind, enclosing.target), node.of(ConvAttrs)
    assert x is not None and w is not None
    filters, channels, *window = (as_int(d) or 1 for d in w.shape)
    sizes, block = [as_int(d) for d in (*x.shape[2:], *node.output.shape[2:])], enclosing.block
    is_narrow = kind is f16 or narrow(enclosing, node)
    gathers = channels < block and conv.groups == 1 and not is_narrow
    if tile is None or not all(sizes) or w not in enclosing.fixed or (channels % block and not gathers):
        return options
    if tile.lanes != block or (conv.groups > 1 and filters // conv.groups % tile.lanes):
        return options
    options = estimated(enclosing, node, options, 1 if gathers else block)
    lines, columns, *_ = (d or 0 for d in sizes)
    blocks = conv.groups * channels // block
    shape = (1, lines, columns, channels) if gathers else (blocks, lines, columns, block)
    costs = enclosing.target.costs.matrices
    arrival = Cost(memory=2 * w.known_bytes / 4 / bandwidth(enclosing.weight_bytes, enclosing.target))
    by_lines = ConvTilesAttrs(
        conv.strides, conv.dilations, conv.pads, filters, tile.rows, flat=gathers, groups=conv.groups
    )
    ways_of: list[ConvTilesAttrs] = [by_lines]
    if gathers:
        ways_of = [replace(by_lines, gathered=how) for how in gatherings(conv, window, channels, tile)]
    elif crosses_lines(flat := replace(by_lines, flat=True), shape[1:3], window):
        ways_of.append(flat)
    for attrs in ways_of:
        depth = channels * prod(attrs.gathered[2:])
        cycles = partial(convolution_cycles, attrs, shape, window, depth + -depth % tile.depth, tile, enclosing.target)
        if is_narrow:
            cost = Cost(compute=costs.configured + cycles()) | arrival
            options = [*options, (cost.cycles * costs.worth, Matrices(int(attrs.flat)))]
            continue
        for terms in terms_within(ERRORS[enclosing.fast(node)]):
            own = Cost(compute=costs.split_slower * (costs.configured + cycles(terms))) | arrival * count_of(terms)
            search = pieces_cost(x.known_bytes // 4, 0, enclosing.target) * (1 / (as_int(x.shape[0]) or 1))
            choice = SplitGathered(terms, attrs.gathered[2]) if gathers else SplitMatrices(terms, int(attrs.flat))
            options = [*options, ((own + search).cycles * costs.split_gain, choice)]
    return options


def grouped_algorithm(enclosing: Surroundings, node: Node) -> Algorithm | None:
    """The fastest one, by estimates, of the algorithms of folders and, for maps in groups of whole blocks, of matrix
    registers and of instructions that multiply two pixels by two filters; None if the direct algorithm is faster than
    all."""
    options = offered(enclosing, node, [(0.0, Direct())])
    if convolves_maps(node):
        options = with_pairs(enclosing, node, with_matrices(enclosing, node, options))
    choice = cheapest_algorithm(enclosing, node, options) if len(options) > 1 else Direct()
    return None if isinstance(choice, Direct) else choice


def with_pairs(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """`options`, and if the target has it an instruction that multiplies two pixels by two filters of bf16, for a
    convolution over whole blocks of channels."""
    w, way = node.inputs[1], convolution_in_pairs(node, bf16, bf16, enclosing.target)
    if way is None or w is None or w not in enclosing.fixed or not narrow(enclosing, node):
        return options
    if way.attrs.depth % enclosing.block:
        return options
    arrival = Cost(memory=2 * w.known_bytes / 4 / bandwidth(enclosing.weight_bytes, enclosing.target))
    return [
        *estimated(enclosing, node, options, enclosing.block),
        ((Cost(compute=way.cycles) | arrival).cycles, Pairs()),
    ]


def with_dots(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """`options`, and if the target has it a dot instruction for bf16, for a convolution over whole blocks of
    channels."""
    w, dot = node.inputs[1], find_dot(bf16, bf16, enclosing.target)
    if dot is None or w is None or w not in enclosing.fixed or dot.lanes != enclosing.block:
        return options
    filters, channels, *window = (as_int(d) or 1 for d in w.shape)
    if channels % enclosing.block or not narrow(enclosing, node):
        return options
    lines, columns = map(side, node.output.shape[2:])
    cycles = lines * product_cycles(columns, channels * prod(window), filters, dot, enclosing.target)
    arrival = Cost(memory=2 * w.known_bytes / 4 / bandwidth(enclosing.weight_bytes, enclosing.target))
    return [
        *estimated(enclosing, node, options, enclosing.block),
        ((Cost(compute=cycles) | arrival).cycles, Dots()),
    ]


def rounds_to_f16(enclosing: Surroundings, node: Node) -> bool:
    """Whether the factors of an f32 convolution may be rounded to f16, and the machine has matrix instructions for
    f16."""
    asked = enclosing.options.precision == "fp16" and not node.of(ConvAttrs).exactness
    return asked and find_tile_dot(f16, f16, enclosing.target) is not None


def narrow(enclosing: Surroundings, node: Node) -> bool:
    """Whether the factors of an f32 convolution are, or may be, rounded to bf16."""
    if enclosing.options.precision == "bf16" and not node.of(ConvAttrs).exactness:
        return True
    return all(v is not None and _of_bf16(enclosing, v) for v in node.inputs[:2])


def estimated(enclosing: Surroundings, node: Node, options: list[Option], block: int) -> list[Option]:
    """The options with their estimated cycles. If the direct algorithm is the only option and has no estimate, it gets
    the cycles over blocks of `block` channels."""
    w = node.inputs[1]
    if w is None or any(cycles for cycles, _ in options):
        return options
    groups, (filters, channels) = node.of(ConvAttrs).groups, (as_int(d) or 1 for d in w.shape[:2])
    _, ways = blockings_of(node, filters // groups, channels, block, enclosing.target)
    return [(groups * ways[0][0], Direct())]


def _of_bf16(enclosing: Surroundings, value: Value) -> bool:
    """Whether a value of f32 was cast from bf16."""
    node = enclosing.producers.get(value)
    return node is not None and node.op == "cast" and node.inputs[0] is not None and node.inputs[0].dtype is bf16
