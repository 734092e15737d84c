"""Convolutions of few filters as convolutions of many: products for each tap of a window, whose maps are shifted and
summed.

    y = conv(x, w[K, C, kh, kw])   ->   m = conv(x, v[K * kh * kw, C, 1, 1]);  y = lowered.sum_taps(m)     whole windows
                                        m = conv(x, v[K * kw, C, kh, 1]);      y = lowered.sum_taps(m)     their lines
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import ops
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Node, TensorType, Value
from tilewright.ir.selection import Direct, Pixels, Selection, Taps
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.lowered.taps import SumTapsAttrs
from tilewright.transform.layout.assigner import Assigner


def taps(a: Assigner, node: Node, choice: Taps, conv: Callable[[Assigner, Node], bool]) -> bool:
    """Rewrite a convolution, the products of the taps by `conv`."""
    x, w, name = *node.inputs[:2], node.output.name
    assert x is not None and w is not None
    whole = bool(choice.whole)
    order = (0, 2, 3, 1) if whole else (0, 3, 1, 2)
    many = products(node, whole)
    shape = tuple(as_int(d) for d in many.inputs[1].shape) if many.inputs[1] is not None else ()
    (turned,) = a.emit("transpose", (a.as_plain(w),), {"perm": order}, f"{w.name}_taps")
    (filters,) = a.emit("reshape", (turned,), {"shape": shape}, f"{w.name}_taps")
    a.follow(w, turned, filters)
    a.plain[filters] = filters
    selected = Selection(Pixels() if choice.plain else Direct())
    if not conv(a, Node("conv", (x, filters), many.outputs, many.attrs, selected)):
        (a.plain[many.output],) = a.emit("conv", (a.as_plain(x), filters), many.attrs, many.output.name)
    (a.plain[node.output],) = a.emit("lowered.sum_taps", (a.as_plain(many.output),), sums(node, whole), name)
    return True


def products(node: Node, whole: bool) -> Node:
    """The convolution that makes the maps of all taps; its weights and its result are in no graph."""
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


def sums(node: Node, whole: bool) -> SumTapsAttrs:
    """What is left of the window: all of it, or its columns."""
    w, conv = node.inputs[1], node.of(ConvAttrs)
    assert w is not None
    kh, kw = (as_int(d) or 0 for d in w.shape[2:])
    if whole:
        return SumTapsAttrs((kh, kw), conv.strides, conv.dilations, conv.pads)
    pads = (0, conv.pads[1], 0, conv.pads[3])
    return SumTapsAttrs((1, kw), (1, conv.strides[1]), (1, conv.dilations[1]), pads)
