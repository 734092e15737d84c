"""Layouts of the gradients of convolutions with respect to weights: the channels that fill vectors best become
lanes."""

from __future__ import annotations

from typing import Literal

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ops.conv_gradient import ConvWeightGradientAttrs
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.problems import data_side


def conv_weight(a: Assigner, node: Node) -> bool:
    """Rewrite a gradient for maps of known channels and sizes; the data are padded in their blocked form."""
    x, g = node.inputs[:2]
    assert x is not None and g is not None
    data, attrs = data_side(node, a.block), node.of(ConvWeightGradientAttrs)
    if data is None:
        return False
    narrow_blocked = (as_int((x if data == "narrow" else g).shape[1]) or 1) % a.block == 0

    def prepared(value: Value, blocked: bool) -> Value:
        form = a.as_blocked(value) if blocked else a.as_row_major(value)
        return padded(a, form, attrs) if value is x else form

    wide, narrow = (x, g) if data == "wide" else (g, x)
    attributes = {"strides": attrs.strides, "dilations": attrs.dilations, "window": attrs.window, "data": data}
    operands = (prepared(wide, True), prepared(narrow, narrow_blocked))
    (result,) = a.emit("lowered.conv_weight", operands, attributes, f"{node.output.name}_blocked")
    a.row_major[node.output] = unblocked(a, result, node, data)
    return True


def padded(a: Assigner, x: Value, attrs: ConvWeightGradientAttrs) -> Value:
    pads, rank = attrs.pads, len(attrs.strides)
    if not any(pads):
        return x
    after = (0,) * (x.type.rank - 2 - rank)
    enclosing = {"before": (0, 0, *pads[:rank], *after), "after": (0, 0, *pads[rank:], *after), "mode": "constant"}
    return a.emit("pad", (x,), enclosing, f"{x.name}_padded")[0]


def unblocked(a: Assigner, blocks: Value, node: Node, data: Literal["wide", "narrow"]) -> Value:
    """The sums of `lowered.conv_weight`, [W/b, C/b, kh, kw, c, w], as the gradient [F, C, kh, kw] that `node` computes.
    `data` says whether the input or the gradient of the result is the wide operand W."""
    (filters, channels), name = (as_int(d) or 1 for d in node.output.shape[:2]), node.output.name
    outer, inner, kh, kw, narrow, wide = (as_int(d) or 0 for d in blocks.shape)
    perm, shape = ((0, 5, 1, 4, 2, 3), (outer * wide, inner * narrow, kh, kw))
    if data == "wide":
        perm, shape = (1, 4, 0, 5, 2, 3), (inner * narrow, outer * wide, kh, kw)
    (transposed,) = a.emit("transpose", (blocks,), {"perm": perm}, name)
    (joined,) = a.emit("reshape", (transposed,), {"shape": shape}, name)
    if shape[:2] == (filters, channels):
        return joined
    size = (filters, channels, kh, kw)
    return a.emit("slice", (joined,), {"begin": (0,) * 4, "size": size, "step": (1,) * 4}, name)[0]
