"""Gradients of loops and branches.

The gradient of a loop with a known number of iterations is a loop from the last iteration to the first. The forward
loop also collects each carried value that is needed at the beginning of every iteration; the backward loop recomputes
the rest. It carries the gradients of carried values, collects those of sequences' elements, and adds up those of
captured values.

The gradient of a branch is a `cond` between the gradients of both bodies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from tilewright.ir.expr import Expr
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.ops.control import NUMBER, CondAttrs, LoopAttrs
from tilewright.ops.dims import dim, dims
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.gradients.reverse import backward
from tilewright.ops.registry import emit1
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError

Result = Sequence[Value | None]


@gradient("loop")
def loop(b: Backward) -> Result:
    attrs = b.of(LoopAttrs)
    if attrs.conditional or b.has(0) or b.has(1):
        raise UnsupportedError(
            "a loop whose number of iterations data decides has no gradient",
            where=b.y.name,
            expected="a loop over sequences, or of a known number of iterations",
        )
    return _Loop(b, attrs).gradients()


@dataclass(slots=True)
class _Loop:
    """Builds the backward loop of a loop. The forward body's values keep their names in the backward body."""

    b: Backward
    attrs: LoopAttrs
    builder: GraphBuilder = field(init=False)

    def __post_init__(self) -> None:
        body = self.attrs.body
        used_names = {v.name for v in (*body.inputs, *body.params)} | {v.name for n in body.nodes for v in n.outputs}
        self.builder = GraphBuilder(f"{body.name}_backward", [], [], list(body.nodes), used_names)

    @property
    def operands(self) -> tuple[Value, ...]:
        """The body's inputs and params but for the iteration's number, in the order of the node's operands."""
        return (*self.attrs.body.inputs, *self.attrs.body.params)[1:]

    @property
    def extent(self) -> Expr:
        """The number of iterations of the loop."""
        if self.attrs.trip is not None:
            return dim(self.attrs.trip)
        sequence = self.b.x(2 + self.attrs.carried)
        return sequence.shape[0]

    def gradients(self) -> Result:
        b, attrs, body = self.b, self.attrs, self.attrs.body
        count, scanned = attrs.carried, attrs.scanned
        carried, elements, captured = (
            self.operands[:count],
            self.operands[count:][:scanned],
            self.operands[count + scanned :],
        )
        flows = [v for v in carried if v.dtype.is_float]
        held = {v: Value(self.builder.fresh(f"d.{v.name}"), v.type) for v in flows}
        collected = list(zip(body.outputs[count:], b.output_gradients[count : len(body.outputs)], strict=True))
        parts = [(v, g, Value(self.builder.fresh(f"d.{v.name}"), v.type)) for v, g in collected if g is not None]
        seeds = self.seeds(
            [*zip(body.outputs, (held.get(v) for v in carried), strict=False), *((v, p) for v, _, p in parts)]
        )
        sources = [v for v in self.operands if v.dtype.is_float]
        result = backward(self.builder, body.nodes, seeds, sources)
        moved = [v for v in elements if v in result]
        summed = [v for v in captured if v in result]
        sums = {v: Value(self.builder.fresh(f"sum.{v.name}"), v.type) for v in summed}
        outputs = [result[v] if v in result else _zeros(self.builder, v) for v in flows]
        outputs += [emit1(self.builder, "add", sums[v], result[v]) for v in summed]
        outputs += [emit1(self.builder, "identity", result[v]) for v in moved]
        nodes = needed(self.builder.nodes, outputs)
        read = {v for n in nodes for v in n.inputs} | set(outputs)
        starts = [v for v in carried if v in read]
        sequences = [v for v in elements if v in read]
        number = body.inputs[0]
        inner = [Value(self.builder.fresh("number"), NUMBER), *held.values(), *sums.values()]
        inner += [*([number] if number in read else ()), *starts, *sequences, *(p for _, _, p in parts)]
        fixed = [v for v in captured if v in read]
        inner += [v for v in fixed if v in body.inputs]
        graph = Graph(
            self.builder.name, tuple(inner), tuple(v for v in fixed if v in body.params), tuple(nodes), tuple(outputs)
        )
        operands = {v: b.x(2 + k) for k, v in enumerate(self.operands)}
        begin = [self.output_gradient(carried.index(v)) for v in flows] + [
            b.zeros(v.shape, b.like(0, v)) for v in summed
        ]
        stacks = [self.numbers()] if number in read else []
        stacks += [*self.stored_starts(starts), *(operands[v] for v in sequences), *(g for _, g, _ in parts)]
        ends = b.emit_all(
            "loop",
            None,
            None,
            *begin,
            *stacks,
            *(operands[v] for v in fixed),
            body=graph,
            carried=len(begin),
            scanned=len(stacks),
            trip=None if stacks else self.extent,
            backward=not attrs.backward,
        )
        results = dict(zip([*flows, *summed], ends, strict=False))
        results |= dict(zip(moved, ends[len(begin) :], strict=True))
        return [None, None, *(results.get(v) for v in self.operands)]

    def seeds(self, pairs: Iterable[tuple[Value, Value | None]]) -> dict[Value, Value]:
        """The gradients of the body's outputs, from pairs (output, gradient or None); a value that is several outputs
        gets their sum."""
        result: dict[Value, Value] = {}
        for value, g in pairs:
            if g is not None:
                result[value] = g if value not in result else emit1(self.builder, "add", result[value], g)
        return result

    def output_gradient(self, k: int) -> Value:
        """The gradient of output `k` of the node; zeros if it has none."""
        g = self.b.output_gradients[k]
        return self.b.zeros(self.b.node.outputs[k].shape, self.b.like(0, self.b.node.outputs[k])) if g is None else g

    def numbers(self) -> Value:
        """The iterations' numbers as a value, in the order of the sequences' elements."""
        start, step = (self.extent - 1, -1) if self.attrs.backward else (0, 1)
        return self.b.emit("range", start=start, step=step, size=self.extent, dtype=NUMBER.dtype)

    def stored_starts(self, starts: Sequence[Value]) -> list[Value]:
        """For each carried value in `starts`, the stack of its values at the beginning of iterations, which the forward
        loop is changed to collect."""
        if not starts:
            return []
        b, body = self.b, self.attrs.body
        names = {v.name for n in body.nodes for v in n.outputs} | {v.name for v in (*body.inputs, *body.params)}
        builder = GraphBuilder(body.name, list(body.inputs), list(body.params), list(body.nodes), names)
        copies = [emit1(builder, "identity", v) for v in starts]
        attrs = replace(self.attrs, body=builder.finish((*body.outputs, *copies)))
        types = [TensorType(v.dtype, dims((self.extent, *v.shape))) for v in starts]
        stacks = [Value(b.builder.fresh(f"starts.{v.name}"), t) for v, t in zip(starts, types, strict=True)]
        own = b.node.outputs
        counted = own[len(own) - attrs.counted :]
        node = replace(b.node, attrs=attrs, outputs=(*own[: len(own) - attrs.counted], *stacks, *counted))
        b.builder.nodes[b.place] = node
        return stacks


def needed(nodes: Sequence[Node], outputs: Iterable[Value]) -> list[Node]:
    """The nodes on which `outputs` depend, in order."""
    wanted: set[Value | None] = set(outputs)
    results: list[Node] = []
    for node in reversed(nodes):
        if any(v in wanted for v in node.outputs):
            results.append(node)
            wanted.update(node.inputs)
    return results[::-1]


def _zeros(builder: GraphBuilder, like: Value) -> Value:
    zero = emit1(builder, "constant", value=np.zeros((), like.dtype.numpy))
    return emit1(builder, "broadcast", zero, shape=like.shape)


@gradient("cond")
def cond(b: Backward) -> Result:
    attrs = b.of(CondAttrs)
    operands = [b.x(k) for k in range(1, len(b.node.inputs))]
    arguments = {k: g for k, g in enumerate(b.output_gradients) if g is not None}
    branches = [_Branch(body, arguments) for body in (attrs.then, attrs.orelse)]
    moved = sorted({k for branch in branches for k in branch.flows})
    if not moved:
        return []
    split = len(attrs.then.inputs)
    then, orelse = (branch.finish(moved) for branch in branches)
    result = b.emit_all(
        "cond", b.x(0), *operands[:split], *arguments.values(), *operands[split:], then=then, orelse=orelse
    )
    flows = dict(zip(moved, result, strict=True))
    return [None, *(flows.get(k) for k in range(len(operands)))]


@dataclass(slots=True)
class _Branch:
    """Builds the gradient of one body of a branch, from the body's inputs and the gradients of its outputs; `known` has
    these by the output's number."""

    body: Graph
    known: Mapping[int, Value]
    builder: GraphBuilder = field(init=False)
    flows: dict[int, Value] = field(init=False)

    def __post_init__(self) -> None:
        body = self.body
        used_names = {v.name for v in (*body.inputs, *body.params)} | {v.name for n in body.nodes for v in n.outputs}
        self.builder = GraphBuilder(
            f"{body.name}_backward", list(body.inputs), list(body.params), list(body.nodes), used_names
        )
        seeds: dict[Value, Value] = {}
        for k, g in self.known.items():
            value, seed = body.outputs[k], self.builder.input(f"d.{body.outputs[k].name}", g.type)
            seeds[value] = emit1(self.builder, "add", seeds[value], seed) if value in seeds else seed
        values = (*body.inputs, *body.params)
        result = backward(self.builder, body.nodes, seeds, [v for v in values if v.dtype.is_float])
        self.flows = {k: result[v] for k, v in enumerate(values) if v in result and v.dtype.is_float}

    def finish(self, moved: Sequence[int]) -> Graph:
        """The graph that returns the gradients of the operands `moved`; zeros for those without."""
        values = (*self.body.inputs, *self.body.params)
        outputs = [
            emit1(self.builder, "identity", self.flows[k]) if k in self.flows else _zeros(self.builder, values[k])
            for k in moved
        ]
        return replace(self.builder.finish(tuple(outputs)), nodes=tuple(needed(self.builder.nodes, outputs)))


__all__ = ["cond", "loop", "needed"]
