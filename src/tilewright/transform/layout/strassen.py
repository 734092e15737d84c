"""Matrix products and convolutions of one pixel by Strassen's method, where an estimate says that they are faster."""

from __future__ import annotations

from functools import partial

from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Node, Value
from tilewright.ops.strassen import PRODUCTS
from tilewright.plans.convolution.tiles import Shape
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.matmul.tiles import Product, matmul_tile
from tilewright.plans.strassen.convolution import choose
from tilewright.plans.strassen.products import pays
from tilewright.transform.graph.rowgroups import NORMS
from tilewright.transform.layout.assigner import Assigner

FAST = ("auto", "f6", "strassen")
"""Settings of `fast` that allow it for convolutions, and for rows of one sequence."""


def strassen(a: Assigner, node: Node) -> bool:
    """Rewrite the product of one matrix with a weight; False where it stays plain.

    y = matmul(x, w)   ->   p = transpose(pack_matmul(strassen_sums(w)));  y = matmul_strassen(x, p)
    """
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    allowed = a.options.fast == "strassen" or (a.options.fast in FAST and one_sequence(a, x))
    plain = not allowed or a.options.precision != "fp32" or node.attr("transpose_a", False)
    if plain or w not in a.fixed or x in a.fixed or node.output.dtype is not f32 or w.type.rank != 2:
        return False
    transpose = bool(node.attr("transpose_b", False))
    *lead, rows, columns = (as_int(d) for d in node.output.shape)
    depth = as_int(x.shape[-1])
    if not rows or rows == 1 or not columns or not depth or any(d != 1 for d in lead):
        return False
    if not pays(Product(rows, columns, depth), a.weight_bytes, a.target):
        return False
    across = columns // 2
    key = partial(key_of_nodes, "panels", [node], a.target)
    tile = matmul_tile(key, const(-(-rows // 2)), across, -(-depth // 2), f32, a.target, whole=True)
    if columns % 2 or across % tile.width:
        return False  # Panels that both halves have a part of would be merged twice.
    attrs = {"width": tile.width, "transpose": transpose}
    (sums,) = a.emit("strassen_sums", (a.as_plain(w),), {"transpose": transpose}, f"{w.name}_sums")
    (panels,) = a.emit("pack_matmul", (sums,), attrs, f"{w.name}_panels")
    (packed,) = a.emit("transpose", (panels,), {"perm": (1, 0, 2, 3)}, f"{w.name}_packed")
    a.fixed.update((sums, panels, packed))
    attrs = {"columns": columns}
    (a.plain[node.output],) = a.emit("matmul_strassen", (a.as_plain(x), packed), attrs, node.output.name)
    return True


def one_sequence(a: Assigner, rows: Value) -> bool:
    """Whether rows are those of one sample, the only one of its batch, and a norm has made them alike in size.

    Two rows that meet are one caller's then, and none loses digits beside a larger one.
    """
    node = a.producer(rows)
    if node is None or node.op not in NORMS or node.attr("axis") % rows.type.rank != rows.type.rank - 1:
        return False
    *batch, _, _ = rows.shape
    return bool(batch) and all(as_int(d) == 1 for d in batch)


def strassen_conv(a: Assigner, node: Node, shape: Shape, plain: float) -> bool:
    """Rewrite a convolution of one pixel; False where it stays direct, at `plain` cycles an image. Its rows are the
    pixels of an image, which is one caller's, so that any setting takes it that takes fast convolutions of all sizes.

    y = conv(x, w)   ->   p = transpose(pack_matmul(strassen_sums(w)));  y = conv_strassen(x, p)
    """
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    known = all(as_int(d) for d in node.output.shape[1:])
    if a.options.fast not in FAST or not shape.is_pixel or any(node.attr("pads")) or shape.block == 1 or not known:
        return False
    choice = choose(shape, plain, a.weight_bytes, a.target)
    if choice is None:
        return False
    matrix = {"shape": (const(shape.filters), const(shape.channels))}
    (rows,) = a.emit("reshape", (a.as_plain(w),), matrix, f"{w.name}_rows")
    (sums,) = a.emit("strassen_sums", (rows,), {"transpose": True}, f"{w.name}_sums")
    (panels,) = a.emit("pack_matmul", (sums,), {"width": choice.width, "transpose": True}, f"{w.name}_panels")
    _, count, *panel = panels.shape
    together = const(choice.panels)
    grouped = {"shape": (const(PRODUCTS), count // together, together, *panel)}
    (groups,) = a.emit("reshape", (panels,), grouped, f"{w.name}_groups")
    (packed,) = a.emit("transpose", (groups,), {"perm": (1, 0, 2, 3, 4)}, f"{w.name}_packed")
    a.fixed.update((rows, sums, panels, groups, packed))
    attrs = {"strides": node.attr("strides"), "channels": shape.filters, "strip": choice.strip}
    (a.blocked[node.output],) = a.emit("conv_strassen", (a.as_blocked(x), packed), attrs, node.output.name)
    return True
