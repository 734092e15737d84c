"""Layouts of convolutions: channels in blocks, weights in panels, or in the form of the algorithm noted on the node."""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Dots, Matrices, Pairs, Pixels, SplitGathered, SplitMatrices
from tilewright.ops.conv import ConvAttrs
from tilewright.plans.convolution.tiles import Blocking
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.pixels import pointwise
from tilewright.transform.layout.precision import conv_in_dots, conv_in_matrices, conv_in_pairs
from tilewright.transform.layout.split import split_conv
from tilewright.transform.problems import blockings_of


def conv(a: Assigner, node: Node) -> bool:
    """Rewrite a 2-D convolution of one group by the algorithm noted on the node; returns whether it did. The output is
    blocked, and the input if its channels fill whole blocks. Algorithms for NCHW maps stay NCHW."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    attrs, channels = node.of(ConvAttrs), [as_int(d) for d in w.shape]
    if x.type.rank != 4 or attrs.groups != 1 or not a.packs(w, node.output) or None in channels:
        return False
    if x.dtype.name != "f32" or 0 in channels:
        return False
    k, c = channels[0], channels[1]
    assert k is not None and c is not None
    match node.algorithm:
        case Pixels():
            return pointwise(a, node)
        case Matrices() as choice:
            return conv_in_matrices(a, node, choice)
        case Pairs():
            return conv_in_pairs(a, node)
        case Dots():
            return conv_in_dots(a, node)
        case SplitMatrices() | SplitGathered() as choice:
            return split_conv(a, node, choice)
    blocking = panels_of(a, node)
    packed = pack(a, w, blocking)
    source = a.as_blocked(x) if c % a.block == 0 else a.as_row_major(x)
    attributes = {
        "pads": attrs.pads,
        "strides": attrs.strides,
        "dilations": attrs.dilations,
        "channels": k,
        "out_block": a.block,
        "flat": blocking.flat,
    }
    (a.blocked[node.output],) = a.emit("lowered.conv_blocked", (source, packed), attributes, node.output.name)
    return True


def panels_of(a: Assigner, node: Node) -> Blocking:
    """The panels in which a direct convolution's filters are packed (how wide, and whether flat), decided by the
    estimated cycles of all ways."""
    w = node.inputs[1]
    assert w is not None
    filters, channels = (as_int(d) or 1 for d in w.shape[:2])
    _, ways = blockings_of(node, filters, channels, a.block if channels % a.block == 0 else 1, a.target)
    return decide(
        lambda: key_of_nodes("panels", [node], a.target),
        ways,
        lambda way: Setting("panels", (("width", way[1].width), ("flat", int(way[1].flat)))),
        lambda way: way[0],
    )[1]


def pack(a: Assigner, w: Value, blocking: Blocking) -> Value:
    """Emit the filters `w` packed in panels. Their channels are in blocks of `a.block` if they fill whole blocks."""
    block = a.block if (as_int(w.shape[1]) or 1) % a.block == 0 else 1
    panels = {"block": block, "width": blocking.width}
    (packed,) = a.emit("lowered.pack_conv", (a.as_row_major(w),), panels, f"{w.name}_packed")
    a.follow(w, packed)
    return packed
