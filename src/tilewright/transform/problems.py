"""Problem descriptions of convolution and product nodes for estimates: selection (`select/`) chooses by them, and
layouts (`layout/`) use the same ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil, prod
from typing import Literal

from tilewright.ir.dtype import DType, f32, i32
from tilewright.ir.expr import Expr, as_int, is_const, product
from tilewright.ir.graph import Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.lowered.mmla import SIDE
from tilewright.ops.lowered.mmla_conv import ConvMmlaAttrs
from tilewright.plans.convolution.mmla import convolution_cycles, panel_multiple
from tilewright.plans.convolution.pixels import PixelProblem
from tilewright.plans.convolution.tiles import MAX_FLAT_PIXELS, Blocking, DirectProblem, ranked, side
from tilewright.plans.framework.alone import alone_if_small
from tilewright.plans.framework.cost import Cost, fetch_cycles, write_cycles
from tilewright.plans.framework.symbolic import SYMBOLIC_IMAGES
from tilewright.schedule.dot_intrinsics import Dot, find_mmla
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

Cycles = Callable[[int], float]
"""Maps a number of rows to the estimated cycles of a product."""


def rows_of(x: Value, rows: int) -> Expr:
    """The number of rows of a product that reads `x` in register tiles of `rows` rows: the rows of all batch entries if
    they are joined, else of one."""
    return all_rows(x) if joins(x, rows) else x.shape[-2]


def all_rows(x: Value) -> Expr:
    """The number of rows of `x` over all its batch dimensions."""
    return product(x.shape[:-1])


def multiplies_alike(x: Value, w: Value) -> bool:
    """Whether each batch dimension of a product's second factor equals that of the first one, is 1, or is absent."""
    batch, own = x.shape[:-2], w.shape[:-2]
    pairs = zip(reversed(own), reversed(batch), strict=False)
    return len(own) <= len(batch) and all(is_const(d, 1) or d is e for d, e in pairs)


def joins(x: Value, rows: int) -> bool:
    """Whether the batch dimensions of `x` are best joined with its rows, because the rows of one batch entry do not
    fill a register tile of `rows` rows."""
    own = as_int(x.shape[-2])
    return x.type.rank > 2 and (own is None or own % rows != 0)


def crossing(most: int, vectors: Cycles, matrices: Cycles) -> int:
    """The least number of rows from which on, up to `most` rows, products in matrix registers take fewer cycles than in
    vectors; `most` + 1 if they do not for `most` rows. `vectors` and `matrices` return the cycles for a number of
    rows."""
    return next((m + 1 for m in range(most, 0, -1) if matrices(m) >= vectors(m)), 1)


def is_pointwise(node: Node) -> bool:
    """Whether a convolution node is 1x1 without pads, so that every output pixel reads one input pixel."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    attrs, size = node.of(ConvAttrs), [as_int(d) for d in (*x.shape[2:], *node.output.shape[2:])]
    if any(attrs.pads) or 0 in size:
        return False
    return all(as_int(d) == 1 for d in w.shape[2:])


def convolves_maps(node: Node) -> bool:
    """Whether a convolution is of 2-D maps, f32 or integers, by filters of known sizes."""
    x, w = node.operands(2)
    sizes = [as_int(d) for d in w.shape]
    return x.type.rank == 4 and x.dtype in (f32, i32) and None not in sizes and 0 not in sizes[:2]


def is_one_group(node: Node) -> bool:
    """Whether `convolves_maps` is true of a convolution, and it has one group."""
    return convolves_maps(node) and node.of(ConvAttrs).groups == 1


def is_one_group_of_floats(node: Node) -> bool:
    """Whether `is_one_group` is true of a convolution, and its result is no integer."""
    return is_one_group(node) and not node.output.dtype.is_int


def pixel_problem(node: Node) -> PixelProblem:
    """The problem description of a 1x1 convolution, for one image and one group."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    filters, depth = (as_int(d) or 1 for d in w.shape[:2])
    attrs, pixels = node.of(ConvAttrs), prod(side(d) for d in node.output.shape[2:])
    return PixelProblem(filters // attrs.groups, pixels, depth)


def sampling(node: Node, target: Target) -> float:
    """The estimated cycles to extract the pixels of an image that a strided convolution reads; 0.0 for stride 1. Lines
    that are read come into the caches as a whole."""
    x, conv = node.inputs[0], node.of(ConvAttrs)
    assert x is not None
    if all(s == 1 for s in conv.strides):
        return 0.0
    lines = (as_int(x.shape[1]) or 64) * side(node.output.shape[2])
    read, written = (4 * lines * side(v.shape[3]) for v in (x, node.output))
    vectors = lines * ceil(side(node.output.shape[3]) / target.lanes(4))
    memory = fetch_cycles(read, read, target) + write_cycles(written, read + written, target)
    return Cost(compute=SAMPLED * target.costs.traffic.copied_vector * vectors, memory=memory).cycles


SAMPLED = 4.0
"""The cost of extracting a vector of every second element, relative to copying a vector: it is made of two vectors."""


def blockings_of(
    node: Node, filters: int, channels: int, block: int, target: Target
) -> tuple[tuple[DirectProblem, ...], tuple[tuple[float, Blocking], ...]]:
    """(problems, one for each number of images to consider; blockings with their cycles per image, the best first) of
    the convolution `node` with these numbers of `filters` and input `channels`, which lie in blocks of `block`. The
    plan must use the width and flatness of the chosen blocking."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    kh, kw = (as_int(d) or 1 for d in w.shape[2:])
    attrs = node.of(ConvAttrs)
    pads, (sh, sw) = attrs.pads, attrs.strides
    known = [as_int(d) for d in node.output.shape[2:]]
    height, width = (side(d) for d in node.output.shape[2:])
    images = as_int(node.output.shape[0])
    pixel = kh == kw == 1
    counts = SYMBOLIC_IMAGES if images is None else (max(1, images),)
    lines, columns = (height, width) if pixel else ((height - 1) * sh + kh, (width - 1) * sw + kw)
    shapes = tuple(
        DirectProblem(
            images=n,
            height=height,
            width=width,
            window=(kh, kw),
            stride=1 if pixel else sw,
            channels=channels,
            block=block,
            filters=filters,
            source=4 * channels * lines * columns,
            copied=any(pads) or (pixel and (sh, sw) != (1, 1)),
            known=None not in known,
        )
        for n in counts
    )
    flats: tuple[bool, ...] = (False, True)
    if None in known or height * width > MAX_FLAT_PIXELS:
        flats = (False,)
    if pixel:
        flats = (True,)
    if images is None:
        return shapes, ranked(shapes, flats, target)
    rank = partial(ranked, shapes, flats)
    return shapes, tuple(alone_if_small(rank, lambda way: way[0] * images, target))


def data_side(node: Node, block: int) -> Literal["wide", "narrow"] | None:
    """Whether the data are the "wide" operand of a gradient by weights, whose channels are the lanes, or the "narrow"
    one: the operand that fills lanes better is wide. None for maps that are not f32, of unknown or no size, or of one
    channel."""
    x, g = node.inputs[:2]
    assert x is not None and g is not None
    filters, channels = as_int(g.shape[1]), as_int(x.shape[1])
    known = [as_int(d) for d in (*x.shape[1:], *g.shape[2:])]
    if x.type.rank != 4 or x.dtype.name != "f32" or g.dtype.name != "f32" or not filters or not all(known):
        return None
    assert channels is not None
    data: Literal["wide", "narrow"] = "wide" if waste(channels, block) < waste(filters, block) else "narrow"
    lanes = filters if data == "narrow" else channels
    return None if as_int(x.shape[0]) == 0 or lanes == 1 else data  # a block of one channel has no lanes


def waste(channels: int, block: int) -> float:
    """The number of lanes of all blocks of `block` channels that hold `channels`, per channel: 1.0 if all blocks are
    full."""
    return ceil(channels / block) * block / channels


@dataclass(frozen=True, slots=True)
class ConvInPairs:
    """How a convolution uses an instruction that multiplies two pixels by two filters, and its estimated cycles per
    image."""

    pair: Dot
    attrs: ConvMmlaAttrs
    panels: int
    cycles: float


def convolution_in_pairs(node: Node, a: DType, b: DType, target: Target) -> ConvInPairs | None:
    """How a convolution of elements of type `a` uses an instruction that multiplies two pixels by two filters, with
    channels in blocks of a vector's width; None where the machine has no such instruction, no tile fits, or groups have
    no whole panels."""
    pair, w, conv = find_mmla(a, b, target), node.inputs[1], node.of(ConvAttrs)
    if pair is None or w is None or w.type.rank != 4:
        return None
    filters, channels, *window = (as_int(d) or 0 for d in w.shape)
    block = target.lanes(4)
    if not filters or not channels:
        return None
    if conv.groups > 1 and (filters % block or filters // conv.groups % SIDE):
        return None
    multiple = 1 if conv.groups > 1 else panel_multiple(filters, block)
    panels = -(-filters // (SIDE * multiple)) * multiple
    attrs = ConvMmlaAttrs(conv.strides, conv.dilations, conv.pads, filters, block, channels, conv.groups)
    lines, columns = map(side, node.output.shape[2:])
    cycles = convolution_cycles(attrs, lines, columns, prod(window), panels, pair, target)
    return None if cycles is None else ConvInPairs(pair, attrs, multiple, cycles)
