"""Convolutions over maps of any size with filters in two layouts, one of which each call chooses.

    y = conv_by_size(x, far, near)     ->     if near's cycles < far's:  y = conv_winograd(x, near)
                                              else:                      y = conv_winograd(x, far)

Which transform is best depends on how many tiles a map has, and on how many of its pixels lie past the last whole tile:
14 pixels are four tiles of F(4) or three of F(6), where two computed pixels in five are unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.algorithms.winograd.operators.convolution import CONV_WINOGRAD, ConvWinogradAttrs
from tilewright.ir.expr import Expr, ceildiv
from tilewright.ir.graph import Node, TensorType
from tilewright.ops.lowered.packed import ConvBlockedAttrs
from tilewright.ops.registry import OpDef, Types, Version, register
from tilewright.support.classes import dataclass
from tilewright.te import Tensor


@dataclass(frozen=True, slots=True)
class ConvBySizeAttrs(ConvWinogradAttrs):
    """Attributes of `lowered.conv_by_size`, a convolution whose filters are stored in two layouts: those of the first
    layout; the outputs of the second layout's tile per side (0: its filters are not transformed); and for both layouts
    the estimated cycles per tile and per map."""

    adjacent_tile: int
    costs: tuple[int, int, int, int]

    def winograd(self, tile: int) -> ConvWinogradAttrs:
        """The attributes of the Winograd convolution by tiles of `tile` outputs per side, with the window, pads and
        channels of this one."""
        rest = (self.pads, self.channels, self.input_channels, self.out_block)
        return ConvWinogradAttrs(tile, self.window, self.stride, self.dilation, *rest)

    def direct(self) -> ConvBlockedAttrs:
        """The attributes of the direct convolution with filters that are not transformed."""
        each = (self.stride,) * 2, (self.dilation,) * 2
        return ConvBlockedAttrs(*each, self.pads, self.channels, self.out_block, flat=False)


def versions(node: Node) -> tuple[Version, ...]:
    """(condition, node) of both versions: with the filters of the second layout if they are estimated to be faster,
    else of the first."""
    x, outer, inner = node.inputs
    attrs, (n, _, height, width, _) = node.of(ConvBySizeAttrs), node.output.shape

    def cycles(tile: int, each: int, fixed: int) -> Expr:
        return n * ceildiv(height, tile) * ceildiv(width, tile) * each + fixed

    outer_each, outer_fixed, inner_each, inner_fixed = attrs.costs
    closer = cycles(max(1, attrs.adjacent_tile), inner_each, inner_fixed) < cycles(attrs.tile, outer_each, outer_fixed)
    other = Node("lowered.conv_blocked", (x, inner), node.outputs, attrs.direct())
    if attrs.adjacent_tile:
        other = Node(CONV_WINOGRAD.name, (x, inner), node.outputs, attrs.winograd(attrs.adjacent_tile))
    first = Node(CONV_WINOGRAD.name, (x, outer), node.outputs, attrs.winograd(attrs.tile))
    return Version(closer, other), Version(None, first)


def _infer(types: Types, attrs: ConvBySizeAttrs) -> tuple[TensorType, ...]:
    return CONV_WINOGRAD.infer(types[:2], attrs.winograd(attrs.tile))


def _compute(
    inputs: Sequence[Tensor | None], attrs: ConvBySizeAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    assert CONV_WINOGRAD.compute is not None
    return CONV_WINOGRAD.compute(inputs[:2], attrs.winograd(attrs.tile), types)


def _reference(arrays: Sequence[Any], attrs: ConvBySizeAttrs) -> tuple[Any, ...]:
    return CONV_WINOGRAD.reference(arrays[:2], attrs.winograd(attrs.tile))


CONV_BY_SIZE = register(
    OpDef("lowered.conv_by_size", "contraction", ConvBySizeAttrs, _infer, _reference, _compute, versions=versions)
)
