"""Layouts of matrix products: the right operand in panels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.ir.dtype import bf16, f32
from tilewright.ir.expr import Expr, as_int, is_const
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Split
from tilewright.ops.matmul import MatmulAttrs
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.matmul.tiles import SHORT_ROWS, matmul_tile, multiplies_in_place
from tilewright.targets.target import Target
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.integer import integer_matmul
from tilewright.transform.layout.precision import bf16_product, by_codes, reduced
from tilewright.transform.layout.small_floats import small_floats
from tilewright.transform.layout.split import split

DEPTH_FIRST = MatmulAttrs(transpose_a=True)
"""The attributes of a product whose operands both have the depth as their first dimension."""


def matmul(a: Assigner, node: Node) -> bool:
    """Rewrite a product to read its right operand in panels, packed once in `prepare` if it is a weight, else by a
    small kernel; returns whether it did.

    A left operand with `transpose_a` is transposed first. Operands that change with each call may be read in place. A
    single column becomes a sum over contiguous rows; f16 is multiplied as f32.
    """
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    if w.dtype.is_int and integer_matmul(a, node):
        return True
    attrs = node.of(MatmulAttrs)
    if not w.dtype.is_float or x.dtype is not w.dtype or node.output.dtype is not (attrs.dtype or x.dtype):
        return False
    *x_batch, _, k = _rows_and_columns(x.shape, attrs.transpose_a)
    *w_batch, _, n = _rows_and_columns(w.shape, transpose := attrs.transpose_b)
    if any(is_const(d, 0) for d in (k, n)) or len(x_batch) < len(w_batch):
        return False
    batch = zip(x_batch[len(x_batch) - len(w_batch) :], w_batch, strict=True)
    if is_const(n, 1) or not all(is_const(v, 1) or u is v for u, v in batch):
        return single_column(a, node, x, w)
    if node.precision == "fp32" and any(
        f(a, node, partial(contiguous_rows, a, node, x)) for f in (by_codes, small_floats)
    ):
        return True
    if node.precision != "fp32":
        return reduced(a, node, contiguous_rows(a, node, x))
    if x.dtype is bf16 and bf16_product(a, node, contiguous_rows(a, node, x, widen=False)):
        return True
    rows = as_int(node.output.shape[-2])
    if w not in a.fixed and rows is not None and rows <= (1 if transpose else SHORT_ROWS):
        return False
    if isinstance(node.algorithm, Split):
        return split(a, node, node.algorithm)
    if x.dtype.bits >= 32 and a.fixed.isdisjoint((x, w)):
        exchanges = attrs == DEPTH_FIRST and x_batch == w_batch and fills_worse(n, node.output.shape[-2], a)
        if exchanges and lies_well(w, x, DEPTH_FIRST, a.target):
            (transposed,) = a.emit(
                "matmul", (a.as_row_major(w), a.as_row_major(x)), DEPTH_FIRST, f"{node.output.name}_turned"
            )
            a.row_major[node.output] = swapped(a, transposed, node.output.name)
            return True
        if lies_well(x, w, attrs, a.target):
            return False
    left = contiguous_rows(a, node, x)
    key = partial(key_of_nodes, "panels", [node], a.target)
    tile = matmul_tile(key, node.output.shape[-2], n, as_int(k) or 64, left.dtype, a.target, narrow=True)
    (packed,) = a.emit(
        "lowered.pack_matmul", (a.as_row_major(w),), {"width": tile.width, "transpose": transpose}, f"{w.name}_packed"
    )
    if w in a.fixed:
        a.fixed.add(packed)
    columns = as_int(n)
    (out,) = a.emit(
        "lowered.matmul_packed", (left, packed), {"columns": n if columns is None else columns}, node.output.name
    )
    if out.dtype is not node.output.dtype:
        (out,) = a.emit("cast", (out,), {"dtype": node.output.dtype}, node.output.name)
    a.row_major[node.output] = out
    return True


def lies_well(x: Value, w: Value, attrs: MatmulAttrs, target: Target) -> bool:
    """Whether a product reads its operands fastest without packing (`multiplies_in_place`)."""
    *_, rows, depth = map(as_int, _rows_and_columns(x.shape, attrs.transpose_a))
    columns, transposed = as_int(w.shape[-1]), attrs.transpose_a
    return not attrs.transpose_b and multiplies_in_place(
        rows, columns, depth, w.dtype.itemsize, target, transposed=transposed
    )


def fills_worse(columns: Expr, rows: Expr, a: Assigner) -> bool:
    """Whether `columns` fill vectors worse than `rows` would, as the dimension along which vectors run."""
    empty = [-size % a.block / size if (size := as_int(d)) else 0.0 for d in (columns, rows)]
    return empty[0] > empty[1]


def swapped(a: Assigner, x: Value, name: str) -> Value:
    """Emit the value with its last two dimensions exchanged."""
    rank = x.type.rank
    return a.emit("transpose", (x,), {"perm": (*range(rank - 2), rank - 1, rank - 2)}, name)[0]


def _rows_and_columns(shape: tuple[Expr, ...], swapped: bool) -> tuple[Expr, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if swapped else shape


def contiguous_rows(a: Assigner, node: Node, x: Value, *, widen: bool = True) -> Value:
    """Emit the left operand of a product as rows by depth, in a type that the machine multiplies (`widen`: floats of 16
    bits become f32)."""
    left = a.as_row_major(x)
    if node.of(MatmulAttrs).transpose_a:
        left = swapped(a, left, f"{x.name}_rows")
    if widen and left.dtype.bits < 32:
        (left,) = a.emit("cast", (left,), {"dtype": f32}, f"{x.name}_wide")
    return left


def single_column(a: Assigner, node: Node, x: Value, w: Value) -> bool:
    """Rewrite a product with a single column into a sum along the depth, which is contiguous; returns whether it
    did."""
    attrs = node.of(MatmulAttrs)
    if not is_const(node.output.shape[-1], 1) or attrs.transpose_a or attrs.transpose_b:
        return False
    shape = (*w.shape[:-2], w.shape[-1], w.shape[-2])
    (row,) = a.emit("reshape", (a.as_row_major(w),), {"shape": shape}, f"{w.name}_row")
    if w in a.fixed:
        a.fixed.add(row)
    transposed = replace(attrs, transpose_b=True)
    (a.row_major[node.output],) = a.emit("matmul", (a.as_row_major(x), row), transposed, node.output.name)
    return True
