"""Graphs inside ONNX nodes: their nodes are imported into the main graph, then moved out of it as the body of a loop or
branch.

A body is walked like other nodes, with new values for its inputs. Values that its nodes read but do not compute are
captured from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import onnx

from tilewright.arith import prove_equal
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.scope import Item, Scope
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.support.classes import dataclass
from tilewright.support.errors import Problems, UnsupportedError

T = TypeVar("T")

Walk = Callable[[onnx.GraphProto, Mapping[str, Item], str], list[Item]]
"""Imports the nodes of a graph with these inputs under a prefix of names, and returns the outputs."""


class Noted(Exception):
    """Raised when a node fails because of problems in its inner graphs that are reported already."""


@dataclass(slots=True)
class Body:
    """A body that was moved out of the graph: its nodes, its results, and the outer values that these read."""

    name: str
    nodes: tuple[Node, ...]
    results: tuple[Value, ...]
    captured: tuple[Value, ...]

    def graph(self, inputs: Sequence[Value], captured: Sequence[Value]) -> Graph:
        """The body as a graph of its own. Its inputs are `inputs`, followed by values for the outer ones that it reads
        (`captured`)."""
        return Graph(self.name, (*inputs, *captured), (), self.nodes, self.results)


@dataclass(slots=True)
class Bodies:
    """The graphs inside one node: how its rule walks them.

    walk      imports the nodes of a graph
    scope     the names that are visible to the node
    problems  the list in which the importer collects errors
    """

    call: Call
    walk: Walk
    scope: Scope
    problems: Problems

    def value(self, name: str, t: TensorType) -> Item:
        """A new value of type `t`, to be an input of a body."""
        created = Value(self.call.builder.fresh(f"{self.call.hint}.{name}"), t)
        return Item(t, created)

    @contextmanager
    def removed_nodes(self) -> Iterator[list[Node]]:
        """Collect the nodes that are emitted within the context; at its end they are removed from the graph. Constants
        of outer scopes that were emitted as values inside forget these values, so that they are emitted again where
        needed."""
        builder = self.call.builder
        before, result = len(builder.nodes), list[Node]()
        numbers = [i for i in (*self._enclosing_items(), *self.call.items) if i is not None and i.value is None]
        try:
            yield result
        finally:
            result += builder.nodes[before:]
            del builder.nodes[before:]
            inside = {v for n in result for v in n.outputs}
            for item in numbers:
                if item.value in inside:
                    item.value = None

    def _enclosing_items(self) -> Iterator[Item]:
        scope: Scope | None = self.scope
        while scope is not None:
            yield from scope.items.values()
            scope = scope.parent

    def cut(
        self,
        graph: onnx.GraphProto,
        inputs: Mapping[str, Item],
        prefix: str,
        finish: Callable[[list[Item]], Sequence[Value]],
    ) -> Body:
        """Import an inner graph with these inputs, and remove its nodes from the main graph as a body; `finish` turns
        the graph's results into values. Names of its values begin with `prefix`."""
        with self.removed_nodes() as nodes:
            results = tuple(finish(self.walk(graph, inputs, prefix)))
        inside = {v for n in nodes for v in n.outputs} | {i.value for i in inputs.values()}
        read = [v for n in nodes for v in n.inputs if v is not None]
        captured = dict.fromkeys(v for v in (*read, *results) if v not in inside)
        return Body(graph.name or prefix.strip("/") or "body", tuple(nodes), results, tuple(captured))

    def attempt(self, rule: Callable[[], T]) -> T | None:
        """The result of `rule`; None if it meets something unsupported, with the graph as before."""
        noted, assumptions = len(self.problems), self.call.builder.assumptions
        assumed = len(assumptions)
        with self.removed_nodes() as created:
            try:
                result = rule()
            except UnsupportedError:
                del assumptions[assumed:]
                return None
            except Noted:
                if not all(isinstance(p, UnsupportedError) for p in self.problems.errors[noted:]):
                    raise
                del self.problems.errors[noted:], assumptions[assumed:]
                return None
        self.call.builder.nodes += created
        return result

    def like(self, value: Value, t: TensorType, what: str) -> Value:
        """`value` reshaped to `t`, where both types are equal but for how sizes are written. Raises UnsupportedError,
        which says that `what` changes its type, for others."""
        if value.type == t:
            return value
        same = value.dtype is t.dtype and value.type.rank == t.rank
        if not same or not all(prove_equal(a, b) for a, b in zip(value.shape, t.shape, strict=True)):
            raise UnsupportedError(f"{what} that changes its type is not supported", expected=t, got=value.type)
        return self.call.reshape(value, t.shape)
