"""Operators whose results are elements of their inputs, unchanged. Applied to codes, they give the codes of the numbers
that they would give.

    scatter_nd(s * (a - z), at, s * (b - z))   ==   s * (scatter_nd(a, at, b) - z)

Some fill places with 0, whose code is the zero point. Some compare elements; they select the same ones among codes that
are in the order of their numbers.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ops.pool import MaxPoolAttrs
from tilewright.ops.resize import ResizeAttrs
from tilewright.ops.sample import GridSampleAttrs
from tilewright.ops.scatter import ScatterAttrs
from tilewright.ops.shape import PadAttrs

SHAPING = ("reshape", "transpose", "broadcast")
"""Operators that move all elements of one input."""
SELECTS = ("slice", "gather", "gather_elements", "gather_nd", "tile", "reverse_sequence")
"""Operators whose results are elements of their first input, in other places."""
SCATTERS = ("scatter_elements", "scatter_nd")
OPERATORS = (*SHAPING, *SELECTS, *SCATTERS, "concat", "resize", "pad", "grid_sample", "max_pool", "topk")


def selected(node: Node) -> tuple[int, ...]:
    """The numbers of the inputs whose elements make up a node's first result, places filled with 0 aside; () for other
    nodes."""
    match node.op:
        case "concat":
            return tuple(range(len(node.inputs)))
        case "scatter_elements" | "scatter_nd":
            return (0, 2) if node.of(ScatterAttrs).reduction in ("none", "max", "min") else ()
        case "resize":
            resize = node.of(ResizeAttrs)
            return (0,) if resize.mode == "nearest" and resize.roi is None and not resize.antialias else ()
        case "pad":
            pad = node.of(PadAttrs)
            return (0,) if pad.mode != "constant" or (pad.value == 0 and len(node.inputs) == 1) else ()
        case "grid_sample":
            return (0,) if node.of(GridSampleAttrs).mode == "nearest" else ()
        case "max_pool":
            return (0,) if _has_elements(node.of(MaxPoolAttrs)) else ()
    return (0,) if node.op in (*SHAPING, *SELECTS, "topk") else ()


def compares(node: Node) -> bool:
    """Whether the elements that a node selects depend on comparisons of elements, as in a sort or a maximum."""
    return node.op in ("max_pool", "topk") or (
        node.op in SCATTERS and node.of(ScatterAttrs).reduction in ("max", "min")
    )


def fills(node: Node) -> bool:
    """Whether a node that selects elements also fills places with zeros."""
    if node.op == "grid_sample":
        return node.of(GridSampleAttrs).padding == "zeros"
    return node.op == "pad" and node.of(PadAttrs).mode == "constant"


def of_codes(node: Node, zero: float | None, to: DType) -> Attrs | None:
    """The attributes with which a node selects among codes of type `to` whose zero point is `zero` (None: 0). None if
    it fills places with 0 and cannot fill them with the zero point."""
    if not fills(node) or not zero:
        return node.attrs
    is_code = zero.is_integer() and int(to.min) <= zero <= int(to.max)
    return replace(node.of(PadAttrs), value=int(zero)) if node.op == "pad" and is_code else None


def _has_elements(attrs: MaxPoolAttrs) -> bool:
    """Whether each window of a max pool has an element that is not padding."""
    spans = [(k - 1) * d + 1 for k, d in zip(attrs.kernel, attrs.dilations, strict=True)]
    inside = all(pad < span for pad, span in zip(attrs.pads, spans * 2, strict=True))
    return inside and set(attrs.dilations) == {1} and not attrs.ceil_mode
