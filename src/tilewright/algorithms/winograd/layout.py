"""Layouts of convolutions by Winograd's transforms: filters transformed in `prepare`, channels in blocks."""

from __future__ import annotations

from tilewright.algorithms.winograd.selection import Winograd, WinogradBySize, WinogradSums
from tilewright.ir.attributes import AttrValue
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.conv_gradient import ConvWeightGradientAttrs
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.conv import pack, panels_of
from tilewright.transform.layout.conv_weight import unblocked
from tilewright.transform.layout.integer import codes_in_blocks, keep_sums, padding_of


def winograd(a: Assigner, node: Node) -> bool:
    """Rewrite a convolution of floats or of codes into a convolution of transformed tiles, with its filters
    transformed; returns whether it did."""
    x, choice = node.inputs[0], node.algorithm
    assert x is not None and isinstance(choice, Winograd)
    if node.output.dtype.is_int:
        return _winograd_of_codes(a, node, choice)
    packed = transformed(a, node, choice)
    attributes = {**_attributes(a, node), "tile": choice.tile}
    (a.blocked[node.output],) = a.emit("lowered.conv_winograd", (a.as_blocked(x), packed), attributes, node.output.name)
    return True


def _winograd_of_codes(a: Assigner, node: Node, choice: Winograd) -> bool:
    factors = codes_in_blocks(a, node)
    if factors is None:
        return False
    packed = transformed(a, node, choice, factors.weights)
    attributes = {**_attributes(a, node), "tile": choice.tile}
    operands = (factors.x, packed, *padding_of(a, factors))
    (total,) = a.emit("lowered.conv_winograd", operands, attributes, node.output.name)
    keep_sums(a, node, factors, total, a.block)
    return True


def winograd_by_size(a: Assigner, node: Node) -> bool:
    """Rewrite a convolution by tiles whose filters are stored in two layouts, of which each call uses one; returns
    whether it did."""
    (x, w), choice = node.inputs[:2], node.algorithm
    assert x is not None and w is not None and isinstance(choice, WinogradBySize)
    blocking = None if choice.neartile else panels_of(a, node)
    from_memory = transformed(a, node, Winograd(choice.tile, choice.width, choice.panels))
    if blocking is None:
        cached = transformed(a, node, Winograd(choice.neartile, choice.nearwidth, choice.nearpanels))
    else:
        cached = pack(a, w, blocking)
    attributes = {**_attributes(a, node), "tile": choice.tile, "adjacent_tile": choice.neartile, "costs": choice.costs}
    inputs = (a.as_blocked(x), from_memory, cached)
    (a.blocked[node.output],) = a.emit("lowered.conv_by_size", inputs, attributes, node.output.name)
    return True


def winograd_sums(a: Assigner, node: Node) -> bool:
    """Rewrite a gradient by a convolution's weight, over maps in blocks of channels, into sums over transformed tiles;
    returns whether it did."""
    (x, g), choice, attrs = node.inputs[:2], node.algorithm, node.of(ConvWeightGradientAttrs)
    assert x is not None and g is not None and isinstance(choice, WinogradSums)
    transform = {"tile": choice.tile, "window": attrs.window[0], "pads": attrs.pads}
    operands = (a.as_blocked(x), a.as_blocked(g))
    (blocks,) = a.emit("lowered.winograd_weight", operands, transform, f"{node.output.name}_blocked")
    a.row_major[node.output] = unblocked(a, blocks, node, "narrow")
    return True


def transformed(a: Assigner, node: Node, choice: Winograd, weights: Value | None = None) -> Value:
    """Emit the transformed filters of the convolution `node`, for the transform and the panels of `choice`, and return
    them. They are computed from `weights`, by default from the filters of `node`."""
    w = node.inputs[1]
    assert w is not None
    source = weights or a.as_row_major(w)
    sizes = {"width": choice.width, "panels": choice.panels}
    attrs = {"tile": choice.tile, "stride": node.of(ConvAttrs).strides[0], "block": a.block, **sizes}
    (packed,) = a.emit("lowered.pack_winograd", (source,), attrs, f"{w.name}_packed")
    a.follow(w, packed)
    return packed


def _attributes(a: Assigner, node: Node) -> dict[str, AttrValue]:
    """The attributes that all operators of convolutions by transforms have, for a convolution node."""
    conv, w = node.of(ConvAttrs), node.inputs[1]
    assert w is not None
    return {
        "window": as_int(w.shape[2]),
        "stride": conv.strides[0],
        "dilation": conv.dilations[0],
        "pads": conv.pads,
        "channels": as_int(w.shape[0]),
        "input_channels": as_int(w.shape[1]),
        "out_block": a.block,
    }
