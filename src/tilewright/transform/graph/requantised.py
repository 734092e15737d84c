"""Values that are dequantised, moved and quantised again by the same scale and zero point are only moved.

    a = cast(cast(q) - z) * s;  y = cast(round(transpose(a) / s) + z)      ->      y = transpose(q)

Quantisers write that around each transposition and reshape. A number of 8 bits times a scale, divided by it again, is
within a half of that number, for scales that are positive numbers, as the operators ask for.
"""

from __future__ import annotations

from tilewright.ir.dtype import f32, i8, i32, u8
from tilewright.ir.expr import is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.transform.graph.bounds import MOVES
from tilewright.transform.graph.matching import Number, Operand, either, op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite


def _shifted(name: str, source: Operand) -> Operand:
    """A value, or its sum or difference with a zero point."""
    return either(op(name, source, Number(name)), source)


INTEGERS = op("cast", name="integers", where=lambda node: node.output.dtype is i32)
REAL = op("mul", "scale", op("cast", _shifted("sub", INTEGERS)), name="real", through=sorted(MOVES))
LEVELS = op("round", op("div", REAL, "scale", name="division"))


def move_quantised(graph: Graph) -> Graph:
    """The graph with numbers moved as they are where they would be dequantised and quantised in between."""
    return rewrite(graph, [Rule(op("cast", _shifted("add", LEVELS)), _moved)])


def _moved(m: Match) -> Value | None:
    (numbers,), scale, real, division = m.producer("integers").inputs, m["scale"], m["real"], m.producer("division")
    assert numbers is not None
    if m.bound.get("add", 0.0) != m.bound.get("sub", 0.0) or not all(is_const(d, 1) for d in scale.shape):
        return None
    if numbers.dtype is not m.node.output.dtype or numbers.dtype not in (u8, i8):
        return None
    if real.dtype is not f32 or numbers.shape != real.shape or division.output.type.rank < scale.type.rank:
        return None
    for move in _moves(m, division.inputs[0], real):
        numbers = m.emit(move.op, numbers, attrs=move.attrs)
    return numbers


def _moves(m: Match, value: Value | None, source: Value) -> list[Node]:
    """The nodes from one value to another, in order."""
    moves: list[Node] = []
    while value != source and (node := m.rewriter.producer(value)) is not None:
        moves.insert(0, node)
        value = node.inputs[0]
    return moves
