"""Convolutions of few filters as convolutions of many: products for each tap of a window, whose maps are shifted and
summed.

    y = conv(x, w[K, C, kh, kw])   ->   m = conv(x, v[K * kh * kw, C, 1, 1]);  y = lowered.sum_taps(m)     whole windows
                                        m = conv(x, v[K * kw, C, kh, 1]);      y = lowered.sum_taps(m)     their lines
"""

from __future__ import annotations

from tilewright.algorithms.taps.products import tap_products, tap_sums
from tilewright.algorithms.taps.selection import Taps
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ir.selection import Direct, Pixels, Selection
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.conv import conv


def lower(a: Assigner, node: Node) -> bool:
    """Rewrite a convolution into one product for all of its taps and a sum; returns whether it did."""
    choice = node.algorithm
    assert isinstance(choice, Taps)
    x, w, name = *node.inputs[:2], node.output.name
    assert x is not None and w is not None
    whole = bool(choice.whole)
    order = (0, 2, 3, 1) if whole else (0, 3, 1, 2)
    several = tap_products(node, whole)
    shape = tuple(as_int(d) for d in several.inputs[1].shape) if several.inputs[1] is not None else ()
    (transposed,) = a.emit("transpose", (a.as_row_major(w),), {"perm": order}, f"{w.name}_taps")
    (filters,) = a.emit("reshape", (transposed,), {"shape": shape}, f"{w.name}_taps")
    a.follow(w, transposed, filters)
    a.row_major[filters] = filters
    selected = Selection(Pixels() if choice.nchw else Direct())
    if not conv(a, Node("conv", (x, filters), several.outputs, several.attrs, selected)):
        (a.row_major[several.output],) = a.emit(
            "conv", (a.as_row_major(x), filters), several.attrs, several.output.name
        )
    (a.row_major[node.output],) = a.emit(
        "lowered.sum_taps", (a.as_row_major(several.output),), tap_sums(node, whole), name
    )
    return True
