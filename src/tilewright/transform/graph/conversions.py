"""Changes of layout that a convolution's kernel makes: it transposes NCHW maps as it copies them into strips, and
writes its results as NCHW.

    x -> block_channels -> conv_winograd -> add -> relu -> unblock_channels -> y        one kernel

A separate pass writes the blocked map to memory, from where it is read again. Inside the convolution, a strip is
transposed while it is in the first levels of cache; but lines that several strips share are transposed several times,
and a part of a vector takes as long as a whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ir.notes import SharedLevel
from tilewright.ops.lowered.packed import ConvBlockedAttrs
from tilewright.plans.framework.cost import Cost, fetch_cycles, write_cycles
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import cheapest
from tilewright.plans.framework.symbolic import SYMBOLIC_IMAGES
from tilewright.plans.idioms.tile_axes import shuffle_cycles
from tilewright.support.discover import modules_beside
from tilewright.targets.target import Target

Absorbs = Callable[[Node, Node], bool]
"""A predicate (convolution, change of layout before or after it): whether both are one kernel."""


def never(conv: Node, conversion: Node) -> bool:
    return False


def absorbs(conv: Node, conversion: Node, target: Target, away: SharedLevel | None = None) -> bool:
    """Whether a convolution that changes the layout in its own kernel is estimated to be faster than a separate pass.
    `away` is the level of memory from which each call reads the weights."""
    inward = conversion.op == "lowered.block_channels"
    ordinary = conversion.inputs[0] if inward else conversion.output
    count = strips().get(conv.op)
    if ordinary is None or ordinary.type.rank != 4 or ordinary.dtype.itemsize != 4 or count is None:
        return False
    pixels = count(conv, inward, target, away)
    channels = as_int(ordinary.shape[1])
    if pixels is None or channels is None:
        return False
    elements = pixels * ceil(channels / target.lanes(4)) * target.lanes(4)
    inside = target.costs.traffic.masked_shuffles * shuffle_cycles(elements, target)
    way = cheapest(
        lambda: key_of_nodes("conversion", [conversion, conv] if inward else [conv, conversion], target),
        {"separate": separate(ordinary, target), "inside": inside},
    )
    return way == "inside"


def separate(ordinary: Value, target: Target) -> float:
    """The cycles, for one image, of a separate pass that changes the layout of `ordinary`. If the maps are only a
    little larger than the second-level cache, a part of them is read from it."""
    elements, images = prod(as_int(d) or 1 for d in ordinary.shape[1:]), as_int(ordinary.shape[0])
    shuffles, cycles = shuffle_cycles(elements, target), []
    for count in (images,) if images else SYMBOLIC_IMAGES:
        nbytes, touched = 4 * elements, 8 * elements * count
        cached, from_memory = (
            fetch_cycles(nbytes, size, target) + write_cycles(nbytes, size, target)
            for size in (min(touched, target.l2 // 2), touched)
        )
        held = min(1.0, target.l2 / touched)
        cycles.append(Cost(compute=shuffles, memory=held * cached + (1.0 - held) * from_memory).cycles)
    return sum(cycles) / len(cycles)


def direct_lines(conv: Node, inward: bool, target: Target, away: SharedLevel | None) -> float | None:
    """The cost of changing the layout of a direct convolution's result in its kernel, as the number of an image's
    pixels with rows rounded up to whole vectors. None if the convolution cannot do it: for its input (`inward`), flat
    products, or unknown sizes."""
    lanes = target.lanes(4)
    height, width = (as_int(d) for d in conv.output.shape[2:4])
    if inward or conv.of(ConvBlockedAttrs).flat or not height or not width:
        return None
    return height * ceil(width / lanes) * lanes


Strips = Callable[[Node, bool, Target, SharedLevel | None], float | None]
"""A function (convolution, whether its input is converted, target, level of memory of the weights) -> the number of
pixels that the convolution transposes for an image; None if it cannot change that layout."""

STRIPS: dict[str, Strips] = {"lowered.conv_blocked": direct_lines}


def strips() -> dict[str, Strips]:
    """For each operator that can change a layout, its function; algorithms' folders whose operators are imported add
    theirs."""
    folders = modules_beside("tilewright.algorithms", "strips", "operators")
    return STRIPS | {op: count for m in folders for op, count in m.STRIPS.items()}
