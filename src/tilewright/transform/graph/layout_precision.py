"""Products in reduced precision: weights packed as bf16 or i8, activations rounded to what the machine multiplies.

bf16, dot instructions      matmul_dot(cast(x, bf16), pack_dot(cast(w, bf16)))      pairs into f32 accumulators
bf16, elsewhere             matmul_packed(x, cast(pack_matmul(w), bf16))            weights widened on the way
"""

from __future__ import annotations

from tilewright.ir.dtype import bf16, f32
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.plans.matmul_tiles import matmul_tile
from tilewright.transform.graph.assigner import Assigner


def reduced(a: Assigner, node: Node) -> bool:
    """A product with weights, in the precision that was asked for; False if it stays as it is."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    if x.dtype is not f32 or w not in a.fixed or w.type.rank != 2:
        return False
    if a.options.precision == "bf16":
        widened(a, node, x, w)
        return True
    return False


def widened(a: Assigner, node: Node, x: Value, w: Value) -> None:
    """bf16 weights that are widened when they are read: half the traffic, products in f32."""
    transpose = bool(node.attr("transpose_b", False))
    n, k = as_int(node.output.shape[-1]) or 64, as_int(x.shape[-1]) or 64
    tile = matmul_tile(x.shape[-2], n, k, f32, a.target)
    attrs = {"width": tile.width, "transpose": transpose}
    packed = weights(a, "pack_matmul", (a.as_plain(w),), attrs, f"{w.name}_packed")
    narrow = weights(a, "cast", (packed,), {"dtype": bf16}, f"{w.name}_bf16")
    columns = {"columns": as_int(node.output.shape[-1]) or node.output.shape[-1]}
    (a.plain[node.output],) = a.emit("matmul_packed", (a.as_plain(x), narrow), columns, node.output.name)


def weights(a: Assigner, op: str, inputs: tuple[Value, ...], attrs: dict[str, object], name: str) -> Value:
    """A value that depends on weights alone."""
    (value,) = a.emit(op, inputs, attrs, name)
    a.fixed.add(value)
    return value
