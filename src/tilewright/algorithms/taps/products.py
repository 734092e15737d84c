"""The convolution that multiplies all taps of a window, and the sums over them, from a node."""

from __future__ import annotations

from tilewright import ops
from tilewright.algorithms.taps.operators import SumTapsAttrs
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Node, TensorType, Value
from tilewright.ops.conv import ConvAttrs


def tap_products(node: Node, whole: bool) -> Node:
    """A 1x1 convolution node that computes, for each tap of `node`, the map of that tap's products. It is not part of a
    graph."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    filters, channels, kh, kw = (as_int(d) or 0 for d in w.shape)
    conv = node.of(ConvAttrs)
    if whole:
        shape = (filters * kh * kw, channels, 1, 1)
        attrs = ConvAttrs((1, 1), (1, 1), (0, 0, 0, 0), 1)
    else:
        shape, pads = (filters * kw, channels, kh, 1), conv.pads
        attrs = ConvAttrs((conv.strides[0], 1), (conv.dilations[0], 1), (pads[0], 0, pads[2], 0), 1)
    weights = Value(f"{w.name}_taps", TensorType(w.dtype, tuple(const(n) for n in shape)))
    (maps,) = ops.infer("conv", (x.type, weights.type), attrs)
    return Node("conv", (x, weights), (Value(f"{node.output.name}_taps", maps),), attrs)


def tap_sums(node: Node, whole: bool) -> SumTapsAttrs:
    """The attributes of the sums over the taps' maps: over the whole window, or over its columns."""
    w, conv = node.inputs[1], node.of(ConvAttrs)
    assert w is not None
    kh, kw = (as_int(d) or 0 for d in w.shape[2:])
    if whole:
        return SumTapsAttrs((kh, kw), conv.strides, conv.dilations, conv.pads)
    pads = (0, conv.pads[1], 0, conv.pads[3])
    return SumTapsAttrs((1, kw), (1, conv.strides[1]), (1, conv.dilations[1]), pads)
