"""1x1 convolutions over NCHW maps: for groups that fill no blocks, and for layers without blocked neighbours.

A layer that reads and writes NCHW tensors needs no conversion in this form, which saves more time than a faster product
could.
"""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ops.conv import ConvAttrs
from tilewright.plans.convolution.pixels import panels
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.problems import pixel_problem


def pointwise(a: Assigner, node: Node) -> bool:
    """Rewrite a 1x1 convolution into a product over the pixels of an NCHW map, one product for each group of
    channels."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    width = decide(
        lambda: key_of_nodes("panels", [node], a.target),
        panels(pixel_problem(node), a.target),
        lambda way: Setting("panels", (("width", way[1]),)),
        lambda way: way[0],
    )[1]
    conv = node.of(ConvAttrs)
    attrs = {"groups": conv.groups, "width": width}
    (packed,) = a.emit("lowered.pack_pointwise", (a.as_row_major(w),), attrs, f"{w.name}_packed")
    a.follow(w, packed)
    source = a.as_row_major(x)
    if any(s > 1 for s in conv.strides):
        # A strided map is not one row of pixels: those that are read are taken out first.
        size = (*x.shape[:2], *node.output.shape[2:])
        selected = {"begin": (0,) * 4, "size": size, "step": (1, 1, *conv.strides)}
        (source,) = a.emit("slice", (source,), selected, f"{x.name}_strided")
    attributes = {"channels": as_int(w.shape[0])}
    inputs = (source, packed)
    (a.row_major[node.output],) = a.emit("lowered.conv_pointwise_groups", inputs, attributes, node.output.name)
    return True
