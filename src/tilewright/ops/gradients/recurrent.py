"""Gradients of recurrent layers, through time.

The forward pass stores the gates of all steps. The backward pass is a loop from the last step to the first, which only
contains the product with the recurrent weights; the gradient of the weights is a single product over all steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.ir.expr import Expr
from tilewright.ir.graph import GraphBuilder, Node, TensorType, Value
from tilewright.ops.cells import LstmCellAttrs, steps_of
from tilewright.ops.dims import dims
from tilewright.ops.gradients.loops import Body, Steps, loop
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.gradients.reverse import backward
from tilewright.ops.registry import emit1
from tilewright.ops.rnn import RecurrenceAttrs, program_of, results
from tilewright.ops.steps import Program, run
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError

Result = Sequence[Value | None]


@dataclass(slots=True)
class Layer:
    """A recurrent layer in its backward pass. Sequences stay in the order of the forward pass, and are processed in
    reverse."""

    b: Backward
    hidden: Expr

    @property
    def attrs(self) -> RecurrenceAttrs:
        return self.b.of(RecurrenceAttrs)

    def gate(self, gates: Value, k: int, count: int = 1) -> Value:
        """The `count` gates from number `k` on, of gates [..., G H]."""
        rank = gates.type.rank
        begin = (*[0] * (rank - 1), self.hidden * k)
        size = (*gates.shape[:-1], self.hidden * count)
        return self.b.emit("slice", gates, begin=dims(begin), size=dims(size), step=(1,) * rank)

    def begun(self) -> Value:
        """The states [T, B, H] at the beginning of each step."""
        time, *rest = self.b.y.shape
        first = self.b.reshape(self.b.x(2), dims((1, *rest)))
        begin = (1, 0, 0) if self.attrs.reverse else (0, 0, 0)
        others = self.b.emit("slice", self.b.y, begin=begin, size=dims((time - 1, *rest)), step=(1, 1, 1))
        return self.b.emit("concat", *((others, first) if self.attrs.reverse else (first, others)), axis=0)

    def rows(self, x: Value) -> Value:
        """`x` [T, B, n] as [T * B, n]: steps and batch become one dimension."""
        return self.b.reshape(x, dims((x.shape[0] * x.shape[1], x.shape[2])))

    def stored(self) -> Value:
        """The values that the forward pass stores for the backward pass, [T, n, B, H]. Changes the forward node to
        store them if it does not."""
        b, at = self.b, self.b.place
        node = b.builder.nodes[at]
        if not node.of(RecurrenceAttrs).keeps:
            attrs = replace(self.attrs, keeps=True)
            more = Value(b.builder.fresh(f"{b.y.name}.kept"), results((b.x(0).type,), self.hidden, attrs)[-1])
            node = b.builder.nodes[at] = replace(node, attrs=attrs, outputs=(*node.outputs, more))
        return node.outputs[-1]

    def back(self, carried: list[Value], sequences: list[Value], body: Body) -> list[Value]:
        """Emit the loop of the backward pass, with `body` for each step, and return its results. It visits the steps in
        the order opposite to the forward pass, from the initial values `carried`, and passes each step its rows of
        `sequences` and the recurrent weights."""
        return loop(self.b, carried, sequences, body, self.b.x(1), not self.attrs.reverse)

    def by_weights(self, states: Value, gates: Value) -> Value:
        return self.b.emit("matmul", self.rows(states), self.rows(gates), transpose_a=True, transpose_b=False)

    def joined(self, *parts: Value) -> Value:
        return self.b.emit("concat", *parts, axis=parts[0].type.rank - 1)


def through(
    builder: GraphBuilder,
    steps: Program,
    arguments: Sequence[Value | None],
    sums: Mapping[int, Value],
    known: Mapping[int, Value],
    seeds: Mapping[int, Value],
) -> tuple[dict[int, Value], list[Node]]:
    """Differentiate the steps of a cell. From `seeds`, the gradients of some of its values by number, it returns the
    gradients of its arguments and products by number, and the nodes that compute them.

    `sums`: the results of the products. Values that are not in `known` are recomputed.
    """
    inner = GraphBuilder("cell", reserved=builder.reserved, last_numbers=builder.last_numbers)

    def apply(op: str, x: Sequence[Value], attrs: dict[str, Any]) -> Value:
        if op == "constant":
            like = next(v for v in arguments if v is not None)
            attrs = {"value": np.asarray(attrs["value"], like.dtype.numpy)}
        return emit1(inner, op, *x, **attrs)

    numbers = {p.gate: p.number for p in steps.products}
    values = run(steps, arguments, apply, lambda _, __, gate: sums[numbers[gate]])
    sources = {**{k: v for k, v in enumerate(arguments) if v is not None}, **sums}
    flowing = {value: seed for k, seed in seeds.items() if (value := values[k]) is not None}
    flows = backward(inner, list(inner.nodes), flowing, sources.values())
    same = {value: v for k, v in known.items() if (value := values[k]) is not None}
    first: dict[Any, Node] = {}
    nodes: list[Node] = []
    for old in inner.nodes:
        node = replace(old, inputs=tuple(None if v is None else same.get(v, v) for v in old.inputs))
        earlier = first.setdefault((node.op, node.inputs, node.attrs), node)
        if earlier is node:
            nodes.append(node)
        else:
            same.update((v, same.get(w, w)) for v, w in zip(node.outputs, earlier.outputs, strict=True))
    result = {k: same.get(flow, flow) for k, v in sources.items() if (flow := flows.get(v)) is not None}
    needed = set(result.values())
    live: list[Node] = []
    for node in reversed(nodes):
        if any(v in needed and v not in same for v in node.outputs):
            live.append(node)
            needed.update(v for v in node.inputs if v is not None)
    return result, live[::-1]


@gradient("recurrence")
def recurrence(b: Backward) -> Result:
    """The gradient of `recurrence`, from the gates that the forward pass stores, or from its states if it stores
    none."""
    attrs, layer = b.of(RecurrenceAttrs), Layer(b, b.x(2).shape[1])
    refused = UnsupportedError(
        "a recurrent layer with lengths, peepholes, bounds or unusual functions has no gradient yet",
        where=b.y.name,
        got=attrs.cell,
    )
    if attrs.cell == "steps" or b.has(4) or b.has(5):
        raise refused
    steps = program_of(attrs, 0, 0, 0, 0)
    if any(p.state != steps.shares for p in steps.products):
        raise refused
    ends, states = len(b.node.outputs) - attrs.keeps, len(steps.results)
    flows = [
        b.zeros(v.shape, v) if g is None else g for g, v in zip(b.output_gradients[:ends], b.node.outputs, strict=False)
    ]
    by_retained = [g for g in b.output_gradients[ends:] if g is not None]
    begun = layer.begun()
    h, gates = steps.shares, len(steps.products)
    reads_h = any(h in operands for op, operands, _ in steps.steps if op != "product")
    separate = [p.gate for p in steps.products if p.addend != p.gate]

    def back(s: Steps, held: list[Value], parts: list[Value]) -> tuple[list[Value], list[Value]]:
        flow, stored, *others = parts
        numbers, values = (steps.retained, s.split(stored)) if steps.retained else (steps.results, [stored])
        known = dict(zip(numbers, values, strict=True))
        absent = [Value(s.builder.fresh("absent"), TensorType(flow.dtype, flow.shape)) for _ in range(h + gates + 1)]
        arguments: list[Value | None] = [*absent[:h], others.pop(0) if reads_h else absent[h], *[None] * steps.vectors]
        if states > 1:
            arguments.insert(h + 1, known[h + 1])
        if b.has(6):
            arguments[-1] = absent[h]
        sums = {p.number: absent[h + 1 + p.gate] for p in steps.products}
        seeds = dict(zip(steps.retained, s.split(others[0]), strict=True)) if by_retained else {}
        seeds |= dict(zip(steps.results, [s.add(held[0], flow), *held[1:]], strict=True))
        by, nodes = through(s.builder, steps, arguments, sums, known, seeds)
        if any(v in absent for node in nodes for v in node.inputs):
            raise refused
        s.builder.nodes += nodes
        products = sorted(steps.products, key=lambda p: p.gate)
        joined = by[products[0].number] if gates == 1 else s.emit("concat", *(by[p.number] for p in products), axis=1)
        by_states = [s.sum(s.back(joined), by[h] if reads_h else None), *(by[h + k] for k in range(1, states))]
        return by_states, [s.emit("identity", v) for v in (joined, *(by[k] for k in separate))]

    sequences = [flows[0], layer.stored() if steps.retained else b.y, *([begun] if reads_h else []), *by_retained]
    by_h, *rest = layer.back(flows[1:], sequences, back)
    by_c, (by_gates, *by_separate) = rest[: states - 1], rest[states - 1 :]
    by_x = layer.joined(layer.gate(by_gates, 0, gates - len(separate)), *by_separate) if separate else by_gates
    by_deferred = b.sum(layer.gate(by_gates, gates - 1), [0, 1], keepdims=False) if b.has(6) else None
    return [by_x, layer.by_weights(begun, by_gates), by_h, by_c[0] if b.has(3) else None, None, None, by_deferred]


@gradient("lstm_cell")
def lstm_cell(b: Backward) -> Result:
    """The gradient of `lstm_cell`; its gates, the sum of a row of gates_x and the state's product, are recomputed."""
    attrs, x = b.of(LstmCellAttrs), b.x()
    h, c = b.node.outputs
    layer = Layer(b, h.shape[1])
    batch, wide = h.shape[0], x.shape[1]
    first = batch * attrs.step
    z = b.emit("slice", x, begin=dims((first, 0)), size=dims((batch, wide)), step=(1, 1))
    z = b.add(z, b.x(1)) if b.has(1) else z
    steps = steps_of(attrs)
    arguments = [*(layer.gate(z, k) for k in range(4)), None, b.x(2) if b.has(2) else None, *[None] * steps.vectors]
    seeds = {k: g for k, g in zip(steps.results, b.output_gradients, strict=True) if g is not None}
    by, nodes = through(b.builder, steps, arguments, {}, dict(zip(steps.results, (h, c), strict=True)), seeds)
    b.builder.nodes += nodes
    gates = layer.joined(*(by[k] if k in by else b.zeros(h.shape, x) for k in range(4)))
    after = (x.shape[0] - first - batch, 0)
    by_x = b.emit("pad", gates, before=dims((first, 0)), after=dims(after), mode="constant")
    return [by_x, gates if b.has(1) else None, by.get(steps.shares + 1)]
