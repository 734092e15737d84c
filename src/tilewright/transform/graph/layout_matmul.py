"""Layouts of matrix products: the right operand in panels."""

from __future__ import annotations

from tilewright.ir.expr import as_int, is_const
from tilewright.ir.graph import Node
from tilewright.plans.matmul_tiles import matmul_tile
from tilewright.transform.graph.assigner import Assigner
from tilewright.transform.graph.layout_precision import reduced


def matmul(a: Assigner, node: Node) -> bool:
    """The right operand is packed into panels: once in `prepare` if it is a weight, else by a small kernel."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    if w.type.rank < 2 or x.type.rank < max(2, w.type.rank) or node.attr("transpose_a", False):
        return False
    if not w.dtype.is_float or x.dtype is not node.output.dtype or x.dtype is not w.dtype:
        return False
    transpose = bool(node.attr("transpose_b", False))
    k, n = (w.shape[-1], w.shape[-2]) if transpose else (w.shape[-2], w.shape[-1])
    lead = x.type.rank - w.type.rank
    batch = zip(x.shape[lead:-2], w.shape[:-2], strict=True)
    if any(is_const(d, 0) for d in (k, n)) or not all(is_const(b, 1) or a is b for a, b in batch):
        return False
    if a.options.precision != "fp32" and reduced(a, node):
        return True
    tile = matmul_tile(x.shape[-2], as_int(n) or 64, as_int(k) or 64, w.dtype, a.target)
    (packed,) = a.emit(
        "pack_matmul", (a.as_plain(w),), {"width": tile.width, "transpose": transpose}, f"{w.name}_packed"
    )
    if w in a.fixed:
        a.fixed.add(packed)
    columns = as_int(n)
    (out,) = a.emit(
        "matmul_packed",
        (a.as_plain(x), packed),
        {"columns": n if columns is None else columns},
        node.output.name,
    )
    a.plain[node.output] = out
    return True
