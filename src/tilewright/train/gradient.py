"""Reverse mode over graphs.

    gradient(graph, of="loss", wrt=["w", "b"])   ->   a graph that returns the loss and its gradients by w and b
    jvp(graph, of=["y"], wrt=["x"])              ->   a graph that returns y and its directional derivative by x

The rule of each source operator (`ops/gradients/`) emits the gradients of its inputs; the gradients that a value gets
from several readers are summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Value
from tilewright.ops.gradients.reverse import backward
from tilewright.ops.registry import emit1
from tilewright.ops.rooms import pruned
from tilewright.support.errors import ModelError


def gradient(graph: Graph, of: str, wrt: Sequence[str]) -> Graph:
    """A graph that returns the outputs of `graph`, followed by the gradients of one of them.

    Args:
        graph: source operators alone, as frontends make them.
        of: the name of an output of one floating point element.
        wrt: names of floating-point inputs and parameters. Those on which `of` does not depend get zeros.

    Raises ModelError for unknown names, and UnsupportedError, which lists all operators in between that have no
    gradient.
    """
    target = _named(graph.outputs, of, "output")
    sources = _sources(graph, wrt)
    if not target.dtype.is_float or as_int(target.type.size) != 1:
        raise ModelError("gradients are of one floating point number", where=f"output {of!r}", got=target.type)
    builder = _builder(graph)
    one = emit1(builder, "constant", value=np.ones((), target.dtype.numpy), name=f"d.{of}")
    seed = emit1(builder, "broadcast", one, shape=target.shape, name=f"d.{of}") if target.type.rank else one
    result = backward(builder, graph.nodes, {target: seed}, sources)
    results = [result.get(v) or _zeros(builder, v) for v in sources]
    return builder.finish((*graph.outputs, *results))


def jvp(graph: Graph, of: Sequence[str], wrt: Sequence[str]) -> Graph:
    """Forward mode: a graph that returns the outputs of `graph`, followed by the derivatives of some of them in a
    direction.

    The result of reverse mode is linear in the gradients of the outputs; differentiating it by these once more, in the
    direction, gives the derivative of the outputs (J. Townsend, "A new trick for calculating Jacobian vector products",
    2017). The values of these gradients do not matter.

    Args:
        graph: source operators alone, as frontends make them.
        of: names of outputs of floating point types.
        wrt: names of inputs and parameters of floating point types. After the inputs stands the direction, a new input
            `t.NAME` of the same type for each of them.

    Raises ModelError for unknown names, and UnsupportedError, which lists all operators in between without a gradient,
    or whose gradient has none.
    """
    targets = [_named(graph.outputs, name, "output") for name in of]
    sources = _sources(graph, wrt)
    for value in targets:
        if not value.dtype.is_float:
            raise ModelError(
                "derivatives are of floating point numbers", where=f"output {value.name!r}", got=value.type
            )
    builder = _builder(graph)
    directions = [builder.input(f"t.{v.name}", v.type) for v in sources]
    sent = {v: _zeros(builder, v) for v in dict.fromkeys(targets)}
    back = backward(builder, list(builder.nodes), dict(sent), sources)
    seeds: dict[Value, Value] = {}
    for value, direction in zip(sources, directions, strict=True):
        flow = back.get(value)
        if flow is not None:
            before = seeds.get(flow)
            seeds[flow] = direction if before is None else emit1(builder, "add", before, direction)
    result = backward(builder, list(builder.nodes), seeds, list(sent.values()))
    results = [result.get(sent[v]) or _zeros(builder, v) for v in targets]
    return pruned(builder.finish((*graph.outputs, *results)))


def _builder(graph: Graph) -> GraphBuilder:
    return GraphBuilder(
        graph.name,
        list(graph.inputs),
        list(graph.params),
        list(graph.nodes),
        set(_names(graph)),
        assumptions=list(graph.assumptions),
    )


def _sources(graph: Graph, names: Sequence[str]) -> list[Value]:
    """Inputs and parameters by name. Raises ModelError for unknown names, and for values of other than floating-point
    types."""
    results = [_named((*graph.inputs, *graph.params), name, "input or parameter") for name in names]
    for value in results:
        if not value.dtype.is_float:
            raise ModelError("there is no gradient by integers", where=f"{value.name!r}", got=value.type)
    return results


def _zeros(builder: GraphBuilder, value: Value) -> Value:
    zero = emit1(builder, "constant", value=np.zeros((), value.dtype.numpy), name=f"d.{value.name}")
    return emit1(builder, "broadcast", zero, shape=value.shape, name=f"d.{value.name}")


def _named(values: Sequence[Value], name: str, what: str) -> Value:
    for value in values:
        if value.name == name:
            return value
    raise ModelError(f"no {what} has this name", expected=", ".join(v.name for v in values), got=name)


def _names(graph: Graph) -> Iterable[str]:
    yield from (v.name for v in (*graph.inputs, *graph.params))
    yield from (v.name for n in graph.nodes for v in n.outputs)
