"""The end of every import: outputs get their names, what nobody needs is dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.registry import emit1, get
from tilewright.ops.rooms import is_room
from tilewright.runtime.specs import RaggedSpec, RoomSpec, StateSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, VerifyError


@dataclass(frozen=True, slots=True)
class Interface:
    """What a program's user sees beside its graph.

    inputs, outputs  their names where these are not those of the graph's values (a graph names each value once, but an
                     input, an output and a weight may share a name); empty: as the graph says
    ignored          names that the model's own dictionary of weights has and the graph does not read
    tied             those among them that are one tensor with a weight of the graph: (name, the weight's name)
    folded           weights that the program has no parameter of because something was computed from them when the
                     model was exported or compiled, each with what that is: updates that hold them are refused
    fixed            parameters of the graph that are constants of the program: updates leave them out
    extents          the symbols that data decides; the last outputs are their values, which no user sees
    rooms            inputs without elements that the runtime gives (`ops/extent.py`)
    state            the caches that callers keep (`transform/graph/state.py`)
    ragged           how rows of sequences are packed (`transform/graph/ragged.py`)
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    tied: tuple[tuple[str, str], ...] = ()
    folded: tuple[tuple[str, str], ...] = ()
    fixed: frozenset[str] = frozenset()
    extents: tuple[str, ...] = ()
    rooms: tuple[RoomSpec, ...] = ()
    state: StateSpec | None = None
    ragged: RaggedSpec | None = None


PLAIN = Interface()


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph, the arrays of its parameters by name, and what else its user sees of it.

    `private`: nobody but the import has the arrays, so that a model may keep them.
    """

    graph: Graph
    weights: dict[str, Any]
    interface: Interface = PLAIN
    private: bool = False


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
            builder.taken.discard(name)
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


def pruned(graph: Graph) -> Graph:
    """The graph without nodes and parameters that no output needs, and without rooms that nobody fills."""
    used = {s for n in graph.needed() for s in n.symbols}
    # What says how many rows a room has to have is needed where a loop has as many iterations.
    heads = [n for n in graph.nodes if n.op == "head" and (x := n.inputs[0]) is not None and is_room(x)]
    asked = [n.output for n in heads if n.inputs[0] is not None and n.inputs[0].shape[0] in used]
    kept = replace(graph, outputs=(*graph.outputs, *asked)).needed()
    read = {v for n in kept for v in n.inputs} | set(graph.outputs)
    params = tuple(p for p in graph.params if p in read)
    inputs = tuple(v for v in graph.inputs if v in read or not is_room(v))
    return replace(graph, inputs=inputs, nodes=kept, params=params)


def renamed_node(node: Node, renamed: Mapping[Value, Value]) -> Node:
    if not any(v in renamed for v in (*node.inputs, *node.outputs)):
        return node
    inputs = tuple(None if v is None else renamed.get(v, v) for v in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(renamed.get(v, v) for v in node.outputs))


def located(error: Error, where: str) -> Error:
    """The error with the thing it is about."""
    if error.problems:
        for problem in error.problems:
            located(problem, where)
    elif error.where is None:
        error.where = where
    return error


def reason(error: BaseException) -> str:
    """An unforeseen error in one line: its kind alone where it says nothing."""
    text = first_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line that an error says, as much of it as a message takes; nothing where it says nothing."""
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
"""What Python raises when a file's values make no sense in a place where no rule foresaw it. Importers turn these into
errors at the node, so that no file, however damaged, is more than an error."""
