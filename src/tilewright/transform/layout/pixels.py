"""Convolutions of one pixel over plain maps: groups that fill no blocks, and layers with nothing blocked around them.

A layer that is given a plain tensor and whose result is wanted plain needs no conversion in this form, which is worth
more than anything in how the product is computed.
"""

from __future__ import annotations

from math import ceil, prod

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ops.conv import ConvAttrs
from tilewright.plans.convolution.pixels import PixelProblem, panels
from tilewright.plans.convolution.tiles import side
from tilewright.plans.framework.cost import Cost, fetch_cycles, write_cycles
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.targets.target import Target
from tilewright.transform.layout.assigner import Assigner


def is_pointwise(node: Node) -> bool:
    """Whether every output pixel reads one input pixel."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    attrs, size = node.of(ConvAttrs), [as_int(d) for d in (*x.shape[2:], *node.output.shape[2:])]
    if any(attrs.pads) or 0 in size:
        return False
    return all(as_int(d) == 1 for d in w.shape[2:])


def shape_of(node: Node) -> PixelProblem:
    """One image and group of a convolution of one pixel."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    filters, depth = (as_int(d) or 1 for d in w.shape[:2])
    attrs, pixels = node.of(ConvAttrs), prod(side(d) for d in node.output.shape[2:])
    return PixelProblem(filters // attrs.groups, pixels, depth)


def sampling(node: Node, target: Target) -> float:
    """Cycles of taking out the pixels of an image that a strided convolution reads; 0.0 where it reads all. Of lines
    that are read, all of them comes into the caches."""
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
"""A vector of every second element by one that is copied: it is made of two, line by line."""


def pointwise(a: Assigner, node: Node) -> bool:
    """A product over the plain map for each group."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    width = decide(
        lambda: key_of_nodes("panels", [node], a.target),
        panels(shape_of(node), a.target),
        lambda way: Setting("panels", (("width", way[1]),)),
        lambda way: way[0],
    )[1]
    conv = node.of(ConvAttrs)
    attrs = {"groups": conv.groups, "width": width}
    (packed,) = a.emit("lowered.pack_pointwise", (a.as_plain(w),), attrs, f"{w.name}_packed")
    a.follow(w, packed)
    source = a.as_plain(x)
    if any(s > 1 for s in conv.strides):
        # A strided map is not one row of pixels: those that are read are taken out first.
        size = (*x.shape[:2], *node.output.shape[2:])
        taken = {"begin": (0,) * 4, "size": size, "step": (1, 1, *conv.strides)}
        (source,) = a.emit("slice", (source,), taken, f"{x.name}_strided")
    attributes = {"channels": as_int(w.shape[0])}
    inputs = (source, packed)
    (a.plain[node.output],) = a.emit("lowered.conv_pointwise_groups", inputs, attributes, node.output.name)
    return True
