"""Layouts of convolutions: channels in blocks, weights in panels."""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.plans.tiles import conv_tile
from tilewright.transform.graph.assigner import Assigner


def conv(a: Assigner, node: Node) -> bool:
    """2-D convolution, one group: blocked output; blocked input when the channels fill their blocks."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    channels = [as_int(d) for d in w.shape]
    if x.type.rank != 4 or node.attr("groups", 1) != 1 or w not in a.fixed or None in channels:
        return False
    if x.dtype.name != "f32" or 0 in channels:
        return False
    k, c = channels[0], channels[1]
    assert k is not None and c is not None
    block = a.block if c % a.block == 0 else 1
    tile = conv_tile(node.output.shape, k, a.target)
    attrs = {"block": block, "width": tile.width}
    (packed,) = a.emit("pack_conv", (a.as_plain(w),), attrs, f"{w.name}_packed")
    a.fixed.add(packed)
    source = a.as_blocked(x) if block > 1 else a.as_plain(x)
    attributes = {
        "pads": node.attr("pads"),
        "strides": node.attr("strides"),
        "dilations": node.attr("dilations"),
        "channels": k,
        "out_block": a.block,
    }
    (a.blocked[node.output],) = a.emit("conv_blocked", (source, packed), attributes, node.output.name)
    return True
