"""Divisions by what depends on weights alone become products, where one instruction multiplies and adds.

    y = div(x, d)       ->      h = lowered.reciprocal(d)               once for each set of weights
                                l = lowered.reciprocal_rest(d, h)
                                y = lowered.quotient(x, h, l)

A vector of 16 numbers is divided in as much time as some twenty of them are multiplied, and files of 8 bits divide by a
scale after every layer. The quotients are as good as a division's (`ops/lowered/quotient.py`). A divisor that only few
numbers share stays: two factors would be read in its place.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int, const, is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.targets.target import Target
from tilewright.transform.graph.fixed import fixed_values
from tilewright.transform.regions.captures import names_of

SHARED = 8
"""Numbers that share a divisor, at least."""


def divide_by_products(graph: Graph, target: Target) -> Graph:
    """The graph with products in place of divisions by what depends on weights alone."""
    if not target.isa.fma:
        return graph
    fixed = fixed_values(graph)
    members = {node for node in graph.nodes if _divides(node, fixed)}
    if not members:
        return graph
    builder = GraphBuilder(graph.name, taken=names_of(graph))
    parts: dict[Value, tuple[Value, Value]] = {}
    for node in graph.nodes:
        if node not in members:
            builder.nodes.append(node)
            continue
        x, divisor = node.inputs
        assert divisor is not None
        if divisor not in parts:
            parts[divisor] = _parts(builder, divisor)
        ops.emit1(builder, "lowered.quotient", x, *parts[divisor])
        builder.nodes[-1] = replace(builder.nodes[-1], outputs=node.outputs)
    return replace(graph, nodes=tuple(builder.nodes))


def _divides(node: Node, fixed: set[Value]) -> bool:
    if node.op != "div" or node.output.dtype is not f32 or node.output in fixed:
        return False
    divisor = node.inputs[1]
    return divisor is not None and divisor in fixed and _is_shared(divisor, node.output)


def _is_shared(divisor: Value, output: Value) -> bool:
    """Whether each of the divisors is that of `SHARED` numbers, or of as many as a symbol says."""
    own = (const(1),) * (output.type.rank - divisor.type.rank) + divisor.shape
    shared = [as_int(d) for d, part in zip(output.shape, own, strict=True) if is_const(part, 1)]
    return None in shared or prod(d for d in shared if d is not None) >= SHARED


def _parts(builder: GraphBuilder, divisor: Value) -> tuple[Value, Value]:
    high = ops.emit1(builder, "lowered.reciprocal", divisor)
    return high, ops.emit1(builder, "lowered.reciprocal_rest", divisor, high)
