"""A transposed convolution as one convolution per phase, with the taps of that phase only, so that no inserted zeros
are multiplied.

With a stride of s an output o reads the taps t for which o + pad = q s + t: its phase is (o + pad) % s, and it reads
every s-th tap. Of a window of k taps the first k % s phases have one tap more than the others. All phases with equally
many taps are filters of one convolution of stride one with mirrored taps.
"""

from __future__ import annotations

from itertools import product
from math import prod

from tilewright import ops
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Node, TensorType, Value
from tilewright.ops.conv import ConvAttrs, ConvTransposeAttrs
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """Neighbouring phases of a dimension with equally many taps: from `first` to `first + count - 1`."""

    first: int
    count: int
    taps: int


@dataclass(frozen=True, slots=True)
class Phases:
    """Phases of a transposed convolution that have equally many taps, a range for each dimension.

    `conv` is a convolution node that computes all of them, with `filters` filters for each; it is not part of a graph.
    """

    ranges: tuple[Range, Range]
    filters: int
    conv: Node


def ranges(window: int, stride: int) -> list[Range]:
    """The phases of a dimension with windows of `window` elements and `stride`, grouped by their number of taps."""
    longer, taps = window % stride, window // stride
    parts = (Range(0, longer, taps + 1), Range(longer, stride - longer, taps))
    return [part for part in parts if part.count]


def phases(node: Node, block: int) -> list[Phases]:
    """The convolutions that compute a transposed convolution of one group on maps of known size, with filters rounded
    up to whole blocks; [] for others, or if a phase has no taps."""
    x, w = node.operands(2)
    attrs = node.of(ConvTransposeAttrs)
    sizes = [as_int(d) for d in (*w.shape, *x.shape[2:], *node.output.shape[2:])]
    if x.type.rank != 4 or attrs.groups != 1 or set(attrs.dilations) != {1} or None in sizes:
        return []
    channels, filters, kh, kw, *_ = (d or 0 for d in sizes)
    filters += -filters % block
    if not channels or not filters or kh < attrs.strides[0] or kw < attrs.strides[1]:
        return []
    result = []
    for pair in product(ranges(kh, attrs.strides[0]), ranges(kw, attrs.strides[1])):
        several = filters * prod(r.count for r in pair)
        shape = tuple(map(const, (several, channels, *(r.taps for r in pair))))
        weights = Value(f"{w.name}_phases", TensorType(w.dtype, shape))
        before = [r.taps - 1 for r in pair]
        after = [grid - (as_int(d) or 0) for grid, d in zip(grid_of(node), x.shape[2:], strict=True)]
        how = ConvAttrs((1, 1), (1, 1), (*before, *after), 1)
        (maps,) = ops.infer("conv", (x.type, weights.type), how)
        conv = Node("conv", (x, weights), (Value(f"{node.output.name}_phases", maps),), how)
        result.append(Phases(pair, filters, conv))
    return result


def grid_of(node: Node) -> tuple[int, int]:
    """The number of results per phase of `node` in each dimension, counted from the first that the padding cuts off: at
    least the size of the input map."""
    x, attrs = node.operands(2)[0], node.of(ConvTransposeAttrs)
    height, width = (
        max((as_int(size) or 0), ((as_int(out) or 1) - 1 + before) // stride + 1)
        for size, out, before, stride in zip(
            x.shape[2:], node.output.shape[2:], attrs.pads[:2], attrs.strides, strict=True
        )
    )
    return height, width


__all__ = ["Phases", "grid_of", "phases"]
