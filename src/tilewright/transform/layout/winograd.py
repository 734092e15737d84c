"""Convolutions by Winograd's transforms, where an estimate says that they are faster."""

from __future__ import annotations

from math import ceil

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ops.correlation import points
from tilewright.plans.framework.symbolic import SYMBOLIC_IMAGES
from tilewright.plans.winograd.errors import largest_error
from tilewright.plans.winograd.tiles import Choice, Shape, choose
from tilewright.transform.layout.assigner import Assigner

MOST = {"auto": 8, "exact": 0, "f2": 4, "f4": 6, "f6": 8, "strassen": 8}
"""The most inputs of a tile (a side; with a stride, of the largest phase) that each setting of `winograd` allows."""

ERRORS = {"auto": 2.5e-5, "exact": 4e-6, "f2": 2e-6, "f4": 1e-5, "f6": 2.5e-5, "strassen": 2.5e-5}
"""The largest error of a layer that each allows, relative to its largest output (docs/accuracy.md): a tile that is
expected to exceed it (`plans/winograd/errors.py`) is not taken."""

SIZES = (4, 6, 7, 8)
"""Those of stride one: F(2,3), F(4,3), F(5,3), F(6,3), but also F(2,5), F(3,5), F(4,5) and F(2,7), whose matrices come
from the same points. F(3,3) is never much better than its neighbours, and was slower where its filters come from memory
(512 channels, 7 x 7)."""

STRIDED = (3, 4, 5, 6)
"""Those with a stride: of a window of 3 and a stride of 2 F(2,2) to F(5,2) beside the identity. 4x4 outputs take 5.06
products for one, 7x7 outputs 4.59 and transformed filters of 2.8 times the size."""

WINDOWS = range(2, 18)

FOURIER = (12, 16, 20, 24)
"""Sizes of tiles that all settings but "exact" allow for large windows of stride one: Fourier's transform loses no
digits."""

LARGE = 5
"""The first such window."""


def winograd(a: Assigner, node: Node) -> bool:
    """Rewrite a convolution; False where it stays direct."""
    choice = choose_winograd(a, node)
    if choice is None:
        return False
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    stride = node.attr("strides")[0]
    attrs = {"tile": choice.tile, "stride": stride, "block": a.block, "width": choice.width, "panels": choice.panels}
    (packed,) = a.emit("pack_winograd", (a.as_plain(w),), attrs, f"{w.name}_packed")
    a.fixed.add(packed)
    attributes = {
        "tile": choice.tile,
        "window": as_int(w.shape[2]),
        "stride": stride,
        "dilation": node.attr("dilations")[0],
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
    (stride, *strides), (apart, *dilations) = node.attr("strides"), node.attr("dilations")
    if any(s != stride for s in strides) or any(d != apart for d in dilations) or stride >= window:
        return None
    batches = SYMBOLIC_IMAGES if images is None else (images,)
    height, width = ceil(height / apart), ceil(width / apart)
    shapes = tuple(
        Shape(n * apart**2, height, width, channels, filters, window, a.weight_bytes, stride) for n in batches
    )
    setting = a.options.winograd
    sizes = within(ERRORS[setting], tiles(window, stride, setting), window, stride, channels, a.block)
    return choose(shapes, sizes, a.target)


def tiles(window: int, stride: int, setting: str) -> tuple[int, ...]:
    """Outputs of a tile, a side, that a setting of `winograd` allows."""
    sizes = [n for n in (SIZES if stride == 1 else STRIDED) if n <= MOST[setting]]
    if sizes and stride == 1 and window >= LARGE:
        sizes += FOURIER
    found = (n - points(1, window, stride) + 1 for n in sizes)
    return tuple(m for m in found if m > 1)


def within(
    bound: float, sizes: tuple[int, ...], window: int, stride: int, channels: int, lanes: int
) -> tuple[int, ...]:
    """Those of the tiles whose largest error is expected to stay within a bound, of channels in blocks of `lanes`."""
    return tuple(m for m in sizes if largest_error(m, window, stride, channels, lanes) <= bound)
