"""Layouts of convolutions: channels in blocks, weights in panels, or as the noted algorithm wants them."""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ir.selection import Matrices, Pixels, SplitMatrices, Winograd, WinogradBySize
from tilewright.ops.conv import ConvAttrs
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.transform.algorithm import record_of
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.pixels import pointwise
from tilewright.transform.layout.precision import conv_in_matrices
from tilewright.transform.layout.split import split_conv
from tilewright.transform.layout.winograd import winograd, winograd_by_size
from tilewright.transform.problems import blockings_of


def conv(a: Assigner, node: Node) -> bool:
    """2-D convolution, one group, by the algorithm that is noted: blocked output; blocked input when the channels fill
    their blocks. Those over NCHW maps stay NCHW."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    attrs, channels = node.of(ConvAttrs), [as_int(d) for d in w.shape]
    if x.type.rank != 4 or attrs.groups != 1 or not a.packs(w, node.output) or None in channels:
        return False
    if x.dtype.name != "f32" or 0 in channels:
        return False
    k, c = channels[0], channels[1]
    assert k is not None and c is not None
    block = a.block if c % a.block == 0 else 1
    if (record := record_of(node)) is not None:
        return record.lower(a, node)
    match node.algorithm:
        case Winograd() as choice:
            return winograd(a, node, choice)
        case WinogradBySize() as choice if choice.neartile:
            return winograd_by_size(a, node, choice, 0)
        case Pixels():
            return pointwise(a, node)
        case Matrices() as choice:
            return conv_in_matrices(a, node, choice)
        case SplitMatrices() as choice:
            return split_conv(a, node, choice)
    _, ways = blockings_of(node, k, c, block, a.target)
    _, blocking = decide(
        lambda: key_of_nodes("panels", [node], a.target),
        ways,
        lambda way: Setting("panels", (("width", way[1].width), ("flat", int(way[1].flat)))),
        lambda way: way[0],
    )
    if isinstance(node.algorithm, WinogradBySize):
        return winograd_by_size(a, node, node.algorithm, blocking.width)
    panels = {"block": block, "width": blocking.width}
    (packed,) = a.emit("lowered.pack_conv", (a.as_row_major(w),), panels, f"{w.name}_packed")
    a.follow(w, packed)
    source = a.as_blocked(x) if block > 1 else a.as_row_major(x)
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
