"""Cuts a graph into sections that run one after another, so that other work can begin on early results.

    sections(graph, [[loss, last], [first]])   ->   [batch -> loss, last, kept], [batch, kept -> first]

A section computes the values that its outputs need and earlier sections have not computed; those that later sections
read become outputs too. Views of inputs are recomputed in each section, which costs nothing. The first section has all
inputs, so that errors in them are reported at once; the others have the inputs that they read, and those whose sizes
determine the symbols of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.rewrite import variables

VIEWS = frozenset({"constant", "reshape", "slice", "broadcast"})
"""Operators that each section recomputes, if they only read inputs and other such values."""


def sections(graph: Graph, wanted: Sequence[Sequence[Value]]) -> list[Graph]:
    """Cut `graph` into one graph for each list of values in `wanted`, to run one after the other: each returns its
    wanted values, in this order, and then the values that later ones read. Its inputs and parameters are those that it
    reads.

    All wanted values together must be the graph's outputs.
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
    """Values among `arguments` that have as whole dimensions the symbols which `read` has only within expressions: a
    section needs them to learn the symbols' values."""
    told = {d for v in read for d in v.shape}
    missing = {s for v in read for d in v.shape for s in variables(d)} - told
    results = []
    for value in arguments:
        if missing & set(value.shape):
            results.append(value)
            missing -= set(value.shape)
    return results


def _views(graph: Graph) -> set[Value]:
    """The values of a graph that are constants, or views of inputs and parameters, and so cost nothing to compute
    again."""
    members: set[Value] = set()
    there = {*graph.inputs, *graph.params}
    for node in graph.nodes:
        if node.op in VIEWS and all(v is None or v in there or v in members for v in node.inputs):
            members |= set(node.outputs)
    return members


def _reached(nodes: Sequence[Node], targets: Iterable[Value], there: set[Value]) -> tuple[Node, ...]:
    """The nodes needed to compute `targets` from the values in `there`, in the order of `nodes`."""
    wanted = {v for v in targets if v not in there}
    retained: list[Node] = []
    for node in reversed(nodes):
        if any(v in wanted for v in node.outputs):
            retained.append(node)
            wanted |= {v for v in node.inputs if v is not None and v not in there}
    return tuple(reversed(retained))


def _outside(body: Sequence[Node], targets: Iterable[Value]) -> set[Value]:
    """The values that `body`'s nodes read, or that are among `targets`, but that it does not compute."""
    inside = {v for n in body for v in n.outputs}
    return {v for v in (*(v for n in body for v in n.inputs), *targets) if v is not None and v not in inside}
