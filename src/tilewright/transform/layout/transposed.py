"""Layouts of transposed convolutions: phases of the output, each a correlation of stride one."""

from __future__ import annotations

from functools import partial

from tilewright.ir.attributes import Ints
from tilewright.ir.expr import as_int, ceildiv
from tilewright.ir.graph import Node, Value
from tilewright.ops.conv import ConvTransposeAttrs
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.tiles import conv_tile
from tilewright.transform.layout.assigner import Assigner


def transposed(a: Assigner, node: Node) -> bool:
    """A 2-D transposed convolution of one group: blocked output."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    attrs = node.of(ConvTransposeAttrs)
    channels, filters, *window = (as_int(d) for d in w.shape)
    if x.type.rank != 4 or attrs.groups != 1 or not a.packs(w, node.output) or x.dtype.name != "f32":
        return False
    if not channels or not filters or any(not k for k in window):
        return False
    filled = a.as_row_major(w)
    if any(d != 1 for d in attrs.dilations):
        filled = dilated(a, filled, attrs.dilations)
        window = [as_int(d) for d in filled.shape[2:]]
    strides, pads = attrs.strides, attrs.pads
    phase = [ceildiv(d, s) for d, s in zip(node.output.shape[2:], strides, strict=True)]
    key = partial(key_of_nodes, "panels", [node], a.target)
    tile = conv_tile(key, (*node.output.shape[:2], *phase), filters, a.target)
    block = a.block if channels % a.block == 0 else 1
    panels = {"block": block, "width": tile.width, "strides": strides}
    (packed,) = a.emit("lowered.pack_transposed", (filled,), panels, f"{w.name}_packed")
    a.follow(w, packed)
    source = a.as_blocked(x) if block > 1 else a.as_row_major(x)
    attributes = {
        "pads": pads,
        "strides": strides,
        "window": tuple(window),
        "channels": filters,
        "size": tuple(node.output.shape[2:]),
        "out_block": a.block,
    }
    (a.blocked[node.output],) = a.emit("lowered.conv_transposed", (source, packed), attributes, node.output.name)
    return True


def dilated(a: Assigner, w: Value, dilations: Ints) -> Value:
    """Weights whose taps stand at distances of `dilations`, with zeros between: no taps, for all that multiplies
    them."""
    channels, filters, *window = (as_int(d) or 0 for d in w.shape)
    spread = [k * d for k, d in zip(window, dilations, strict=True)]
    retained = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    separate = [n for k in window for n in (k, 1)]
    after = [0, 0, *(n for d in dilations for n in (0, d - 1))]
    source = w
    for op, attrs in (
        ("reshape", {"shape": (channels, filters, *separate)}),
        ("pad", {"before": (0,) * len(after), "after": tuple(after), "mode": "constant"}),
        ("reshape", {"shape": (channels, filters, *spread)}),
        ("slice", {"begin": (0,) * w.type.rank, "size": (channels, filters, *retained), "step": (1,) * w.type.rank}),
    ):
        (w,) = a.emit(op, (w,), attrs, f"{w.name}_dilated")
        a.follow(source, w)
    return w
