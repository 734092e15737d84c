"""What is dequantised, moved and quantised again by the same scale and zero point is only moved.

    a = cast(cast(q) - z) * s;  y = cast(round(transpose(a) / s) + z)      ->      y = transpose(q)

Quantisers write that around each transposition and reshape. A number of 8 bits times a scale, divided by it again, is
within a half of that number, for scales that are positive numbers, as the operators ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright import ops
from tilewright.ir.attributes import NO_ATTRS
from tilewright.ir.dtype import f32, i8, i32, u8
from tilewright.ir.expr import is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.shape import ConstantAttrs
from tilewright.transform.graph.bounds import MOVES
from tilewright.transform.regions.captures import names_of


def move_quantised(graph: Graph) -> Graph:
    """The graph with numbers moved as they are where they would be dequantised and quantised in between."""
    made = {v: n for n in graph.nodes for v in n.outputs}
    builder = GraphBuilder(graph.name, taken=names_of(graph))
    is_there = False
    for node in graph.nodes:
        way = _way(made, node)
        if way is None:
            builder.nodes.append(node)
            continue
        is_there = True
        numbers, moves = way
        for move in reversed(moves):
            numbers = ops.emit1(builder, move.op, numbers, attrs=move.attrs)
        builder.nodes.append(Node("identity", (numbers,), node.outputs, NO_ATTRS))
    return replace(graph, nodes=tuple(builder.nodes)) if is_there else graph


def _way(made: Mapping[Value, Node], node: Node) -> tuple[Value, list[Node]] | None:
    """The numbers that a node quantises again and what moves them, the last one first; None for other nodes."""
    if node.op != "cast" or node.output.dtype not in (u8, i8):
        return None
    rounded, zero = _shifted(made, node.inputs[0], "add")
    levels = _input(made, rounded, "round")
    division = made.get(levels) if levels is not None else None
    if division is None or division.op != "div":
        return None
    value, scale = division.inputs
    moves: list[Node] = []
    while value is not None and (n := made.get(value)) is not None and n.op in MOVES and len(n.inputs) == 1:
        moves.append(n)
        value = n.inputs[0]
    real = None if value is None else made.get(value)
    if real is None or real.op != "mul" or scale is None or scale not in real.inputs:
        return None
    if not all(is_const(d, 1) for d in scale.shape) or division.output.type.rank < scale.type.rank:
        return None
    (factor,) = (v for v in real.inputs if v is not scale) if real.inputs[0] is not real.inputs[1] else (None,)
    integers, taken = _shifted(made, _input(made, factor, "cast"), "sub")
    numbers = _input(made, integers, "cast")
    if numbers is None or numbers.dtype is not node.output.dtype or taken != zero or integers is None:
        return None
    if integers.dtype is not i32 or real.output.dtype is not f32 or numbers.shape != real.output.shape:
        return None
    return numbers, moves


def _input(made: Mapping[Value, Node], value: Value | None, op: str) -> Value | None:
    """What an operator reads that makes a value; None if another one does."""
    node = None if value is None else made.get(value)
    return node.inputs[0] if node is not None and node.op == op else None


def _shifted(made: Mapping[Value, Node], value: Value | None, op: str) -> tuple[Value | None, float | None]:
    """(v, n) of `v + n` or `v - n` with a constant n, 0 where nothing is added; n None where it is not known."""
    node = None if value is None else made.get(value)
    if node is None or node.op != op:
        return value, 0.0
    other = made.get(node.inputs[1]) if node.inputs[1] is not None else None
    known = other is not None and other.op == "constant" and all(is_const(d, 1) for d in other.output.shape)
    if other is None or not known:
        return None, None
    return node.inputs[0], float(other.of(ConstantAttrs).value.array.reshape(()))
