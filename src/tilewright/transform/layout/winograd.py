"""Layouts of convolutions by Winograd's transforms: filters transformed in `prepare`, channels in blocks."""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ir.selection import Winograd
from tilewright.ops.conv import ConvAttrs
from tilewright.transform.layout.assigner import Assigner


def winograd(a: Assigner, node: Node, choice: Winograd) -> bool:
    """Rewrite a convolution."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    conv = node.of(ConvAttrs)
    stride = conv.strides[0]
    attrs = {"tile": choice.tile, "stride": stride, "block": a.block, "width": choice.width, "panels": choice.panels}
    (packed,) = a.emit("lowered.pack_winograd", (a.as_plain(w),), attrs, f"{w.name}_packed")
    a.follow(w, packed)
    attributes = {
        "tile": choice.tile,
        "window": as_int(w.shape[2]),
        "stride": stride,
        "dilation": conv.dilations[0],
        "pads": conv.pads,
        "channels": as_int(w.shape[0]),
        "input_channels": as_int(w.shape[1]),
        "out_block": a.block,
    }
    (a.blocked[node.output],) = a.emit("lowered.conv_winograd", (a.as_blocked(x), packed), attributes, node.output.name)
    return True
