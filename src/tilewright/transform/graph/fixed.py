"""The values that depend on weights alone: the one rule for all passes.

Parameters and constants do, and so does the result of a node whose inputs all do. `split_prepare`, which moves such
nodes to `prepare`, has further conditions: no symbolic size and no body.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from tilewright.ir.graph import Graph, Value


def depends_on_weights(inputs: Iterable[Value | None], fixed: Container[Value]) -> bool:
    """Whether the result of a node with these inputs depends on weights alone; `fixed` are the values known to do so.
    Inputs that are left out (None) do not matter, and a node without inputs is a constant."""
    return all(v is None or v in fixed for v in inputs)


def fixed_values(graph: Graph) -> set[Value]:
    """The values of a graph that depend on weights alone, weights among them."""
    fixed = set(graph.params)
    for node in graph.nodes:
        if depends_on_weights(node.inputs, fixed):
            fixed.update(node.outputs)
    return fixed
