"""Reverse mode over graphs.

    gradient(graph, of="loss", wrt=["w", "b"])   ->   a graph of the loss and its gradients by w and b

Every source operator's rule (`ops/gradients/`) says in operators how gradients flow back through it; values that
several nodes read sum what comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.gradients.registry import NONE, Backward, find
from tilewright.ops.registry import emit1
from tilewright.support.errors import ModelError, Problems, UnsupportedError


def gradient(graph: Graph, of: str, wrt: Sequence[str]) -> Graph:
    """A graph with the outputs of `graph` and behind them the gradients of one of these.

    Args:
        graph: source operators alone, as frontends make them.
        of: the name of an output of one floating point element.
        wrt: names of inputs and parameters of floating point types. What does not lead to `of` gets zeros.

    Raises ModelError for names that are not there and UnsupportedError, which lists all operators on the way that have
    no gradient.
    """
    target = _named(graph.outputs, of, "output")
    sources = [_named((*graph.inputs, *graph.params), name, "input or parameter") for name in wrt]
    if not target.dtype.is_float or as_int(target.type.size) != 1:
        raise ModelError("gradients are of one floating point number", where=f"output {of!r}", got=target.type)
    for value in sources:
        if not value.dtype.is_float:
            raise ModelError("there is no gradient by integers", where=f"{value.name!r}", got=value.type)
    builder = GraphBuilder(graph.name, list(graph.inputs), list(graph.params), list(graph.nodes), set(_names(graph)))
    one = emit1(builder, "constant", value=np.ones((), target.dtype.numpy), name=f"d.{of}")
    seed = emit1(builder, "broadcast", one, shape=target.shape, name=f"d.{of}") if target.type.rank else one
    found = backward(builder, graph.nodes, {target: seed}, sources)
    results = []
    for value in sources:
        result = found.get(value)
        if result is None:
            zero = emit1(builder, "constant", value=np.zeros((), value.dtype.numpy), name=f"d.{value.name}")
            result = emit1(builder, "broadcast", zero, shape=value.shape, name=f"d.{value.name}")
        results.append(result)
    return builder.finish((*graph.outputs, *results))


def backward(
    builder: GraphBuilder, nodes: Sequence[Node], seeds: Mapping[Value, Value], sources: Iterable[Value]
) -> dict[Value, Value]:
    """Puts the way back through `nodes` into the builder; from gradients of some values to those of the sources."""
    wanted = _leading_from(nodes, set(sources))
    flows: dict[Value, Value] = dict(seeds)
    problems = Problems()
    for node in reversed(nodes):
        given = tuple(flows.get(v) for v in node.outputs)
        if all(g is None for g in given) or not any(v in wanted for v in node.inputs) or node.op in NONE:
            continue
        rule = find(node.op)
        if rule is None:
            problems.add(UnsupportedError(f"the operator {node.op} has no gradient", where=node.outputs[0].name))
            continue
        for value, flow in zip(node.inputs, rule(Backward(builder, node, given)), strict=False):
            if value is None or flow is None or value not in wanted:
                continue
            before = flows.get(value)
            flows[value] = flow if before is None else emit1(builder, "add", before, flow, name=f"d.{value.name}")
    problems.raise_if_any("no gradient", kind=UnsupportedError)
    return flows


def _leading_from(nodes: Sequence[Node], sources: set[Value]) -> set[Value]:
    """All floating point values that depend on the sources, these included."""
    found = set(sources)
    for node in nodes:
        if any(v in found for v in node.inputs):
            found.update(v for v in node.outputs if v.dtype.is_float)
    return found


def _named(values: Sequence[Value], name: str, what: str) -> Value:
    for value in values:
        if value.name == name:
            return value
    raise ModelError(f"no {what} has this name", expected=", ".join(v.name for v in values), got=name)


def _names(graph: Graph) -> Iterable[str]:
    yield from (v.name for v in (*graph.inputs, *graph.params))
    yield from (v.name for n in graph.nodes for v in n.outputs)
