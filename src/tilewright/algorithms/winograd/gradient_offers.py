"""Offers Winograd's tiles for a convolution's gradient by its weight, besides sums over pixels.

Both are estimated in cycles of all images. If the number of images is unknown, sums over pixels are used.
"""

from __future__ import annotations

from math import ceil, prod

from tilewright.algorithms.winograd.offers import MAX_INPUTS, SIZES, WORTH
from tilewright.algorithms.winograd.plan.errors import largest_error_of_sums
from tilewright.algorithms.winograd.plan.sums import SumsProblem, lengths, ranked
from tilewright.algorithms.winograd.selection import WinogradSums
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ir.selection import Direct
from tilewright.ops.conv_gradient import ConvWeightGradientAttrs
from tilewright.plans.convolution.weights import WeightsProblem
from tilewright.plans.convolution.weights import ranked as ranked_over_pixels
from tilewright.plans.framework.cost import Cost, fetch_cycles, write_cycles
from tilewright.targets.target import Target
from tilewright.transform.algorithm import Option
from tilewright.transform.graph.options import ERRORS
from tilewright.transform.problems import data_side
from tilewright.transform.select.nchw import conversion
from tilewright.transform.select.surroundings import FEWEST, Surroundings

LARGEST = 6
"""The largest number of inputs of a tile per side: tiles of 4x4 pixels for a 3x3 window. With 5x5 a layer of 128
channels and filters at 19x19 takes 0.98 of the time, others take longer, and errors are four times as large, as the
gradient is transformed in single precision too."""


def with_sums(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """The options for a convolution's gradient by its weight, over channels in blocks: sums over pixels, and sums over
    Winograd's tiles."""
    x, g = node.inputs[:2]
    assert x is not None and g is not None
    attrs = node.of(ConvWeightGradientAttrs)
    images, channels, filters = (as_int(d) for d in (x.shape[0], x.shape[1], g.shape[1]))
    if data_side(node, enclosing.block) is None or not images or not channels or not filters:
        return options
    (window, other), alike = attrs.window, (*attrs.strides, *attrs.dilations) == (1,) * 4
    if window != other or window == 1 or not alike or min(channels, filters) < FEWEST:
        return options
    setting = enclosing.options.fast
    height, width = (as_int(d) or 1 for d in g.shape[2:])
    problem = SumsProblem(
        images, height, width, ceil(channels / enclosing.block), ceil(filters / enclosing.block), window
    )
    to_blocks, to_ordinary = conversions(enclosing, node)
    options = [*options, (over_pixels(node, enclosing.block, enclosing.target).cycles + to_ordinary, Direct())]
    for tile in (n - window + 1 for n in SIZES if n <= min(LARGEST, MAX_INPUTS[setting])):
        if tile > 1:
            errors = (largest_error_of_sums(tile, window, *sums) for sums in lengths(problem, tile, enclosing.target))
            if max(errors) <= ERRORS[setting]:
                cost, _ = ranked(problem, tile, enclosing.target)[0]
                options.append((cost.cycles * WORTH + to_blocks, WinogradSums(tile)))
    return options


def conversions(enclosing: Surroundings, node: Node) -> tuple[float, float]:
    """The cycles, for all images, of changes of layout that (sums over tiles, sums over pixels) need. Tiles need all
    channels in blocks; pixels need channels as NCHW if they are no lanes and fill no blocks."""
    value = node.inputs[data_side(node, enclosing.block) == "wide"]
    assert value is not None
    if (as_int(value.shape[1]) or 1) % enclosing.block == 0:
        return 0.0, 0.0
    changed = conversion(value, enclosing.target) * (as_int(value.shape[0]) or 1)
    return (0.0, changed) if value in enclosing.blocked else (changed, 0.0)


def over_pixels(node: Node, block: int, target: Target) -> Cost:
    """The cost of a gradient as sums over pixels, including a zero-padded copy of the data if there are pads."""
    x, g = node.inputs[:2]
    assert x is not None and g is not None
    attrs, data = node.of(ConvWeightGradientAttrs), data_side(node, block)
    images, channels, *extents = (as_int(d) or 1 for d in x.shape)
    _, filters, *created = (as_int(d) or 1 for d in g.shape)
    enclosing = [n + before + after for n, before, after in zip(extents, attrs.pads[:2], attrs.pads[2:], strict=True)]
    wide, narrow = (channels, filters) if data == "wide" else (filters, channels)
    inner = block if narrow % block == 0 else 1
    lanes, rows = ceil(wide / block) * block, narrow if inner == 1 else ceil(narrow / inner) * inner
    flow, other = (lanes, rows) if data == "wide" else (rows, lanes)
    problem = WeightsProblem(
        images,
        prod(created),
        lanes // block,
        rows // inner,
        (attrs.window[0], attrs.window[1]),
        inner,
        block,
        4 * (flow * prod(enclosing) + other * prod(created)),
    )
    padded = Cost()
    if any(attrs.pads):
        size = 4.0 * images * flow * prod(enclosing)
        padded = Cost(memory=fetch_cycles(size, 2 * size, target) + write_cycles(size, 2 * size, target))
    return ranked_over_pixels(problem, target)[0][0] + padded
