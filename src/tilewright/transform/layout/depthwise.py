"""Layouts of convolutions in groups: channels in blocks, a vector of filters for each tap."""

from __future__ import annotations

from functools import partial
from math import gcd, prod
from typing import Any

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Matrices, Pairs, SplitMatrices
from tilewright.ops.conv import ConvAttrs
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.tiles import conv_tile
from tilewright.plans.matmul.tiles import starts
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.pixels import pointwise
from tilewright.transform.layout.precision import conv_in_matrices, conv_in_pairs
from tilewright.transform.layout.split import split_conv
from tilewright.transform.problems import is_pointwise

SHORT_FILTERS = 4
"""The least number of filters per channel for which a block of filters is worth it: of fewer, it would be mostly
zeros."""

OF_WINDOWS = 0.5
"""The least ratio of (share of filters that are not zeros) to (share of lanes that a row fills, `line_share`) at which
groups whose filters do not fill a block are filled up with filters of zeros and computed by windows. Tiles of pixels
were as fast at 0.2 to 0.58 for 18 groups of 3 to 8 filters with AVX-512, at 0.5 to 0.65 with AVX2 (Zen 5, 27 November
2026)."""
OF_HALF_VECTORS = 0.8
"""The ratio of `OF_WINDOWS` for blocks of half a vector. In these, groups of 4 filters on lines of 22 to 42 pixels
took 1.1 to 2 times as long as by tiles of pixels, groups of 3 on lines of 8 pixels 1.4 times (Zen 4, 28 November
2026)."""


def grouped(a: Assigner, node: Node) -> bool:
    """Rewrite a convolution in groups: of maps depthwise, with a multiplier, or with groups that divide a block; with
    other groups, of maps and volumes. Returns whether it did."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    conv = node.of(ConvAttrs)
    groups, known = conv.groups, [as_int(d) for d in w.shape]
    if x.type.rank not in (4, 5) or groups == 1 or not a.packs(w, node.output) or x.dtype.name != "f32":
        return False
    filters, per_in = known[:2]
    if not filters or not per_in or None in known:
        return False
    per_out = filters // groups
    match node.algorithm:
        case Matrices() as choice:
            return conv_in_matrices(a, node, choice)
        case Pairs():
            return conv_in_pairs(a, node)
        case SplitMatrices() as choice:
            return split_conv(a, node, choice)
    if x.type.rank == 4 and is_pointwise(node):
        return pointwise(a, node)
    if per_in % a.block == 0 and per_out % a.block == 0 and per_in > a.block:
        return windows(a, node)
    if x.type.rank == 5 and per_in == 1:
        return False
    if x.type.rank == 5 or in_half_parts(per_in, per_out, node, a) or not lanes_follow(per_in, per_out, a.block):
        return windows(a, node) if per_out % a.block == 0 else grown_groups(a, node)
    (packed,) = a.emit("lowered.pack_depthwise", (a.as_row_major(w),), {"block": a.block}, f"{w.name}_packed")
    a.follow(w, packed)
    attrs: dict[str, Any] = {"strides": conv.strides, "dilations": conv.dilations, "pads": conv.pads}
    attrs |= {"per_in": per_in, "per_out": per_out}
    (a.blocked[node.output],) = a.emit("lowered.conv_depthwise", (a.as_blocked(x), packed), attrs, node.output.name)
    return True


def lanes_follow(per_in: int, per_out: int, block: int) -> bool:
    """Whether a vector of filters reads from one vector of channels, for groups of `per_in` input and `per_out` output
    channels: the group or the multiplier divides a block, or the block divides it. Otherwise each lane would be loaded
    separately, which is still the best for few filters."""
    if per_in == 1:
        return per_out < SHORT_FILTERS or block % per_out == 0 or per_out % block == 0
    return per_in == per_out and block % per_in == 0


def in_half_parts(per_in: int, per_out: int, node: Node, a: Assigner) -> bool:
    """Whether to use half vectors for groups of half a block, of `per_in` input and `per_out` output channels: a core
    starts twice as many of them, and all lanes of a vector read the same channel."""
    half = a.block // 2
    more = starts(4 * half, a.target) > starts(4 * a.block, a.target)
    return per_in == per_out == half and more and keeps_busy(node, half, a)


def keeps_busy(node: Node, lanes: int, a: Assigner) -> bool:
    """Whether a row of the result has enough pixels to hide the latency of a multiply-add with vectors of `lanes`
    lanes."""
    width = as_int(node.output.shape[-1])
    return width is None or width >= a.target.costs.arithmetic.fma_latency * starts(4 * lanes, a.target)


def group_block(each: int, node: Node, a: Assigner) -> int:
    """The block size for groups of `each` filters: half a vector if the half vectors of a group take no longer than the
    whole ones that it needs."""
    half = a.block // 2
    half_vectors, whole = -(-each // half), -(-each // a.block)
    if a.block <= MIN_BLOCK or half_vectors > MAX_HALF_PARTS or half_vectors == 2 * whole:
        return a.block
    in_time = half_vectors / starts(4 * half, a.target) <= whole / starts(4 * a.block, a.target)
    return half if in_time and (each % half == 0 or keeps_busy(node, half, a)) else a.block


MAX_HALF_PARTS = 3
"""The largest number of half vectors in a panel. Groups that need more have panels of one half vector, which use each
pixel once."""
MIN_BLOCK = 8
"""Vectors of at most this number of lanes are not halved: a core starts no more halves of them than whole ones."""


def windows(a: Assigner, node: Node) -> bool:
    """Rewrite a convolution of any rank to one by windows, without a padded copy: groups whose filters fill blocks, or
    volumes of one group. Returns whether it did."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    if not a.packs(w, node.output) or x.dtype.name != "f32" or any(not as_int(d) for d in w.shape):
        return False
    a.blocked[node.output] = in_windows(a, node, a.as_row_major(w), a.block)
    return True


def grown_groups(a: Assigner, node: Node) -> bool:
    """Rewrite groups whose filters do not fill blocks: each gets filters of zeros up to a block, which a slice removes
    from the result. Returns whether it did."""
    _, w = node.inputs[:2]
    assert w is not None
    groups, y = node.of(ConvAttrs).groups, node.output
    filters, *window = (as_int(d) or 0 for d in w.shape)
    each, name = filters // groups, w.name
    block = group_block(each, node, a)
    whole = -(-each // block) * block
    share = OF_WINDOWS if block == a.block else OF_HALF_VECTORS
    ordinary = all(s == 1 for s in node.of(ConvAttrs).strides)
    if ordinary and 2 * each <= a.block and each / whole < share * line_share(node, a.block):
        return False  # tiles of pixels, `plans/sketch/`; sampled ones would be gathered
    grown = a.as_row_major(w)
    if whole == each:
        channels = {"channels": filters}
        (a.row_major[y],) = a.emit("lowered.unblock_channels", (in_windows(a, node, grown, block),), channels, y.name)
        return True
    pads = {"before": (0, 0, 0), "after": (0, whole - each, 0), "mode": "constant"}
    for op, attrs in (
        ("reshape", {"shape": (groups, each, prod(window))}),
        ("pad", pads),
        ("reshape", {"shape": (groups * whole, *window)}),
    ):
        (grown,) = a.emit(op, (grown,), attrs, f"{name}_grown")
        a.follow(w, grown)
    blocked, channels = in_windows(a, node, grown, block), {"channels": groups * whole}
    (value,) = a.emit("lowered.unblock_channels", (blocked,), channels, f"{y.name}_grown")
    batch, _, *space = y.shape
    (value,) = a.emit("reshape", (value,), {"shape": (batch, groups, whole, *space)}, f"{y.name}_grown")
    rank = len(space) + 3
    selected = {"begin": (0,) * rank, "size": (batch, groups, each, *space), "step": (1,) * rank}
    (value,) = a.emit("slice", (value,), selected, f"{y.name}_groups")
    (a.row_major[y],) = a.emit("reshape", (value,), {"shape": y.shape}, y.name)
    return True


def line_share(node: Node, lanes: int) -> float:
    """The share of lanes that a row of the result fills, of vectors of `lanes`; 1 if the row's length is not known."""
    width = as_int(node.output.shape[-1])
    return 1.0 if not width else width / (-(-width // lanes) * lanes)


def in_windows(a: Assigner, node: Node, w: Value, out_block: int) -> Value:
    """Emit the convolution by windows, in blocks of `out_block`, with weights that may have more filters than the
    node's."""
    x = node.inputs[0]
    assert x is not None
    conv = node.of(ConvAttrs)
    groups, (filters, depth) = conv.groups, (as_int(d) or 0 for d in w.shape[:2])
    block = a.block if depth % a.block == 0 else 1
    key = partial(key_of_nodes, "panels", [node], a.target)
    width = conv_tile(key, (*x.shape[:2], *node.output.shape[-2:]), filters // groups, a.target).width
    if out_block < a.block:
        width = filters // groups
    if groups > 1:
        width = gcd(width, filters // groups)
    (packed,) = a.emit("lowered.pack_conv", (w,), {"block": block, "width": width}, f"{w.name}_packed")
    a.follow(w, packed)
    attrs: dict[str, Any] = {"strides": conv.strides, "dilations": conv.dilations, "pads": conv.pads}
    attrs |= {"groups": groups, "channels": filters, "out_block": out_block}
    source = a.as_blocked(x) if block > 1 else a.as_row_major(x)
    (out,) = a.emit("lowered.conv_windows", (source, packed), attrs, node.output.name)
    return out
