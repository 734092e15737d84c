"""Captures of bodies: pass values of the enclosing graph into a body, and move nodes out of it.

y = loop(..., w) {body = graph @body(%i, %s, %w) { p = pack(w); ... }} -> p = pack(w); y = loop(..., p) {body = graph
@body(%i, %s) params(%p) { ... }}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ir.rewrite import fresh_name, variables
from tilewright.ops.control import CondAttrs, LoopAttrs
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Region:
    """A node with bodies, and the roles of its operands for the bodies.

    own       operands that are not captures: a loop's count, condition, initial values and sequences, a predicate
    leading   how many inputs of a body are not captured
    captured  the operands that the bodies capture
    inputs    how many captures are inputs of the bodies; the others are params
    """

    node: Node
    own: tuple[Value | None, ...]
    leading: int
    captured: tuple[Value, ...]
    inputs: int

    def with_captures(self, bodies: Sequence[Graph], inputs: Sequence[Value], params: Sequence[Value]) -> Node:
        """The node with its bodies replaced by `bodies`, which capture `inputs` and `params`."""
        changed = dict(zip(map(id, self.node.bodies), bodies, strict=True))
        attrs = self.node.attrs.mapped(lambda v: changed[id(v)] if isinstance(v, Graph) else v)
        return replace(self.node, inputs=(*self.own, *inputs, *params), attrs=attrs)


def region(node: Node) -> Region:
    """The parts of a loop or branch. Raises TypeError for other nodes."""
    match node.attrs:
        case LoopAttrs(body=body, carried=carried, scanned=scanned):
            own, leading = 2 + carried + scanned, 1 + carried + scanned
        case CondAttrs(then=body):
            own, leading = 1, 0
        case _:
            raise TypeError(f"{node.op} has no bodies")
    captured = tuple(v for v in node.inputs[own:] if v is not None)
    return Region(node, node.inputs[:own], leading, captured, len(body.inputs) - leading)


def names_of(graph: Graph) -> set[str]:
    """The names of the inputs, parameters and values of a graph."""
    values = (*graph.inputs, *graph.params, *(v for n in graph.nodes for v in n.outputs))
    return {v.name for v in values}


def builder_for(graph: Graph) -> GraphBuilder:
    """A builder for a rewritten version of a graph, with the same name; it avoids all names in the graph."""
    return GraphBuilder(graph.name, reserved=names_of(graph))


def fixed_values(graph: Graph, weights: Iterable[Value]) -> set[Value]:
    """The values that depend on `weights` alone and have a known size."""
    fixed = set(weights)
    constants = {n.output for n in graph.nodes if n.op == "constant"}
    for node in graph.nodes:
        inputs = [v for v in node.inputs if v is not None]
        known = all(as_int(v.type.size) is not None for v in node.outputs) and not node.symbols and not node.bodies
        if known and all(v in fixed or v in constants for v in inputs) and any(v in fixed for v in inputs):
            fixed.update(node.outputs)
    return fixed


def used_values(body: Graph) -> set[Value]:
    return {v for n in body.nodes for v in n.inputs if v is not None} | set(body.outputs)


def recaptured(
    node: Node, fixed: Collection[Value], constants: Mapping[Value, Node], carriers: Collection[Value]
) -> Node:
    """A node whose bodies capture what they read, each value once. Constants are moved into the bodies, the captured
    values in `fixed` are params, and each symbol that a body mentions is in the shape of one of its inputs.

    Args:
        constants: the constant nodes of the enclosing graph, by their values.
        carriers: values of the enclosing graph whose shapes define symbols.
    """
    result = region(node)
    bodies = list(node.bodies)
    sources: list[dict[Value, Value]] = []
    for body in bodies:
        captures = (*body.inputs[result.leading :], *body.params)
        sources.append(dict(zip(captures, result.captured, strict=True)))
    wanted = dict.fromkeys(
        source
        for body, table in zip(bodies, sources, strict=True)
        for inner, source in table.items()
        if inner in used_values(body) and source not in constants
    )
    operands = {s for v in (*result.own, *wanted) if v is not None for d in v.shape for s in variables(d)}
    for symbol in dict.fromkeys(s for body in bodies for s in body.used_symbols):
        if symbol not in operands:
            carrier = next(v for v in carriers if symbol in v.shape)
            wanted[carrier] = None
            operands.update(s for d in carrier.shape for s in variables(d))
    inputs = [v for v in wanted if v not in fixed]
    params = [v for v in wanted if v in fixed]
    changed = [
        _capturing(body, result.leading, table, inputs, params, constants)
        for body, table in zip(bodies, sources, strict=True)
    ]
    return result.with_captures(changed, inputs, params)


def _capturing(
    body: Graph,
    leading: int,
    sources: dict[Value, Value],
    inputs: Sequence[Value],
    params: Sequence[Value],
    constants: Mapping[Value, Node],
) -> Graph:
    """The body with its first `leading` inputs, then captures of `inputs` and `params`, in this order; values that it
    reads are renamed by `sources`."""
    used_names = {v.name for v in body.inputs[:leading]} | {v.name for n in body.nodes for v in n.outputs}
    inner = {outer: Value(fresh_name(outer.name, used_names), outer.type) for outer in (*inputs, *params)}
    used = used_values(body)
    nodes: list[Node] = []
    renamed: dict[Value, Value] = {}
    for old, outer in sources.items():
        if outer in constants and old in used:
            created = Value(fresh_name(outer.name, used_names), outer.type)
            nodes.append(replace(constants[outer], outputs=(created,)))
            renamed[old] = created
        elif outer in inner:
            renamed[old] = inner[outer]
    nodes += [with_inputs(n, renamed) for n in body.nodes]
    outputs = tuple(renamed.get(v, v) for v in body.outputs)
    captured = tuple(inner[v] for v in inputs), tuple(inner[v] for v in params)
    return Graph(body.name, (*body.inputs[:leading], *captured[0]), captured[1], tuple(nodes), outputs)


def with_inputs(node: Node, renamed: Mapping[Value, Value]) -> Node:
    """The node with renamed inputs; the node itself if it reads none of the renamed values."""
    for value in node.inputs:
        if value is not None and value in renamed:
            break
    else:
        return node
    return replace(node, inputs=tuple(None if v is None else renamed.get(v, v) for v in node.inputs))


def hoisted(node: Node, used_names: set[str], wanted: Callable[[Node], bool]) -> tuple[list[Node], Node]:
    """(nodes, node): nodes of the bodies that depend on params alone, for the enclosing graph, and the node with bodies
    that capture their results.

    Args:
        used_names: names of the enclosing graph; those of hoisted nodes are added.
        wanted: tells whether a node may leave its body.
    """
    result = region(node)
    inputs, params = result.captured[: result.inputs], list(result.captured[result.inputs :])
    outside: list[Node] = []
    bodies = list(node.bodies)
    for k, body in enumerate(bodies):
        enclosing = dict(zip(body.params, params, strict=True))
        moved = _hoistable(body, wanted)
        for n in moved:
            outputs = tuple(Value(fresh_name(v.name, used_names), v.type) for v in n.outputs)
            outside.append(replace(with_inputs(n, enclosing), outputs=outputs))
            enclosing.update(zip(n.outputs, outputs, strict=True))
        gone = {id(n) for n in moved if n.op != "constant"}
        created = [v for n in moved if n.op != "constant" for v in n.outputs]
        rest = tuple(n for n in body.nodes if id(n) not in gone)
        bodies[k] = replace(body, params=(*body.params, *created), nodes=rest)
        params += [enclosing[v] for v in created]
        for other in range(len(bodies)):
            if other != k:
                names = names_of(bodies[other])
                unread = tuple(Value(fresh_name(v.name, names), v.type) for v in created)
                bodies[other] = replace(bodies[other], params=(*bodies[other].params, *unread))
    return outside, result.with_captures(bodies, inputs, params) if outside else node


def _hoistable(body: Graph, wanted: Callable[[Node], bool]) -> list[Node]:
    """The nodes of a body that depend on params alone, in order, and the constants that they read."""
    constants = {n.output: n for n in body.nodes if n.op == "constant"}
    moved: dict[int, Node] = {}
    produced: set[Value] = set(body.params)
    for n in body.nodes:
        inputs = [v for v in n.inputs if v is not None]
        free = all(v in produced or v in constants for v in inputs) and any(v in produced for v in inputs)
        sized = not n.symbols and all(as_int(v.type.size) is not None for v in n.outputs) and n.op != "require"
        if free and sized and not n.bodies and wanted(n):
            moved.update((id(constants[v]), constants[v]) for v in inputs if v in constants)
            moved[id(n)] = n
            produced.update(n.outputs)
    return list(moved.values())


def lift_constants(graph: Graph) -> Graph:
    """Move constants of several elements out of bodies, which capture them instead: they are data, not code."""
    if not any(node.bodies for node in graph.nodes):
        return graph
    used_names = names_of(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.bodies:
            node = node.with_bodies(lift_constants)
            result = region(node)
            bodies, params = list(node.bodies), list(result.captured[result.inputs :])
            for k, body in enumerate(bodies):
                large = [n for n in body.nodes if n.op == "constant" and (as_int(n.output.type.size) or 0) > 1]
                for n in large:
                    nodes.append(replace(n, outputs=(Value(fresh_name(n.output.name, used_names), n.output.type),)))
                    params.append(nodes[-1].output)
                inside = [n.output for n in large]
                rest = tuple(n for n in body.nodes if n.op != "constant" or n.output not in inside)
                bodies[k] = replace(body, params=(*body.params, *inside), nodes=rest)
                for other in range(len(bodies)):
                    if other != k:
                        names = names_of(bodies[other])
                        unread = tuple(Value(fresh_name(v.name, names), v.type) for v in inside)
                        bodies[other] = replace(bodies[other], params=(*bodies[other].params, *unread))
            node = result.with_captures(bodies, result.captured[: result.inputs], params)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))
