"""Layouts of transposed convolutions: phases of the output, each a correlation of stride one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.ir.attributes import Ints
from tilewright.ir.expr import as_int, ceildiv
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Algorithm, Selection
from tilewright.ops.conv import ConvTransposeAttrs
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.tiles import conv_tile
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.conv import conv
from tilewright.transform.phases import Phases, grid_of, phases


def transposed(a: Assigner, node: Node) -> bool:
    """Rewrite a 2-D transposed convolution of one group into one with packed filters, or into convolutions for its
    phases, with a result in blocks of channels; returns whether it did."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    attrs = node.of(ConvTransposeAttrs)
    channels, filters, *window = (as_int(d) for d in w.shape)
    if x.type.rank != 4 or attrs.groups != 1 or not a.packs(w, node.output) or x.dtype.name != "f32":
        return False
    if not channels or not filters or any(not k for k in window):
        return False
    if node.algorithm is not None:
        return by_phases(a, node, node.algorithm)
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


def by_phases(a: Assigner, node: Node, choice: Algorithm) -> bool:
    """Rewrite a transposed convolution as one convolution for all phases with equally many taps, by an algorithm whose
    maps are in blocks. The results of the phases are then interleaved.

    y = conv_transpose(x, w)   ->   m = conv(x, phases of w);  y = slice(reshape(transpose(m)))
    """
    w, attrs = node.operands(2)[1], node.of(ConvTransposeAttrs)
    (sh, sw), (height, width), images = attrs.strides, grid_of(node), node.output.shape[0]
    lines: dict[int, list[Value]] = {}
    for part in phases(node, a.block):
        weights = part.conv.operands(2)[1]
        a.row_major[weights] = of_phases(a, a.row_major[w], part, attrs.strides)
        a.follow(w, weights)
        conv(a, replace(part.conv, selected=Selection(choice)))
        down, across = (r.count for r in part.ranges)
        shape = (images, down, across, part.filters // a.block, height, width, a.block)
        (maps,) = a.emit("reshape", (a.blocked[part.conv.output],), {"shape": shape}, f"{node.output.name}_phases")
        lines.setdefault(part.ranges[0].first, []).append(maps)
    name = node.output.name
    whole = [_beside(a, maps, 2, name) for _, maps in sorted(lines.items())]
    blocks = -(-(as_int(node.output.shape[1]) or 1) // a.block)
    (y,) = a.emit("transpose", (_beside(a, whole, 1, name),), {"perm": (0, 3, 4, 1, 5, 2, 6)}, f"{name}_whole")
    (y,) = a.emit("reshape", (y,), {"shape": (images, blocks, height * sh, width * sw, a.block)}, f"{name}_whole")
    begin = (0, 0, *attrs.pads[:2], 0)
    size = (images, blocks, *node.output.shape[2:], a.block)
    (a.blocked[node.output],) = a.emit("slice", (y,), {"begin": begin, "size": size, "step": (1,) * 5}, name)
    return True


def _beside(a: Assigner, parts: list[Value], axis: int, name: str) -> Value:
    return parts[0] if len(parts) == 1 else a.emit("concat", tuple(parts), {"axis": axis}, f"{name}_phases")[0]


def of_phases(a: Assigner, w: Value, part: Phases, strides: Ints) -> Value:
    """Emit the weights `[C, K, kh, kw]` of the phases in `part` as `[phases * filters, C, taps, taps]`, mirrored, with
    filters of zeros after the K."""
    channels, filters, *window = (as_int(d) or 1 for d in w.shape)
    for axis, more in (
        (1, part.filters - filters),
        *((k + 2, -d % s) for k, (d, s) in enumerate(zip(window, strides, strict=True))),
    ):
        if more:
            w = a.longer(w, axis, more)
    separate = [n for d, s in zip(w.shape[2:], strides, strict=True) for n in ((as_int(d) or 1) // s, s)]
    w = a.derive("reshape", w, shape=(channels, part.filters, *separate))
    (down, across), zeros = part.ranges, (0, 0)
    begin = (*zeros, down.taps - 1, down.first, across.taps - 1, across.first)
    size = (channels, part.filters, down.taps, down.count, across.taps, across.count)
    w = a.derive("slice", w, begin=begin, size=size, step=(1, 1, -1, 1, -1, 1))
    w = a.derive("transpose", w, perm=(3, 5, 1, 0, 2, 4))
    return a.derive("reshape", w, shape=(down.count * across.count * part.filters, channels, down.taps, across.taps))


def dilated(a: Assigner, w: Value, dilations: Ints) -> Value:
    """Emit weights with zeros between their taps, for algorithms without dilation: the distance between neighbouring
    taps is then `dilations` pixels."""
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
