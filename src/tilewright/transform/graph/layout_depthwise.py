"""Layouts of convolutions in groups: channels in blocks, a vector of filters for each tap."""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.transform.graph.assigner import Assigner


def grouped(a: Assigner, node: Node) -> bool:
    """A 2-D convolution in groups: depthwise, with a multiplier, or in groups that divide a block."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    groups, known = node.attr("groups", 1), [as_int(d) for d in w.shape]
    if x.type.rank != 4 or groups == 1 or w not in a.fixed or x.dtype.name != "f32":
        return False
    filters, per_in = known[:2]
    if not filters or not per_in or None in known:
        return False
    per_out = filters // groups
    if not (per_in == 1 or (per_in == per_out and a.block % per_in == 0)):
        return False
    (packed,) = a.emit("pack_depthwise", (a.as_plain(w),), {"block": a.block}, f"{w.name}_packed")
    a.fixed.add(packed)
    attrs = {name: node.attr(name) for name in ("pads", "strides", "dilations")}
    attrs |= {"per_in": per_in, "per_out": per_out}
    (a.blocked[node.output],) = a.emit("conv_depthwise", (a.as_blocked(x), packed), attrs, node.output.name)
    return True
