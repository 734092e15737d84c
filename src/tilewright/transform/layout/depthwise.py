"""Layouts of convolutions in groups: channels in blocks, a vector of filters for each tap."""

from __future__ import annotations

from functools import partial
from math import gcd
from typing import Any

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ops.conv import ConvAttrs
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.tiles import conv_tile
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.pixels import is_pointwise, pointwise


def grouped(a: Assigner, node: Node) -> bool:
    """A 2-D convolution in groups: depthwise, with a multiplier, or in groups that divide a block."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    conv = node.of(ConvAttrs)
    groups, known = conv.groups, [as_int(d) for d in w.shape]
    if x.type.rank != 4 or groups == 1 or w not in a.fixed or x.dtype.name != "f32":
        return False
    filters, per_in = known[:2]
    if not filters or not per_in or None in known:
        return False
    per_out = filters // groups
    if is_pointwise(node):
        return pointwise(a, node)
    if per_in % a.block == 0 and per_out % a.block == 0 and per_in > a.block:
        return windows(a, node)
    if not (per_in == 1 or (per_in == per_out and a.block % per_in == 0)):
        return False
    (packed,) = a.emit("lowered.pack_depthwise", (a.as_plain(w),), {"block": a.block}, f"{w.name}_packed")
    a.fixed.add(packed)
    attrs: dict[str, Any] = {"strides": conv.strides, "dilations": conv.dilations, "pads": conv.pads}
    attrs |= {"per_in": per_in, "per_out": per_out}
    (a.blocked[node.output],) = a.emit("lowered.conv_depthwise", (a.as_blocked(x), packed), attrs, node.output.name)
    return True


def windows(a: Assigner, node: Node) -> bool:
    """A convolution of any rank without stored padding: groups that fill blocks, or volumes of one group."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    conv = node.of(ConvAttrs)
    groups, known = conv.groups, [as_int(d) for d in w.shape]
    if w not in a.fixed or x.dtype.name != "f32" or None in known or 0 in known:
        return False
    filters, depth = known[:2]
    assert filters is not None and depth is not None
    block = a.block if depth % a.block == 0 else 1
    key = partial(key_of_nodes, "panels", [node], a.target)
    width = conv_tile(key, (*x.shape[:2], *node.output.shape[-2:]), filters // groups, a.target).width
    if groups > 1:
        width = gcd(width, filters // groups)
    (packed,) = a.emit("lowered.pack_conv", (a.as_plain(w),), {"block": block, "width": width}, f"{w.name}_packed")
    a.fixed.add(packed)
    attrs: dict[str, Any] = {"strides": conv.strides, "dilations": conv.dilations, "pads": conv.pads}
    attrs |= {"groups": groups, "channels": filters, "out_block": a.block}
    source = a.as_blocked(x) if block > 1 else a.as_plain(x)
    (a.blocked[node.output],) = a.emit("lowered.conv_windows", (source, packed), attrs, node.output.name)
    return True
