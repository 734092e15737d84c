"""Layouts of matrix products and 1x1 convolutions by Strassen's method: sums of the weights' quarters."""

from __future__ import annotations

from functools import partial

from tilewright.algorithms.strassen.operators.product import PRODUCTS
from tilewright.algorithms.strassen.selection import StrassenStrips
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Node
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.matmul.tiles import matmul_tile
from tilewright.transform.layout.assigner import Assigner


def strassen(a: Assigner, node: Node) -> bool:
    """Rewrite the product of one matrix with a weight.

    y = matmul(x, w)   ->   p = transpose(pack_matmul(strassen_sums(w)));  y = matmul_strassen(x, p)
    """
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    transpose = node.of(MatmulAttrs).transpose_b
    rows, columns, depth = (as_int(d) or 1 for d in (*node.output.shape[-2:], x.shape[-1]))
    key = partial(key_of_nodes, "panels", [node], a.target)
    tile = matmul_tile(key, const(-(-rows // 2)), columns // 2, -(-depth // 2), f32, a.target, whole=True)
    attrs = {"width": tile.width, "transpose": transpose}
    (sums,) = a.emit("lowered.strassen_sums", (a.as_row_major(w),), {"transpose": transpose}, f"{w.name}_sums")
    (panels,) = a.emit("lowered.pack_matmul", (sums,), attrs, f"{w.name}_panels")
    (packed,) = a.emit("transpose", (panels,), {"perm": (1, 0, 2, 3)}, f"{w.name}_packed")
    a.fixed.update((sums, panels, packed))
    attrs = {"columns": columns}
    (a.row_major[node.output],) = a.emit(
        "lowered.matmul_strassen", (a.as_row_major(x), packed), attrs, node.output.name
    )
    return True


def strassen_conv(a: Assigner, node: Node) -> bool:
    """Rewrite a 1x1 convolution; the pixels of an image are the rows of the product.

    y = conv(x, w)   ->   p = transpose(pack_matmul(strassen_sums(w)));  y = conv_strassen(x, p)
    """
    (x, w), choice = node.inputs[:2], node.algorithm
    assert x is not None and w is not None and isinstance(choice, StrassenStrips)
    filters, channels = (as_int(d) or 1 for d in w.shape[:2])
    matrix = {"shape": (const(filters), const(channels))}
    (rows,) = a.emit("reshape", (a.as_row_major(w),), matrix, f"{w.name}_rows")
    (sums,) = a.emit("lowered.strassen_sums", (rows,), {"transpose": True}, f"{w.name}_sums")
    (panels,) = a.emit("lowered.pack_matmul", (sums,), {"width": choice.width, "transpose": True}, f"{w.name}_panels")
    _, count, *panel = panels.shape
    together = const(choice.panels)
    grouped = {"shape": (const(PRODUCTS), count // together, together, *panel)}
    (groups,) = a.emit("reshape", (panels,), grouped, f"{w.name}_groups")
    (packed,) = a.emit("transpose", (groups,), {"perm": (1, 0, 2, 3, 4)}, f"{w.name}_packed")
    a.fixed.update((rows, sums, panels, groups, packed))
    attrs = {"strides": node.of(ConvAttrs).strides, "channels": filters}
    (a.blocked[node.output],) = a.emit("lowered.conv_strassen", (a.as_blocked(x), packed), attrs, node.output.name)
    return True
