"""`jax.lax.scan`'s loops, recognised in `while` and rewritten without a counter: each iteration reads one element of
some sequences and appends one to others.

    while i < n: x = xs[i]; ...; ys[i] = y; i += 1        ->        ys = loop(xs) {body: x -> y}

The body is imported once with the counter as a symbol. If the counter then only occurs as the index of such elements,
the loop is rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.module import Block, Operation
from tilewright.frontend.stablehlo.rules.shape import as_item, reversed_along
from tilewright.frontend.stablehlo.scope import Item, known_item
from tilewright.ir.attributes import same
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, Var, is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.ir.rewrite import variables
from tilewright.ops.dims import dim, dims
from tilewright.ops.registry import emit
from tilewright.ops.shape import ConcatAttrs, SliceAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.recurrences import recurrent_cell


@dataclass(frozen=True, slots=True)
class _Counted:
    """A loop's counter: its position among the carried values, and the number of iterations; it runs from 0."""

    place: int
    count: int


def scanned(call: Call, written: int) -> list[Item] | None:
    """The results of a `while` that reads or collects one element of sequences per iteration, as an operator `loop`;
    None for other loops, and for those of at most `written` iterations without a recurrent cell, which are unrolled."""
    start = [as_item(v) for v in call.values()]
    counted = _counted(call)
    if counted is None:
        return None
    body = call.op.regions[1]
    moving = [k for k, v in enumerate(body.returned) if v != body.arguments[k] and k != counted.place]
    count = counted.count
    index = Var("iteration", lo=0, hi=count - 1)
    symbol = known_item(_object(index), call.item(counted.place).dtype, ())
    steps: list[bool] = []

    def iteration(carried: list[Item]) -> list[Item]:
        arguments = dict(zip(moving, carried[1:], strict=True)) | {counted.place: symbol}
        results = call.walk(body, [arguments.get(k, item) for k, item in enumerate(start)], False)
        after = results[counted.place].known
        steps.append(after is not None and after.size == 1 and same(after.reshape(-1)[0], dim(index + 1)))
        return [results[k] for k in moving]

    number = Item(TensorType(i64, ()))
    graph, captured = call.body("body", [number, *(start[k] for k in moving)], iteration)
    loop = _Loop(graph, index, count) if all(steps) else None
    if loop is None or not loop.read(len(moving)):
        return None
    result = loop.emit(call, [call.value(start[k]) for k in moving], captured, written)
    if result is None:
        return None
    arguments = dict(zip(moving, result, strict=True)) | {
        counted.place: known_item(np.asarray(count), symbol.dtype, ())
    }
    return [arguments.get(k, item) for k, item in enumerate(start)]


def _counted(call: Call) -> _Counted | None:
    """The counter of a `while` whose condition is `counter < number`, with a known number of at least 1, and that
    starts at 0; None for others."""
    condition = call.op.regions[0]
    compared = next((op for op in condition.body if op.results == condition.returned), None)
    if compared is None or compared.name != "stablehlo.compare" or len(condition.returned) != 1:
        return None
    if compared.attributes.get("comparison_direction") != "LT" or compared.operands[0] not in condition.arguments:
        return None
    place = condition.arguments.index(compared.operands[0])
    others = tuple(op for op in condition.body if op is not compared)
    limit = Block(
        condition.arguments, condition.types, (*others, Operation("stablehlo.return", compared.operands[1:], (), ()))
    )
    (most,) = call.walk(limit, list(call.items), False)
    if call.item(place).number != 0 or call.item(place).shape or most.number is None or most.number < 1:
        return None
    return _Counted(place, int(most.number))


def _object(e: Expr) -> np.ndarray:
    array = np.empty((), object)
    array[()] = e
    return array


@dataclass(slots=True)
class _Loop:
    """The body of a loop, imported with its counter as symbol `index`. `elements`: for each slice of an outer sequence
    that is one element, (sequence, whether it runs backwards); `collected`: for each carried sequence that gets one
    element, (element, whether backwards)."""

    graph: Graph
    index: Var
    count: int
    elements: dict[Value, tuple[Value, bool]]
    collected: dict[int, tuple[Value, bool]]

    def __init__(self, graph: Graph, index: Var, count: int) -> None:
        self.graph, self.index, self.count = graph, index, count
        self.elements, self.collected = {}, {}

    def read(self, moving: int) -> bool:
        """Fill `elements` and `collected`, and remove their nodes from the body, for `moving` carried values. Returns
        False if the counter is used for anything else."""
        graph, producers = self.graph, {v: n for n in self.graph.nodes for v in n.outputs}
        carried = graph.inputs[1 : 1 + moving]
        enclosing = {*graph.inputs[1 + moving :], *graph.params}
        gone: set[Node] = set()
        for place, (before, after) in enumerate(zip(carried, graph.outputs, strict=True)):
            added = self.added(before, producers.get(after), producers)
            if added is not None:
                nodes, *self.collected[place] = added  # type: ignore[assignment]
                gone |= nodes
        for node in graph.nodes:
            backward = self.direction(node.of(SliceAttrs).begin[0]) if node.op == "slice" and node.inputs[0] else None
            if backward is not None and node.inputs[0] in enclosing and self.is_element(node):
                assert node.inputs[0] is not None
                self.elements[node.output] = node.inputs[0], backward
                gone.add(node)
        retained = [n for n in graph.nodes if n not in gone]
        states = {v for k, v in enumerate(carried) if k in self.collected}
        sizes = {s for n in retained for v in n.outputs for d in v.shape for s in variables(d)}
        sizes |= {s for n in retained for s in n.symbols}
        self.graph = replace(graph, nodes=tuple(retained))
        return self.index not in sizes and not any(v in states for n in retained for v in n.inputs)

    def direction(self, begin: int | Expr) -> bool | None:
        """How an index `begin` follows the counter: False if it equals it, True if it counts from the end, None
        otherwise."""
        start = dim(begin)
        return False if start == self.index else True if start == dim(self.count - 1 - self.index) else None

    def is_element(self, node: Node) -> bool:
        """Whether `node`, a slice, reads one element along the first dimension of a sequence with one for each
        iteration."""
        (x,) = (v for v in node.inputs if v is not None)
        attrs = node.of(SliceAttrs)
        rest = dims(attrs.size[1:]) == x.shape[1:] and all(is_const(dim(b), 0) for b in attrs.begin[1:])
        return rest and is_const(dim(attrs.size[0]), 1) and is_const(x.shape[0], self.count)

    def added(
        self, before: Value, node: Node | None, producers: dict[Value, Node]
    ) -> tuple[set[Node], Value, bool] | None:
        """(nodes that replace one element of the carried sequence `before`, the new element, whether the index runs
        backwards), if `node` is the concatenation that does it; else None."""
        if node is None or node.op != "concat" or node.of(ConcatAttrs).axis or not before.shape:
            return None
        parts = [v for v in node.inputs if v is not None]
        retained = [
            k
            for k, v in enumerate(parts)
            if v in producers and producers[v].op == "slice" and before in producers[v].inputs
        ]
        fresh = [v for k, v in enumerate(parts) if k not in retained]
        if len(fresh) != 1 or len(parts) != 3 or retained != [0, 2] or not is_const(before.shape[0], self.count):
            return None
        head, tail = (producers[parts[k]] for k in retained)
        backward = self.direction(head.of(SliceAttrs).size[0])
        start = dim(head.of(SliceAttrs).size[0])
        fits = is_const(fresh[0].shape[0], 1) and dim(tail.of(SliceAttrs).begin[0]) == dim(start + 1)
        if backward is None or not fits or not is_const(dim(head.of(SliceAttrs).begin[0]), 0):
            return None
        return {node, head, tail}, fresh[0], backward

    def emit(self, call: Call, start: Sequence[Value], captured: Sequence[Value], written: int) -> list[Item] | None:
        """Emit the operator `loop` for initial values `start` and outer values `captured`. Returns the items of the
        results; None if the loop is to be unrolled, since it has no sequences, or at most `written` iterations and no
        recurrent cell."""
        graph, moving = self.graph, len(start)
        states = [k for k in range(moving) if k not in self.collected]
        inner = GraphBuilder(graph.name, reserved={v.name for n in graph.nodes for v in n.outputs})
        fresh, sequences, nodes = [], [], []
        for value, (source, backward) in self.elements.items():
            element = inner.input("element", TensorType(value.dtype, source.shape[1:]))
            fresh.append(element)
            sequences.append(reversed_along(call, source, [0]) if backward else source)
            nodes.append(_reshaped(inner, element, value))
        nodes += graph.nodes
        outputs = [graph.outputs[k] for k in states]
        for added, _ in self.collected.values():
            (row,) = emit(inner, "reshape", added, shape=added.shape[1:])
            outputs.append(row)
            nodes.append(inner.nodes[-1])
        carried = [graph.inputs[1 + k] for k in states]
        used = {v for n in nodes for v in n.inputs if v is not None} | set(outputs)
        inputs = [v for v in graph.inputs[1 + moving :] if v in used]
        body = Graph(
            graph.name,
            (graph.inputs[0], *carried, *fresh, *inputs),
            tuple(v for v in graph.params if v in used),
            tuple(nodes),
            tuple(outputs),
        )
        enclosing = [v for v in captured if v in used]
        attrs = {"body": body, "carried": len(states), "scanned": len(fresh), "trip": self.count}
        results = call.emit_all("loop", None, None, *(start[k] for k in states), *sequences, *enclosing, **attrs)
        if not fresh or (self.count <= written and recurrent_cell(call.builder.nodes[-1]) is None):
            return None
        result = dict(zip([*states, *self.collected], map(as_item, results), strict=True))
        for place, (_, backward) in self.collected.items():
            if backward:
                result[place] = as_item(reversed_along(call, call.value(result[place]), [0]))
        return [result[k] for k in range(moving)]


def _reshaped(builder: GraphBuilder, x: Value, like: Value) -> Node:
    """A node that computes the existing value `like` by reshaping `x`."""
    emit(builder, "reshape", x, shape=like.shape)
    return replace(builder.nodes.pop(), outputs=(like,))
