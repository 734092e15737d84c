"""Rooms: inputs without elements whose size says for how many rows memory is reserved, where data decides their number.

    %n = head(%_room, %count) {defines = $n} : i8[n, 0]         with %_room: i8[_room, 0]

The runtime supplies them (`runtime/rooms.py`). Memory is planned for as many rows as a room has. If a call needs more,
the runtime enlarges the room and calls the program again.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.dtype import i8
from tilewright.ir.expr import Var, const, is_const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.runtime.specs import ROOM


def add_room(builder: GraphBuilder) -> Value:
    """Add a room, an input whose size reserves memory for a number of rows that data decides, to the inputs of a
    graph."""
    name = builder.fresh(ROOM)
    value = Value(name, TensorType(i8, (Var(name, lo=0), const(0))))
    builder.inputs.append(value)
    return value


def is_room(value: Value) -> bool:
    """Whether an input of a graph is a room: its size reserves memory for a number of rows that data decides."""
    if value.dtype is not i8 or value.type.rank != 2 or not is_const(value.shape[1], 0):
        return False
    return isinstance(value.shape[0], Var) and value.shape[0].name.startswith(ROOM)


def rooms(graph: Graph) -> dict[Var, Value]:
    """The rooms of a graph, inputs whose sizes reserve memory for rows whose number data decides; by the symbol for
    that number."""
    result = {n.defines: n.inputs[0] for n in graph.nodes if n.op == "head" and n.inputs[0] in graph.inputs}
    return {s: v for s, v in result.items() if s is not None and v is not None and is_room(v)}


__all__ = ["ROOM", "add_room", "is_room", "rooms"]


def pruned(graph: Graph) -> Graph:
    """The graph without nodes and parameters that no output needs, and without rooms that no node uses."""
    used = {s for n in graph.needed() for s in n.symbols}
    # What says how many rows a room has to have is needed where a loop has as many iterations.
    heads = [n for n in graph.nodes if n.op == "head" and (x := n.inputs[0]) is not None and is_room(x)]
    asked = [n.output for n in heads if n.inputs[0] is not None and n.inputs[0].shape[0] in used]
    needed = replace(graph, outputs=(*graph.outputs, *asked)).needed()
    read = {v for n in needed for v in n.inputs} | set(graph.outputs)
    params = tuple(p for p in graph.params if p in read)
    inputs = tuple(v for v in graph.inputs if v in read or not is_room(v))
    return replace(graph, inputs=inputs, nodes=needed, params=params)
