"""Convolutions, recurrences and products of many rows of 16-bit floats are computed in f32.

    y = conv(x, w)  of f16       ->       y = cast(conv(cast(x), cast(w)))

Processors multiply f32 as fast as f16 that they widen first, and all fast convolution algorithms exist for f32:
Winograd's products, blocks of channels, packed filters. Values between two layers are still rounded to 16 bits; weights
are widened once. Where matrix registers multiply bf16, selection may choose a convolution that reads the 16-bit numbers
directly. Products of few rows read 16-bit weights, which are fewer bytes. Matrix products of bf16 stay as they are:
there are instructions for them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright import ops
from tilewright.ir.dtype import FLOATS_OF_16_BITS, f16, f32
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.matmul import MatmulAttrs
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite

WIDENED = ("conv", "conv_transpose", "conv_weight_gradient", "recurrence")
"""Operators whose operands and results may all have any one float type."""
LONG_ROWS = 32
"""The number of rows from which on a product in f32 is faster than one that widens its weights as it reads them."""


def widen_float16(graph: Graph) -> Graph:
    """The graph with casts to f32 and back around the operators that are faster in f32."""
    return rewrite(graph, [Rule(op((*WIDENED, "matmul"), where=_is_widened), _widened)])


def _widened(m: Match) -> tuple[Value, ...]:
    def wide(value: Value | None) -> Value | None:
        return m.once("cast", value, dtype=f32) if value is not None and value.dtype in FLOATS_OF_16_BITS else value

    attrs = replace(m.node.of(MatmulAttrs), dtype=None) if m.node.op == "matmul" else m.node.attrs
    results = ops.emit(m.rewriter.builder, m.node.op, *map(wide, m.node.inputs), attrs=attrs)
    pairs = zip(results, m.node.outputs, strict=True)
    return tuple(m.emit("cast", new, dtype=old.dtype) if old.dtype in FLOATS_OF_16_BITS else new for new, old in pairs)


def _is_widened(node: Node) -> bool:
    if node.op in WIDENED:
        return node.outputs[0].dtype in FLOATS_OF_16_BITS
    x = node.inputs[0] if node.op == "matmul" else None
    return x is not None and x.dtype is f16 and _rows(node) >= LONG_ROWS


def _rows(product: Node) -> int:
    """The number of rows of a product's first factor that are multiplied by the same matrix; 0 if it depends on a
    symbol."""
    attrs, (a, b) = product.of(MatmulAttrs), product.inputs[:2]
    assert a is not None and b is not None
    if a.type.rank < 2:
        return 1
    shared = a.shape[:-2] if b.type.rank == 2 else ()
    rows = a.shape[-1 if attrs.transpose_a else -2]
    return prod(as_int(d) or 0 for d in (*shared, rows))
