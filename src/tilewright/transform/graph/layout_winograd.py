"""Convolutions of stride one by Winograd's transforms, where an estimate says that they are faster."""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.plans.winograd_tiles import Choice, Shape, choose
from tilewright.transform.graph.assigner import Assigner

SIZES = {"auto": (4, 6, 7, 8), "exact": (), "f2": (4,), "f4": (4, 6), "f6": (4, 6, 7, 8)}
"""Sizes of transformed tiles that each setting of `winograd` allows: 4, 6, 7 and 8 are F(2,3), F(4,3), F(5,3), F(6,3),
but also F(2,5), F(3,5), F(4,5) and F(2,7), whose matrices come from the same points."""

MOST_CHANNELS = {4: 4096, 6: 4096, 7: 128, 8: 128}
"""Channels up to which "auto" takes a size: the error stays within 2e-5 of the output's scale (docs/accuracy.md)."""

WINDOWS = (3, 5, 7, 9, 11, 13, 15, 17)

FOURIER = (12, 16, 20, 24)
"""Sizes of tiles that all settings but "exact" allow for large windows: Fourier's transform loses no digits."""

LARGE = 5
"""The first such window."""

SYMBOLIC_IMAGES = (1, 8)
"""Batches that a symbolic one is judged by."""


def winograd(a: Assigner, node: Node) -> bool:
    """Rewrite a convolution of stride one; False where it stays direct."""
    choice = choose_winograd(a, node)
    if choice is None:
        return False
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    attrs = {"tile": choice.tile, "block": a.block, "width": choice.width, "panels": choice.panels}
    (packed,) = a.emit("pack_winograd", (a.as_plain(w),), attrs, f"{w.name}_packed")
    a.fixed.add(packed)
    attributes = {
        "tile": choice.tile,
        "rows": choice.rows,
        "columns": choice.columns,
        "pads": node.attr("pads"),
        "channels": as_int(w.shape[0]),
        "input_channels": as_int(w.shape[1]),
        "out_block": a.block,
    }
    (a.blocked[node.output],) = a.emit("conv_winograd", (a.as_blocked(x), packed), attributes, node.output.name)
    return True


def choose_winograd(a: Assigner, node: Node) -> Choice | None:
    """The transform for a convolution, None if it has none or is faster without."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    if x.type.rank != 4 or w not in a.fixed or x.dtype.name != "f32" or node.attr("groups", 1) != 1:
        return None
    known = [as_int(d) for d in w.shape]
    height, width, images = (as_int(node.output.shape[k]) for k in (2, 3, 0))
    if None in known or not height or not width or images == 0:
        return None
    filters, channels, window, other = known
    assert filters is not None and channels is not None and window is not None
    if window != other or window not in WINDOWS or not filters or not channels or channels < a.block:
        return None
    if any(s != 1 for s in (*node.attr("strides"), *node.attr("dilations"))):
        return None
    batches = SYMBOLIC_IMAGES if images is None else (images,)
    shapes = tuple(Shape(n, height, width, channels, filters, window, a.weight_bytes) for n in batches)
    setting = a.options.winograd
    sizes = [n for n in SIZES[setting] if setting != "auto" or channels <= MOST_CHANNELS[n]]
    sizes += FOURIER if sizes and window >= LARGE else ()
    tiles = tuple(n - window + 1 for n in sizes if n > window)
    return choose(shapes, tiles, a.target)
