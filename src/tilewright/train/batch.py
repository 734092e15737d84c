"""Names for the arrays of a batch, as in the caller's own functions, for use in errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.ir.graph import Graph, Node, Value
from tilewright.train.plan import Objective

RESERVED = frozenset(("arena", "scalars", "gathered", "buffers"))
"""Names of a step's other inputs besides the batch."""


def names_of(function: Callable[..., Any], count: int) -> list[str]:
    """The names of a function's first `count` positional parameters; fewer, or none, where its signature names
    fewer."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a function of C, which says nothing
        return []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional[:count]


def named(objective: Objective, names: Sequence[str]) -> Objective:
    """`objective`, with its batch's inputs renamed to `names`, in order; a name that is in use is skipped."""
    graph = objective.graph
    batch = [v for v in graph.inputs if v.name != objective.key]
    used_names = {v.name for v in (*graph.inputs, *graph.params)} | {v.name for n in graph.nodes for v in n.outputs}
    used_names = (used_names | RESERVED) - {v.name for v in batch}
    chosen = {v: name for v, name in zip(batch, names, strict=False) if name not in used_names}
    retained = {v.name for v in batch if v not in chosen}
    renamed = {v: Value(name, v.type) for v, name in chosen.items() if name not in retained}
    return replace(objective, graph=with_values(graph, renamed)) if renamed else objective


def with_values(graph: Graph, others: Mapping[Value, Value]) -> Graph:
    """`graph`, with the values in `others` (old -> new) replaced."""

    def node(n: Node) -> Node:
        return replace(n, inputs=tuple(None if v is None else others.get(v, v) for v in n.inputs))

    return replace(
        graph,
        inputs=tuple(others.get(v, v) for v in graph.inputs),
        params=tuple(others.get(v, v) for v in graph.params),
        nodes=tuple(node(n) for n in graph.nodes),
        outputs=tuple(others.get(v, v) for v in graph.outputs),
    )


__all__ = ["named", "names_of", "with_values"]
