"""The values that depend on weights alone: the one rule of all passes that ask.

Parameters do, constants do, and so does what a node makes of such values only. `split_prepare`, which really moves them
to `prepare`, asks for more: no symbolic size and no body may be in the way.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from tilewright.ir.graph import Graph, Value


def depends_on_weights(inputs: Iterable[Value | None], fixed: Container[Value]) -> bool:
    """Whether what is made of `inputs` depends on weights alone; `fixed` are the values known to. An input that a node
    leaves out (None) does no harm, and a node without inputs is a constant."""
    return all(v is None or v in fixed for v in inputs)


def fixed_values(graph: Graph) -> set[Value]:
    """The values of a graph that depend on weights alone, weights among them."""
    fixed = set(graph.params)
    for node in graph.nodes:
        if depends_on_weights(node.inputs, fixed):
            fixed.update(node.outputs)
    return fixed
