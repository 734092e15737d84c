"""The last steps of every import: name the outputs, and drop nodes that no output needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ir.interface import Imported
from tilewright.ops.registry import emit1, get
from tilewright.ops.rooms import pruned
from tilewright.support.errors import Error, VerifyError


def finished(builder: GraphBuilder, outputs: Sequence[tuple[str, Value]], weights: Mapping[str, Any]) -> Imported:
    """The graph that computes `outputs` (name, value), with those of the weights that it needs."""
    nodes = builder.nodes
    computed = {v for n in nodes for v in n.outputs}
    names = {name for name, _ in outputs}
    renamed: dict[Value, Value] = {}
    for name, value in outputs:
        if value.name not in names and value in computed:
            renamed.setdefault(value, Value(name, value.type))
    nodes[:] = [renamed_node(n, renamed) for n in nodes]
    chosen: list[Value] = []
    for name, value in outputs:
        value = renamed.get(value, value)
        if value.name != name:
            builder.reserved.discard(name)
            value = emit1(builder, "identity", value, name=name)
        chosen.append(value)
    graph = pruned(builder.finish(tuple(chosen)))
    check_dialect(graph)
    return Imported(graph, {v.name: weights[v.name] for v in graph.params})


def check_dialect(graph: Graph) -> None:
    """Raise VerifyError if a frontend has put operators into a graph that only lowering makes."""
    foreign = sorted({n.op for n in graph.nodes if get(n.op).dialect != "source"})
    if foreign:
        raise VerifyError(
            "an imported graph has operators that only lowering makes",
            where=f"graph {graph.name!r}",
            expected="source operators",
            got=", ".join(foreign),
        )


def renamed_node(node: Node, renamed: Mapping[Value, Value]) -> Node:
    if renamed.keys().isdisjoint((*node.inputs, *node.outputs)):
        return node
    inputs = tuple(None if v is None else renamed.get(v, v) for v in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(renamed.get(v, v) for v in node.outputs))


def located(error: Error, where: str) -> Error:
    """`error` with `where`, the place in the model that it is about."""
    if error.problems:
        for problem in error.problems:
            located(problem, where)
    elif error.where is None:
        error.where = where
    return error


def reason(error: BaseException) -> str:
    """An unexpected exception as one line of text; the name of its class if it has no message."""
    text = first_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, shortened to fit a message; "" if it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200]


MALFORMED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
)
"""The exceptions that Python raises when a file's values are invalid in a way that no rule checks. Importers turn these
into errors at the node, so that no file, however damaged, is more than an error."""
