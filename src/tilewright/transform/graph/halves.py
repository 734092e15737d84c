"""Convolutions, recurrences and products of many rows of 16-bit floats are computed in f32.

    y = conv(x, w)  of f16       ->       y = cast(conv(cast(x), cast(w)))

Processors of today multiply f32 as fast as halves that they widen first, and all fast ways of convolutions exist for
f32: Winograd's products, blocks of channels, packed filters. What lies between two layers is rounded as before; weights
are widened once. Where registers of matrices multiply bf16, a convolution may be chosen that takes the numbers as they
were before. Products of few rows read their weights as halves, of which there are fewer bytes. bf16 products of
matrices stay as they are: there are instructions for them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright import ops
from tilewright.ir.dtype import bf16, f16, f32
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.matmul import MatmulAttrs
from tilewright.transform.regions.captures import names_of

HALVES = (f16, bf16)
WIDENED = ("conv", "conv_transpose", "conv_weight_gradient", "recurrence")
"""Operators whose operands and results may be of any float alike."""
MANY_ROWS = 32
"""From so many rows on a product of f32 is faster than one that widens its weights on the way."""


def widen_halves(graph: Graph) -> Graph:
    """The graph with conversions around what f32 is faster for."""
    members = {id(node) for node in graph.nodes if _is_widened(node)}
    if not members:
        return graph
    builder = GraphBuilder(graph.name, taken=names_of(graph))
    wide: dict[Value, Value] = {}

    def widened(value: Value | None) -> Value | None:
        if value is None or value.dtype not in HALVES:
            return value
        if value not in wide:
            wide[value] = ops.emit1(builder, "cast", value, name=f"{value.name}_f32", dtype=f32)
        return wide[value]

    for node in graph.nodes:
        if id(node) not in members:
            builder.nodes.append(node)
            continue
        inputs = [widened(value) for value in node.inputs]
        attrs = replace(node.of(MatmulAttrs), dtype=None) if node.op == "matmul" else node.attrs
        results = ops.emit(builder, node.op, *inputs, attrs=attrs)
        builder.nodes[-1] = replace(builder.nodes[-1], selected=node.selected)
        for result, old in zip(results, node.outputs, strict=True):
            if old.dtype in HALVES:
                ops.emit1(builder, "cast", result, dtype=old.dtype)
            builder.nodes[-1] = replace(builder.nodes[-1], outputs=(old,))
    return replace(graph, nodes=tuple(builder.nodes))


def _is_widened(node: Node) -> bool:
    if node.op in WIDENED:
        return node.outputs[0].dtype in HALVES
    x = node.inputs[0] if node.op == "matmul" else None
    return x is not None and x.dtype is f16 and _rows(node) >= MANY_ROWS


def _rows(product: Node) -> int:
    """Rows of the first factor that meet the same columns; 0 where a symbol decides."""
    attrs, (a, b) = product.of(MatmulAttrs), product.inputs[:2]
    assert a is not None and b is not None
    if a.type.rank < 2:
        return 1
    shared = a.shape[:-2] if b.type.rank == 2 else ()
    rows = a.shape[-1 if attrs.transpose_a else -2]
    return prod(as_int(d) or 0 for d in (*shared, rows))
