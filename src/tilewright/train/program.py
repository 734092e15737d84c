"""A learning step as a graph: loss, gradients, clipping and update, from the arena before to the arena after.

    (batch..., arena, scalars)  ->  (loss, metrics..., norm of the gradients, new arena)

Parameters are slices of the arena and gradients are concatenated, both without copies where they are whole, so that the
optimiser is one kernel over all parameters of a group that reads and writes memory once. Buffers that change (running
statistics) are a second vector beside the arena, which steps read and write in the same way. Where gradients of several
batches are gathered, a third vector has their sum; the graph that gathers ends there:

    (batch..., arena, sum)  ->  (loss, metrics..., norm of the sum, new sum)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr, as_int
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ops.gradients.reverse import backward
from tilewright.ops.registry import emit1
from tilewright.support.errors import ModelError
from tilewright.train.arena import Arena
from tilewright.train.optimizers import Optimizer, Vectors

CLIP_EPSILON = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to the norm."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What is to become smaller, as a graph.

    graph     from the batch (and a key of random numbers) to the loss, metrics, and new values of buffers
    weights   the values of its parameters by name
    metrics   what the loss and the metrics are called
    movable   the parameters that may be trained
    changed   the buffers whose new values are the graph's last outputs
    counters  buffers of integers that grow by one at each step, with their values; the graph knows nothing of them
    key       the input that random numbers depend on
    others    what else the model's own dictionary of weights has
    tied      later names of parameters in that dictionary, each with the first
    """

    graph: Graph
    weights: Mapping[str, Any]
    metrics: tuple[str, ...]
    movable: tuple[str, ...]
    changed: tuple[str, ...] = ()
    counters: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that move together."""

    optimizer: Optimizer
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a step does beside computing the loss.

    groups   the parameters that move, and how
    clip     the largest norm of all gradients together; None: any
    batches  how many batches' gradients make one update
    """

    groups: tuple[Group, ...]
    clip: float | None = None
    batches: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for group in self.groups for name in group.names)

    def scalars(self, count: int, rates: Sequence[float]) -> tuple[float, ...]:
        """The numbers that update `count`, which begins with 1, gives its kernels."""
        if len(self.groups) == 1:  # at once: this is done before every step
            return self.groups[0].optimizer.scalars(count, rates[0])
        found = (g.optimizer.scalars(count, lr) for g, lr in zip(self.groups, rates, strict=True))
        return tuple(number for numbers in found for number in numbers)

    @property
    def rates(self) -> list[float]:
        return [group.optimizer.lr for group in self.groups]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where parameters and buffers stand in a step's vectors."""

    arena: Arena
    buffers: Arena


def layout_of(objective: Objective, plan: StepPlan) -> Layout:
    """Raises ModelError for a loss that is not one number, and for what is trained or changes and is not f32."""
    graph = objective.graph
    loss = graph.outputs[0]
    if as_int(loss.type.size) != 1 or loss.dtype is not f32:
        raise ModelError("the loss must be one number", expected="f32", got=loss.type)
    types = {v.name: v.type for v in graph.params}
    fresh = graph.outputs[len(graph.outputs) - len(objective.changed) :]
    changed: dict[str, TensorType] = {name: v.type for name, v in zip(objective.changed, fresh, strict=True)}
    for name in plan.names:
        if types[name].dtype is not f32:
            raise ModelError("parameters that are trained must be f32", where=name, got=types[name])
    for name, held in changed.items():
        if held.dtype is not f32:
            raise ModelError("buffers that change must be f32 or count steps", where=name, got=held)
    states = {group.optimizer.state for group in plan.groups}
    if len(states) > 1:
        kinds = ", ".join(type(group.optimizer).__name__ for group in plan.groups)
        raise ModelError("optimisers of one step keep the same state", got=kinds)
    state = next(iter(states), ())
    arena = Arena(plan.names, tuple(_sizes(types[name]) for name in plan.names), state)
    return Layout(arena, Arena(objective.changed, tuple(map(_sizes, changed.values()))))


def _sizes(type: TensorType) -> tuple[int, ...]:
    return tuple(as_int(d) or 0 for d in type.shape)


def reached(objective: Objective, names: Sequence[str]) -> list[str]:
    """Those of the parameters that the loss depends on: others have no gradient, and are not decayed either."""
    graph = objective.graph
    builder = GraphBuilder(graph.name, taken=_taken(graph), nodes=list(graph.nodes))
    params = [v for v in graph.params if v.name in set(names)]
    flows = _flows(builder, graph, params)
    found = {v.name for v in params if v in flows}
    return [name for name in names if name in found]


def step_graph(objective: Objective, plan: StepPlan, layout: Layout, gathers: bool = False) -> Graph:
    """The step that moves parameters against the gradient of the loss; or the one that `gathers` gradients.

    Raises UnsupportedError with all operators that have no gradient.
    """
    graph, arena, buffers = objective.graph, layout.arena, layout.buffers
    held = {v.name: v for v in graph.params}
    params = [held[name] for name in plan.names]
    placed = {*plan.names, *objective.changed}
    others = [v for v in graph.params if v.name not in placed]
    builder = GraphBuilder(graph.name, list(graph.inputs), others, [], _taken(graph))
    memory = _vector(builder, "arena", arena.size)
    scalars = None if gathers else _vector(builder, "scalars", len(plan.scalars(1, plan.rates)))
    gathered = _vector(builder, "gathered", arena.part) if plan.batches > 1 else None
    statistics = _vector(builder, "buffers", buffers.size) if buffers.names else None
    _place(builder, arena, memory, held)
    if statistics is not None:
        _place(builder, buffers, statistics, held)
    builder.nodes += graph.nodes
    flows = _flows(builder, graph, params)
    g = _joined(builder, arena, [flows.get(v) for v in params], "gradients")
    if gathered is not None:
        g = emit1(builder, "add", gathered, emit1(builder, "mul", g, _number(builder, 1 / plan.batches)))
    squares = emit1(builder, "reduce_sum", emit1(builder, "mul", g, g), axes=(0,), keepdims=True)
    norm = emit1(builder, "sqrt", squares, name="gradient_norm")
    if scalars is not None:
        g = g if plan.clip is None else _clipped(builder, g, norm, plan.clip)
        g = _moved(builder, plan, arena, memory, g, scalars)
    count = len(graph.outputs) - len(objective.changed)
    results = [*graph.outputs[:count], norm, g]
    if statistics is not None:
        results.append(_joined(builder, buffers, graph.outputs[count:], "new_buffers"))
    return builder.finish(tuple(results))


def _taken(graph: Graph) -> set[str]:
    names = {v.name for v in (*graph.inputs, *graph.params)}
    return names | {v.name for n in graph.nodes for v in n.outputs}


def _flows(builder: GraphBuilder, graph: Graph, params: Sequence[Value]) -> dict[Value, Value]:
    """The gradients of the loss."""
    loss = graph.outputs[0]
    one = _number(builder, 1)
    seed = emit1(builder, "broadcast", one, shape=loss.shape, name="d.loss") if loss.type.rank else one
    return backward(builder, graph.nodes, {loss: seed}, params)


def _moved(builder: GraphBuilder, plan: StepPlan, arena: Arena, memory: Value, g: Value, numbers: Value) -> Value:
    """The new arena: each group moved by its optimiser."""
    parts: list[list[Value]] = [[] for _ in range(1 + len(arena.state))]
    start, first = 0, 0
    for group in plan.groups:
        size = sum(arena.room[arena.names.index(name)] for name in group.names)
        if not size:
            continue
        old = [_part(builder, memory, k * arena.part + start, size) for k in range(len(parts))]
        count = len(group.optimizer.scalars(1, group.optimizer.lr))
        scalars = [_part(builder, numbers, first + k, 1) for k in range(count)]
        flow = _part(builder, g, start, size)
        for part, new in zip(
            parts, group.optimizer.update(Vectors(builder), old[0], flow, old[1:], scalars), strict=True
        ):
            part.append(new)
        start, first = start + size, first + count
    pieces = [piece for part in parts for piece in part]
    return emit1(builder, "concat", *pieces, axis=0, name="new_arena") if len(pieces) > 1 else pieces[0]


def _vector(builder: GraphBuilder, name: str, size: int) -> Value:
    return builder.input(name, TensorType(f32, (as_expr(size),)))


def _number(builder: GraphBuilder, value: float) -> Value:
    return emit1(builder, "constant", value=np.float32(value), name="number")


def _place(builder: GraphBuilder, arena: Arena, memory: Value, params: Mapping[str, Value]) -> None:
    """Each parameter that the graph reads, by its own name, as its part of the arena."""
    for name, start, size in zip(arena.names, arena.starts, arena.sizes, strict=True):
        if name in params:
            flat = _part(builder, memory, start, size)
            builder.taken.discard(name)
            emit1(builder, "reshape", flat, shape=params[name].shape, name=name)


def _part(builder: GraphBuilder, vector: Value, start: int, size: int) -> Value:
    if as_int(vector.type.size) == size:
        return vector
    return emit1(
        builder, "slice", vector, begin=(as_expr(start),), size=(as_expr(size),), step=(1,), name=f"{vector.name}_part"
    )


def _joined(builder: GraphBuilder, arena: Arena, values: Sequence[Value | None], name: str) -> Value:
    """Values in the arena's order; zeros where there is none and in what is left free."""
    pieces: list[Value] = []
    for value, size, room in zip(values, arena.sizes, arena.room, strict=True):
        rest = room
        if value is not None:
            pieces.append(emit1(builder, "reshape", value, shape=(as_expr(size),), name=name))
            rest -= size
        if rest:
            zeros = (as_expr(rest),)
            pieces.append(emit1(builder, "broadcast", _number(builder, 0), shape=zeros, name="zeros"))
    return pieces[0] if len(pieces) == 1 else emit1(builder, "concat", *pieces, axis=0, name=name)


def _clipped(builder: GraphBuilder, g: Value, norm: Value, most: float) -> Value:
    share = emit1(builder, "div", _number(builder, most), emit1(builder, "add", norm, _number(builder, CLIP_EPSILON)))
    return emit1(builder, "mul", g, emit1(builder, "min", share, _number(builder, 1.0)))
