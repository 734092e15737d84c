"""Layouts of convolutions by Winograd's transforms: filters transformed in `prepare`, channels in blocks."""

from __future__ import annotations

from tilewright.ir.attributes import AttrValue
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Winograd, WinogradBySize
from tilewright.ops.conv import ConvAttrs
from tilewright.transform.layout.assigner import Assigner


def winograd(a: Assigner, node: Node, choice: Winograd) -> bool:
    """Rewrite a convolution."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    packed = transformed(a, node, choice)
    attributes = {**_attributes(a, node), "tile": choice.tile}
    (a.blocked[node.output],) = a.emit("lowered.conv_winograd", (a.as_blocked(x), packed), attributes, node.output.name)
    return True


def winograd_by_size(a: Assigner, node: Node, choice: WinogradBySize, width: int) -> bool:
    """Rewrite a convolution whose filters are kept twice; `width`: of a panel of those that are not transformed."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    far = transformed(a, node, Winograd(choice.tile, choice.width, choice.panels))
    if choice.neartile:
        near = transformed(a, node, Winograd(choice.neartile, choice.nearwidth, choice.nearpanels))
    else:
        (near,) = a.emit(
            "lowered.pack_conv", (a.as_row_major(w),), {"block": a.block, "width": width}, f"{w.name}_packed"
        )
        a.follow(w, near)
    attributes = {**_attributes(a, node), "tile": choice.tile, "near_tile": choice.neartile, "costs": choice.costs}
    inputs = (a.as_blocked(x), far, near)
    (a.blocked[node.output],) = a.emit("lowered.conv_by_size", inputs, attributes, node.output.name)
    return True


def transformed(a: Assigner, node: Node, choice: Winograd) -> Value:
    """The filters of a convolution in a transform's layout."""
    w = node.inputs[1]
    assert w is not None
    sizes = {"width": choice.width, "panels": choice.panels}
    attrs = {"tile": choice.tile, "stride": node.of(ConvAttrs).strides[0], "block": a.block, **sizes}
    (packed,) = a.emit("lowered.pack_winograd", (a.as_row_major(w),), attrs, f"{w.name}_packed")
    a.follow(w, packed)
    return packed


def _attributes(a: Assigner, node: Node) -> dict[str, AttrValue]:
    """Attributes that all transforms of a convolution share."""
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
