"""Reverse mode over graphs.

    gradient(graph, of="loss", wrt=["w", "b"])   ->   a graph of the loss and its gradients by w and b

Every source operator's rule (`ops/gradients/`) says in operators how gradients flow back through it; values that
several nodes read sum what comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Value
from tilewright.ops.gradients.reverse import backward
from tilewright.ops.registry import emit1
from tilewright.support.errors import ModelError


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


def _named(values: Sequence[Value], name: str, what: str) -> Value:
    for value in values:
        if value.name == name:
            return value
    raise ModelError(f"no {what} has this name", expected=", ".join(v.name for v in values), got=name)


def _names(graph: Graph) -> Iterable[str]:
    yield from (v.name for v in (*graph.inputs, *graph.params))
    yield from (v.name for n in graph.nodes for v in n.outputs)
