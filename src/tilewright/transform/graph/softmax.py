"""Recognise softmax: the maximum, differences, powers, sum and quotient as which JAX writes it become one operator.

    m = reduce_max(x); e = exp(x - m); y = e / reduce_sum(e)   ->   y = softmax(x)

The subtraction of the maximum does not change the quotient; the maximum may have passed through `max` with minus
infinity, which changes nothing, and through reshapes that put the reduced dimension back.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright import ops
from tilewright.ir.expr import is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.reduce import ReduceAttrs
from tilewright.ops.shape import ConstantAttrs


def recognise_softmax(graph: Graph) -> Graph:
    """The graph with softmax as one operator wherever it is found; nodes that nothing needs any more stay."""
    made = {v: n for n in graph.nodes for v in n.outputs}
    replaced = {n.outputs[0]: result for n in graph.nodes if (result := _softmax(n, made)) is not None}
    if not replaced:
        return graph
    nodes = (replaced.get(n.outputs[0], n) if len(n.outputs) == 1 else n for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


Made = dict[Value, Node]


def _softmax(node: Node, made: Made) -> Node | None:
    """The node to stand in place of a quotient."""
    if node.op != "div" or not node.output.dtype.is_float:
        return None
    top, bottom = node.inputs
    powers = _node(top, made, "exp")
    if powers is None:
        return None
    total = _row_value(bottom, made, "reduce_sum", powers.output)
    difference = _node(powers.inputs[0], made, "sub")
    if total is None or difference is None:
        return None
    x, largest = difference.inputs
    if x is None or x.type != node.output.type or _row_value(largest, made, "reduce_max", x) != total:
        return None
    builder = GraphBuilder("softmax")
    ops.emit1(builder, "softmax", x, axis=total)
    return replace(builder.nodes[-1], outputs=node.outputs)


def _node(value: Value | None, made: Made, op: str) -> Node | None:
    node = None if value is None else made.get(value)
    return node if node is not None and node.op == op else None


def _row_value(value: Value | None, made: Made, op: str, reduced: Value) -> int | None:
    """The axis along which a value is the reduction of `reduced`, its dimension there with extent one; or None."""
    if value is None or value.type.rank != reduced.type.rank:
        return None
    ones = value
    while (node := made.get(value)) is not None and node.op in ("reshape", "max", "identity", "stop_gradient"):
        if node.op != "max":
            source = node.inputs[0]
        elif (source := _beside_minus_infinity(node, made)) is None:
            return None
        assert source is not None
        value = source
    if node is None or node.op != op or node.inputs[0] != reduced:
        return None
    axes = node.of(ReduceAttrs).axes
    if len(axes) != 1 or not is_const(ones.shape[axes[0]], 1):
        return None
    expected = [d for k, d in enumerate(reduced.shape) if k != axes[0]]
    return axes[0] if [d for k, d in enumerate(ones.shape) if k != axes[0]] == expected else None


def _beside_minus_infinity(node: Node, made: Made) -> Value | None:
    """The operand of a maximum whose other operand is minus infinity."""
    for number, other in (node.inputs, node.inputs[::-1]):
        constant = _node(number, made, "constant")
        if constant is not None and other is not None:
            array = constant.of(ConstantAttrs).value.array
            if array.size == 1 and float(array.reshape(())) == -math.inf:
                return other
    return None
