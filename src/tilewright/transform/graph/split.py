"""Split a graph into `prepare` (what depends on weights alone) and `run` (the rest).

    graph(x; w) { p = transpose(w); y = matmul(x, p) }
    ->
    prepare(; w) { p = transpose(w) } -> p           run(x; p) { y = matmul(x, p) }

New weights are packed by running `prepare` again; nothing of it is ever done in `run`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, Node, Value
from tilewright.support.classes import dataclass
from tilewright.transform.graph.fixed import depends_on_weights


@dataclass(frozen=True, slots=True)
class SplitGraph:
    """The programs `prepare` and `run`. `run.params` are the raw parameters and outputs of `prepare` that `run` reads,
    in order."""

    prepare: Graph
    run: Graph


def split_prepare(graph: Graph) -> SplitGraph:
    """Move every node whose inputs are all parameters, or depend on parameters alone, to `prepare`.

    Constants and what is made of them alone go where they are used. What depends on a symbolic size stays in `run`, as
    do loops and branches, whose bodies keep no work on weights alone: `transform/regions/` has moved that to nodes
    before them.
    """
    fixed: set[Value] = set(graph.params)
    known = set(fixed)
    free: list[Node] = []
    prepare: list[Node] = []
    run: list[Node] = []
    for node in graph.nodes:
        inputs = [v for v in node.inputs if v is not None]
        moves = not node.symbols and not node.bodies and all(as_int(v.type.size) is not None for v in node.outputs)
        moves = moves and node.op != "require"  # a check of weights fails at the call as well
        if not moves or not depends_on_weights(inputs, known):
            run.append(node)
            continue
        known.update(node.outputs)
        if any(v in fixed for v in inputs):
            prepare.append(node)
            fixed.update(node.outputs)
        else:
            free.append(node)
    outputs_of_run = dict.fromkeys(v for node in run for v in node.inputs if v is not None and v in fixed)
    outputs_of_run.update((v, None) for v in graph.outputs if v in fixed)
    crossing = tuple(outputs_of_run)
    produced = tuple(v for v in crossing if v not in set(graph.params))
    return SplitGraph(
        Graph(f"{graph.name}_prepare", (), graph.params, (*_used(free, prepare, ()), *prepare), produced),
        replace(graph, params=crossing, nodes=(*_used(free, run, graph.outputs), *run)),
    )


def _used(free: list[Node], readers: list[Node], outputs: tuple[Value, ...]) -> tuple[Node, ...]:
    """The nodes of `free`, in their order, that are needed to compute what the nodes `readers` read and the values
    `outputs`."""
    wanted = {v for node in readers for v in node.inputs if v is not None} | set(outputs)
    results: list[Node] = []
    for node in reversed(free):
        if any(v in wanted for v in node.outputs):
            wanted.update(v for v in node.inputs if v is not None)
            results.append(node)
    return tuple(reversed(results))
