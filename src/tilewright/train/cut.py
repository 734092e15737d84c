"""A graph cut into sections that run one after the other, so that others begin to work on early results.

    sections(graph, [[loss, last], [first]])   ->   [batch -> loss, last, kept], [batch, kept -> first]

A section computes what its outputs need and no section before it has computed; what later ones read of that are outputs
of it, too. What is but another view of an input is made again in each section, as there it costs nothing. The first
section has all inputs, so that its caller finds all that is wrong with them; of the others, each has those that
it reads, and those whose sizes tell the symbols of what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.rewrite import variables

VIEWS = frozenset({"constant", "reshape", "slice", "broadcast"})
"""Operators that are made again, if they read nothing but inputs and their like."""


def sections(graph: Graph, wanted: Sequence[Sequence[Value]]) -> list[Graph]:
    """The graphs of the sections: each gives what is wanted of it, in this order, and after that what later ones
    read. Inputs and parameters are those that it reads.

    All that is wanted together must be the graph's outputs.
    """
    arguments, views = {*graph.inputs, *graph.params}, _views(graph)
    producers: dict[Value, int] = {}
    bodies: list[tuple[Node, ...]] = []
    for k, targets in enumerate(wanted):
        body = _reached(graph.nodes, targets, {*arguments, *producers})
        producers |= {v: k for n in body for v in n.outputs if v not in views}
        bodies.append(body)
    results = []
    for k, (body, targets) in enumerate(zip(bodies, wanted, strict=True)):
        outside = _outside(body, targets)
        rest = zip(bodies[k + 1 :], wanted[k + 1 :], strict=True)
        later = dict.fromkeys(v for other, others in rest for v in _outside(other, others) if producers.get(v) == k)
        inputs = [v for v in (*graph.inputs, *producers) if v in outside or (not k and v in arguments)]
        inputs = [*_telling(graph.inputs, inputs), *inputs]
        params = [v for v in graph.params if v in outside]
        outputs = (*targets, *(v for v in later if v not in targets))
        results.append(Graph(f"{graph.name}_{k}", tuple(inputs), tuple(params), body, outputs))
    return results


def _telling(arguments: Sequence[Value], read: Sequence[Value]) -> list[Value]:
    """The inputs among the given ones that have as sizes the symbols of the ones read, where these have sums and
    products of them alone."""
    told = {d for v in read for d in v.shape}
    missing = {s for v in read for d in v.shape for s in variables(d)} - told
    results = []
    for value in arguments:
        if missing & set(value.shape):
            results.append(value)
            missing -= set(value.shape)
    return results


def _views(graph: Graph) -> set[Value]:
    """Values that are views of inputs and parameters, or of nothing."""
    members: set[Value] = set()
    there = {*graph.inputs, *graph.params}
    for node in graph.nodes:
        if node.op in VIEWS and all(v is None or v in there or v in members for v in node.inputs):
            members |= set(node.outputs)
    return members


def _reached(nodes: Sequence[Node], targets: Iterable[Value], there: set[Value]) -> tuple[Node, ...]:
    """The nodes needed for `targets`, given that the values in `there` are available."""
    wanted = {v for v in targets if v not in there}
    retained: list[Node] = []
    for node in reversed(nodes):
        if any(v in wanted for v in node.outputs):
            retained.append(node)
            wanted |= {v for v in node.inputs if v is not None and v not in there}
    return tuple(reversed(retained))


def _outside(body: Sequence[Node], targets: Iterable[Value]) -> set[Value]:
    """The values that a section reads, or gives, that it does not make."""
    inside = {v for n in body for v in n.outputs}
    return {v for v in (*(v for n in body for v in n.inputs), *targets) if v is not None and v not in inside}
