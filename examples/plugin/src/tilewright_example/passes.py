"""A graph pass: two operators in a row of which the second undoes the first are none.

y = neg(neg(x)), z = y + 1    ->    z = x + 1
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.graph import Graph, Node, Value
from tilewright.targets.target import Target
from tilewright.transform.graph.extra import GraphPass

INVERSES = {"neg": "neg", "not": "not"}
"""The operator that undoes another exactly."""


def cancel_inverses(graph: Graph, target: Target) -> Graph:
    producers: dict[Value, Node] = {v: node for node in graph.nodes for v in node.outputs}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        (x, *others) = node.inputs or (None,)
        x = same.get(x, x) if x is not None else None
        first = producers.get(x) if x is not None else None
        if first is not None and not others and INVERSES.get(first.op) == node.op and first.inputs[0] is not None:
            same[node.output] = same.get(first.inputs[0], first.inputs[0])
    if not same:
        return graph
    nodes = tuple(
        replace(n, inputs=tuple(None if v is None else same.get(v, v) for v in n.inputs)) for n in graph.nodes
    )
    # The pass after it drops what nothing reads any more; an output that is an input is copied at the end.
    return replace(graph, nodes=nodes, outputs=tuple(same.get(v, v) for v in graph.outputs))


CANCEL_INVERSES = GraphPass("cancel inverses", cancel_inverses, ("before", "canonicalise"))
