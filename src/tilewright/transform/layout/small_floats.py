"""Products of at most four rows with 8-bit float weights: panels hold 8-bit floats, which are decoded in registers.

    w = cast(codes) * s;  y = matmul(x, w)      ->      y = matmul_packed(x, pack_matmul(codes)) * s

`s` is one number or one per column, and is multiplied after the sum. The weights are read as they are stored, a quarter
of the bytes of f32. Products of more rows, or of an unknown number, read f32 weights, which `prepare` decodes once; so
do products whose f32 weights fit into a cache that is faster than decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.ir.dtype import DType, f8e4m3fn, f8e5m2, f32
from tilewright.ir.expr import as_int, is_const
from tilewright.ir.graph import Node, Value
from tilewright.ops.matmul import MatmulAttrs
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.matmul.tiles import matmul_tile
from tilewright.transform.layout.assigner import Assigner

ROWS = 4
"""The largest number of rows for which weights are decoded as they are read."""
LEVELS: dict[DType, str] = {f8e5m2: "l2", f8e4m3fn: "l3"}
"""For each 8-bit type the cache that f32 weights must exceed so that decoding costs less than reading them: E5M2 is the
upper half of an f16, E4M3 takes twice the operations. Zen 3, 29 November 2026, one row, time of f32 / 8 bits in turns
on a busy machine: 16 MB of f32 1.5 and 0.85, 64 MB 2.2 and 1.2."""


def small_floats(a: Assigner, node: Node, rows: Callable[[], Value]) -> bool:
    """Rewrite a product of at most four rows with weights that are 8-bit floats, possibly times a scale; returns
    whether it did."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    transpose, count, depth = node.of(MatmulAttrs).transpose_b, as_int(node.output.shape[-2]), as_int(x.shape[-1])
    if w not in a.fixed or w.type.rank != 2 or x.dtype is not f32 or not depth or count is None or count > ROWS:
        return False
    source = _decoded(a, w, transpose)
    columns = as_int(node.output.shape[-1])
    if source is None or not columns:
        return False
    codes, scale = source
    if 4 * depth * columns <= getattr(a.target.caches, LEVELS[codes.dtype]):
        return False
    key = partial(key_of_nodes, "panels", [node], a.target)
    tile = matmul_tile(key, node.output.shape[-2], node.output.shape[-1], depth, f32, a.target)
    packing = {"width": tile.width, "transpose": transpose}
    (panels,) = a.emit("lowered.pack_matmul", (a.as_row_major(codes),), packing, f"{w.name}_packed")
    a.fixed.add(panels)
    (total,) = a.emit("lowered.matmul_packed", (rows(), panels), {"columns": columns}, node.output.name)
    if scale is not None:
        row = a.as_row_major(scale)
        shape = () if as_int(row.type.size) == 1 else (columns,)
        (row,) = a.emit("reshape", (row,), {"shape": shape}, f"{w.name}_scale")
        a.fixed.add(row)
        (total,) = a.emit("mul", (total, row), {}, node.output.name)
    a.row_major[node.output] = total
    return True


def _decoded(a: Assigner, w: Value, transpose: bool) -> tuple[Value, Value | None] | None:
    """(8-bit floats, their scale or None) from which the weights `w`, stored as [columns, depth] if `transpose`, are
    computed; None for other weights."""
    node, scale = a.producer(w), None
    if node is not None and node.op == "mul":
        for wide, other in (node.inputs, node.inputs[::-1]):
            cast = None if wide is None else a.producer(wide)
            if cast is not None and other is not None and _is_cast(cast) and _is_of_columns(other, transpose):
                node, scale = cast, other
                break
    if node is None or not _is_cast(node) or node.inputs[0] is None:
        return None
    return node.inputs[0], scale


def _is_cast(node: Node) -> bool:
    source = node.inputs[0] if node.op == "cast" and node.output.dtype is f32 else None
    return source is not None and source.dtype in LEVELS


def _is_of_columns(scale: Value, transpose: bool) -> bool:
    """Whether a scale is one number, or one for each column of weights [K, N], or [N, K] if `transpose`."""
    if scale.dtype is not f32 or scale.type.rank > 2:
        return False
    ones = [is_const(d, 1) for d in scale.shape]
    ones = [True] * (2 - len(ones)) + ones
    return ones[1] if transpose else ones[0]
