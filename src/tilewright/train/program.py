"""A learning step as a graph: losses, gradients, clipping and updates, from the arena before to the arena after.

    (batch..., arena, scalars)  ->  (loss, metrics..., norm of the gradients, new arena)

Parameters are slices of the arena and gradients are concatenated, both without copies where they are whole, so that the
optimiser is one kernel over all parameters of a group that reads and writes memory once. Stages follow each other: the
graph of a later one reads the parameters as the earlier ones have updated them. Buffers that change (running
statistics) and parameters that are averages of others are a second vector beside the arena, which steps read and write
in the same way. If gradients of several batches are accumulated, a third vector has their sum; the graph of a step that
only accumulates ends there:

    (batch..., arena, sum)  ->  (loss, metrics..., norm of the sum, new sum)

If the caller's function reduces gradients before the update (`train/reduced.py`), the backward pass of each stage is a
graph that returns them in buckets, and is cut where each bucket is complete (`train/cut.py`). The update of a stage,
and that of averages after the last stage, are graphs of their own:

    (batch..., arena, buffers[, sum])  ->  (loss, metrics..., first bucket, [new buffers,] ..., last bucket)
    (arena, scalars, gradients)  ->  (norm of the gradients, new parameters, new state...), of the stage alone
    (arena, buffers)  ->  new values of parameters that are averages of others
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import as_expr, as_int
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.ops.gradients.reverse import backward
from tilewright.ops.random import UniformAttrs
from tilewright.ops.registry import emit1
from tilewright.ops.rooms import pruned
from tilewright.support.errors import ModelError
from tilewright.train.arena import Arena
from tilewright.train.cut import sections
from tilewright.train.norms import with_shared_rows
from tilewright.train.optimizers import Vectors
from tilewright.train.plan import Active, Group, Layout, Objective, StagePlan, StepPlan, followed, new_buffers

CLIP_EPSILON = 1e-6
"""The number that `torch.nn.utils.clip_grad_norm_` adds to the norm."""
Bucket = tuple[int, int]
"""The range of a part of the gradients in their vector, in elements: whole parameters."""
STREAMS = 1 << 16
"""The number of random streams reserved for each stage."""


def reached(objective: Objective, names: Sequence[str]) -> list[str]:
    """The parameters in `names` on which the loss depends; others have no gradient, and are not decayed either."""
    graph = objective.graph
    builder = GraphBuilder(graph.name, reserved=_names_of(graph), nodes=list(graph.nodes))
    params = [v for v in graph.params if v.name in set(names)]
    flows = _flows(builder, graph, params)
    members = {v.name for v in params if v in flows}
    return [name for name in names if name in members]


def step_graph(plan: StepPlan, layout: Layout, active: Active, gathers: bool = False) -> Graph:
    """The graph of a step of the stages and averages that are `active`; or with `gathers`, of the step that accumulates
    gradients. Raises UnsupportedError with all operators that have no gradient, ModelError for stages with different
    batches."""
    stages = [stage for stage, there in zip(plan.stages, active, strict=False) if there]
    growing = _Growing(plan, layout, gathers, layout.arena.part if plan.batches > 1 else 0)
    results = [value for k, stage in enumerate(stages) for value in growing.stage(stage, k + 1 == len(stages))]
    if not gathers:
        results.append(growing.new_arena())
    if layout.buffers.names:
        following = active[len(plan.stages) :] if not gathers else (False,) * len(plan.averages)
        results.append(growing.joined([*growing.new_buffers(), *growing.followers(following)], "new_buffers"))
    return with_shared_rows(growing.builder.finish(tuple(results)))


def back_graphs(
    plan: StepPlan, layout: Layout, stage: StagePlan, buckets: Sequence[Bucket], passed: Callable[[Graph], Graph]
) -> tuple[list[Graph], list[Bucket]]:
    """A stage's backward pass in sections, each of which returns a bucket of the gradients; and the buckets in the
    order in which they are ready. The first section also returns the loss, metrics, and new buffers if the stage
    changes any: (loss, metrics..., bucket[, new buffers][, values for later sections]).

    `passed` applies graph passes to the whole before it is cut, so that values for later sections have the layout in
    which these read them.
    """
    growing = _Growing(plan, layout, True, layout.arena.part if plan.batches > 1 else 0)
    results, gradients = growing.back(stage)
    starts = dict(zip(layout.arena.names, layout.arena.starts, strict=True))
    ready = {
        starts[name]: _produced_at(growing.builder.nodes, g) for name, g in zip(stage.names, gradients, strict=True)
    }
    order = sorted(buckets, key=lambda bucket: max(at for start, at in ready.items() if bucket[0] <= start < bucket[1]))
    pieces = [growing.bucket(stage, gradients, begin, end) for begin, end in order]
    fresh = [growing.joined(growing.new_buffers(), "new_buffers")] if stage.objective.changed else []
    first = [*results, pieces[0], *fresh]
    graph = with_shared_rows(growing.builder.finish((*first, *pieces[1:])))
    if len(order) == 1:
        return [graph], order
    graph = passed(graph)
    outputs = graph.outputs  # passes may give other values in the places of these
    return sections(graph, [outputs[: len(first)], *([piece] for piece in outputs[len(first) :])]), order


def _produced_at(nodes: Sequence[Node], value: Value | None) -> int:
    """The index of the node that computes `value`; -1 if none does."""
    return next((k for k, node in enumerate(nodes) if value in node.outputs), -1)


def update_graph(plan: StepPlan, layout: Layout, stage: StagePlan) -> Graph:
    """The graph that updates the parameters of `stage` from their gradients. Inputs: the arena of parameters
    and optimisers' states, the optimisers' scalars, the vector of the gradients. Outputs: the norm of the gradients, a
    vector of the new parameters, and a vector for each state."""
    begin, end = layout.arena.span(stage.names)
    growing = _Growing(plan, layout, False, end - begin)
    assert growing.gathered is not None and growing.scalars is not None
    norm = growing.moved(stage, growing.gathered)
    vectors = [growing.joined(part, "new_vector") for part in growing.new_vectors(stage.groups)]
    graph = growing.builder.finish((norm, *vectors))
    return pruned(replace(graph, inputs=(growing.memory, growing.scalars, growing.gathered)))


def follow_graph(plan: StepPlan, layout: Layout, active: Active) -> Graph:
    """The graph that computes all parameters which are averages of others, from the arena after the stages and the
    buffers before them. `active` says of each average whether it takes part."""
    growing = _Growing(plan, layout, False, 0)
    assert growing.statistics is not None
    graph = growing.builder.finish((growing.joined(growing.followers(active), "followers"),))
    return pruned(replace(graph, inputs=(growing.memory, growing.statistics)))


class _Growing:
    """The graph of a learning step under construction, to which stages are added.

    held     the current values of parameters and buffers by name, after the stages so far
    vectors  for each group the current vectors of its parameters and of its optimiser's states
    changed  buffers by name that stages have changed

    `gathered` is the size of the vector of gradients that it reads; 0: none.
    """

    def __init__(self, plan: StepPlan, layout: Layout, gathers: bool, gathered: int) -> None:
        self.plan, self.layout, self.gathers = plan, layout, gathers
        graphs = [stage.objective.graph for stage in plan.stages]
        keys = [_inputs(stage.objective)[1] for stage in plan.stages]
        self.batch = _inputs(plan.stages[0].objective)[0]
        self.key = next((key for key in keys if key is not None), None)
        self.held = {v.name: v for graph in graphs for v in graph.params}
        placed = {*layout.arena.names, *layout.buffers.names}
        others = [v for v in self.held.values() if v.name not in placed]
        inputs = graphs[0].inputs if len(graphs) == 1 else (*self.batch, *(() if self.key is None else (self.key,)))
        used_names = {name for graph in graphs for name in _names_of(graph)}
        assumed = list(dict.fromkeys(a for graph in graphs for a in graph.assumptions))
        self.builder = GraphBuilder(graphs[0].name, list(inputs), others, [], used_names, assumptions=assumed)
        self.dtype = t = layout.arena.dtype
        self.memory = _vector(self.builder, "arena", layout.arena.size, t)
        self.scalars = None if gathers else _vector(self.builder, "scalars", len(plan.scalars(1, plan.rates)), t)
        self.gathered = _vector(self.builder, "gathered", gathered, t) if gathered else None
        buffers = layout.buffers
        self.statistics = _vector(self.builder, "buffers", buffers.size, t) if buffers.names else None
        _place(self.builder, layout.arena, self.memory, self.held)
        if self.statistics is not None:
            _place(self.builder, buffers, self.statistics, self.held)
        self.vectors: dict[int, tuple[Value, ...]] = {}
        self.changed: dict[str, Value] = {}

    def stage(self, stage: StagePlan, last: bool) -> list[Value]:
        """Add a stage, which is the `last` one or not. Returns its loss, its metrics and the norm of its gradients;
        followed by the new sum if the step accumulates gradients."""
        builder, whole = self.builder, self.layout.arena
        results, gradients = self.back(stage)
        arena = whole.part_of(stage.names)
        g = _joined(builder, arena, gradients, "gradients")
        norm = _norm(builder, g)
        results.append(norm)
        if self.gathers:
            return [*results, g]
        self._move(stage, g if stage.clip is None else _clipped(builder, g, norm, stage.clip))
        if not last:
            self._hold(stage, arena)
        return results

    def back(self, stage: StagePlan) -> tuple[list[Value], list[Value | None]]:
        """Add a stage's loss and backward pass. Returns the loss with its metrics, and the gradients in the arena's
        order, with previously accumulated ones added."""
        graph = self._instance(stage)
        self.builder.nodes += graph.nodes
        params = [self.held[name] for name in stage.names]
        flows = _flows(self.builder, graph, params)
        fresh = new_buffers(replace(stage.objective, graph=graph))
        self.changed |= dict(zip(stage.objective.changed, fresh, strict=True))
        gradients = [self._summed(v.name, flows.get(v)) for v in params]
        results = graph.outputs[: len(graph.outputs) - len(fresh)]
        return [_cast(self.builder, v, self.dtype) for v in results], gradients

    def bucket(self, stage: StagePlan, gradients: Sequence[Value | None], begin: int, end: int) -> Value:
        """The gradients of some parameters of `stage` as one vector, with padding as in the vector of all parameters
        (the arena): of those whose first element has an index from `begin` up to `end`, exclusive, there. `gradients`
        has one for each parameter of the stage, in their order; None is a gradient of zeros."""
        arena = self.layout.arena
        result = dict(zip(stage.names, gradients, strict=True))
        inside = [k for k, start in enumerate(arena.starts) if begin <= start < end]
        own = arena.part_of([arena.names[k] for k in inside])
        return _joined(self.builder, own, [result[name] for name in own.names], "gradients")

    def _summed(self, name: str, g: Value | None) -> Value | None:
        """The gradient `g` of parameter `name` plus the accumulated one. The kernel of the gradient adds it, so that
        the new gradients alone are never stored."""
        if self.gathered is None or g is None:
            return g
        g = _cast(self.builder, g, self.dtype)
        arena, number = self.layout.arena, _number(self.builder, 1 / self.plan.batches, self.dtype)
        at = arena.names.index(name)
        sums = _part(self.builder, self.gathered, arena.starts[at], arena.sizes[at])
        before = emit1(self.builder, "reshape", sums, shape=g.shape, name="before")
        return emit1(self.builder, "add", before, emit1(self.builder, "mul", g, number))

    def moved(self, stage: StagePlan, g: Value) -> Value:
        """Update a stage's parameters by its gradients. Returns the norm of these."""
        norm = _norm(self.builder, g)
        self._move(stage, g if stage.clip is None else _clipped(self.builder, g, norm, stage.clip))
        return norm

    def _instance(self, stage: StagePlan) -> Graph:
        """The stage's graph with its parameters as earlier stages have left them, the step's batch and key, and names
        that differ from those of other stages. Each stage draws other random numbers."""
        index = next(k for k, other in enumerate(self.plan.stages) if other is stage)
        graph = stage.objective.graph
        batch, key = _inputs(stage.objective)
        if [v.type for v in batch] != [v.type for v in self.batch]:
            raise ModelError("stages have one batch", expected=self.batch, got=batch)
        names: dict[Value, Value] = {v: self.held[v.name] for v in graph.params}
        names |= dict(zip(batch, self.batch, strict=True))
        if key is not None and self.key is not None:
            names[key] = self.key
        if index:
            fresh = self.builder.fresh
            names |= {v: Value(fresh(v.name), v.type) for n in graph.nodes for v in n.outputs}
        nodes = tuple(_streaming(_renamed(n, names), index * STREAMS) for n in graph.nodes)
        return replace(graph, nodes=nodes, outputs=tuple(names.get(v, v) for v in graph.outputs))

    def _move(self, stage: StagePlan, g: Value) -> None:
        """Emit the updates of a stage's parameters by the gradients `g`, group by group, each by its optimiser."""
        assert self.scalars is not None
        start = 0
        for group in stage.groups:
            size = self._size(group)
            if not size:
                continue
            index, first = self._place_of(group)
            old = self._vectors(group)
            count = len(group.optimizer.scalars(1, group.optimizer.lr))
            scalars = [_part(self.builder, self.scalars, first + k, 1) for k in range(count)]
            flow = _part(self.builder, g, start, size)
            new, *state = group.optimizer.update(Vectors(self.builder, self.dtype), old[0], flow, old[1:], scalars)
            self.vectors[index] = (self._rounded(group, new), *state)
            start += size

    def _rounded(self, group: Group, vector: Value) -> Value:
        """A group's new parameters, `vector`, rounded to their own types."""
        arena = self.layout.arena.part_of(group.names)
        pieces, start = [], 0
        for t, several in itertools.groupby(zip(arena.types, arena.room, strict=True), key=lambda pair: pair[0]):
            size = sum(room for _, room in several)
            part = vector if t is self.dtype else _cast(self.builder, _part(self.builder, vector, start, size), t)
            pieces.append((part, start, size))
            start += size
        if all(part is vector for part, _, _ in pieces):
            return vector
        parts = [
            _part(self.builder, vector, *place) if part is vector else _cast(self.builder, part, self.dtype)
            for part, *place in pieces
        ]
        return self.joined(parts, "rounded")

    def _hold(self, stage: StagePlan, arena: Arena) -> None:
        """Store the parameters that a stage has updated and the buffers that it has changed in `held`, where later
        stages read them."""
        for group in stage.groups:
            start = 0
            for name in group.names:
                at = arena.names.index(name)
                flat = _part(self.builder, self._vectors(group)[0], start, arena.sizes[at])
                flat = _cast(self.builder, flat, self.held[name].dtype)
                self.held[name] = emit1(self.builder, "reshape", flat, shape=self.held[name].shape, name=name)
                start += arena.room[at]
        self.held |= {name: self.changed[name] for name in stage.objective.changed}

    def new_arena(self) -> Value:
        return self.joined([vector for part in self.new_vectors(self.plan.groups) for vector in part], "new_arena")

    def new_vectors(self, groups: Sequence[Group]) -> list[list[Value]]:
        """For the parameters, and then for each state of the optimiser, the current vectors of all groups."""
        vectors = [self._vectors(group) for group in groups if self._size(group)]
        return [[vector[k] for vector in vectors] for k in range(1 + len(self.layout.arena.state))]

    def new_buffers(self) -> list[Value]:
        """The current values of the buffers that objectives change."""
        own = self.layout.changed
        assert self.statistics is not None
        if own.names and len(self.changed) == len(own.names):
            return [_joined(self.builder, own, list(self.changed.values()), "new_buffers")]
        pieces = []
        for name, start, room in zip(own.names, own.starts, own.room, strict=True):
            if name in self.changed:
                pieces.append(_joined(self.builder, own.part_of([name]), [self.changed[name]], name))
            else:
                pieces.append(_part(self.builder, self.statistics, start, room))
        return pieces

    def followers(self, active: Active) -> list[Value]:
        """The parameters that are averages of others. `active` says of each average whether it takes part."""
        assert self.statistics is not None
        pieces = []
        start = self.layout.changed.part
        for average, moves in zip(self.plan.averages, active, strict=True):
            for vector, at, size in self._runs([source for _, source in followed(average, self.plan.names)]):
                piece = _part(self.builder, self.statistics, start, size)
                if moves:
                    new = _part(self.builder, vector, at, size)
                    piece = (
                        new
                        if average.tau == 1
                        else Vectors(self.builder, self.dtype).mixed(piece, new, 1 - average.tau)
                    )
                pieces.append(piece)
                start += size
        return pieces

    def joined(self, pieces: Sequence[Value], name: str) -> Value:
        """The vectors `pieces` concatenated to one, called `name`."""
        return emit1(self.builder, "concat", *pieces, axis=0, name=name) if len(pieces) > 1 else pieces[0]

    def _runs(self, names: Sequence[str]) -> list[tuple[Value, int, int]]:
        """Where the parameters `names` lie in the vectors of their groups, as (vector, begin, size), with adjacent ones
        merged."""
        results: list[tuple[Value, int, int]] = []
        arena = self.layout.arena
        room = dict(zip(arena.names, arena.room, strict=True))
        for group in self.plan.groups:
            start = 0
            for name in group.names:
                if name in names:
                    vector = self._vectors(group)[0]
                    if results and results[-1][0] == vector and sum(results[-1][1:]) == start:
                        start_of, size = results.pop()[1:]
                        results.append((vector, start_of, size + room[name]))
                    else:
                        results.append((vector, start, room[name]))
                start += room[name]
        return results

    def _vectors(self, group: Group) -> tuple[Value, ...]:
        index, _ = self._place_of(group)
        if index not in self.vectors:
            arena = self.layout.arena
            start, size = sum(self._size(g) for g in self.plan.groups[:index]), self._size(group)
            parts = range(1 + len(arena.state))
            self.vectors[index] = tuple(_part(self.builder, self.memory, k * arena.part + start, size) for k in parts)
        return self.vectors[index]

    def _place_of(self, group: Group) -> tuple[int, int]:
        """(the number of the group, the position of its first scalar among those of all groups)."""
        groups = self.plan.groups
        index = next(k for k, other in enumerate(groups) if other is group)
        return index, sum(len(g.optimizer.scalars(1, g.optimizer.lr)) for g in groups[:index])

    def _size(self, group: Group) -> int:
        begin, end = self.layout.arena.span(group.names)
        return end - begin


def _inputs(objective: Objective) -> tuple[list[Value], Value | None]:
    """The inputs of an objective's graph: its batch, and the key of random numbers."""
    batch = [v for v in objective.graph.inputs if v.name != objective.key]
    return batch, next((v for v in objective.graph.inputs if v.name == objective.key), None)


def _renamed(node: Node, names: Mapping[Value, Value]) -> Node:
    inputs = tuple(None if v is None else names.get(v, v) for v in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names.get(v, v) for v in node.outputs))


def _streaming(node: Node, first: int) -> Node:
    """`node`, with its random stream moved by `first`, so that stages draw different numbers."""
    if not isinstance(node.attrs, UniformAttrs) or not first:
        return node
    return replace(node, attrs=replace(node.attrs, stream=first + node.attrs.stream))


def _names_of(graph: Graph) -> set[str]:
    names = {v.name for v in (*graph.inputs, *graph.params)}
    return names | {v.name for n in graph.nodes for v in n.outputs}


def _flows(builder: GraphBuilder, graph: Graph, params: Sequence[Value]) -> dict[Value, Value]:
    """The gradients of `graph`'s loss, its first output, by `params`."""
    loss = graph.outputs[0]
    one = _number(builder, 1, loss.dtype)
    seed = emit1(builder, "broadcast", one, shape=loss.shape, name="d.loss") if loss.type.rank else one
    return backward(builder, graph.nodes, {loss: seed}, params)


def _vector(builder: GraphBuilder, name: str, size: int, t: DType) -> Value:
    return builder.input(name, TensorType(t, (as_expr(size),)))


def _number(builder: GraphBuilder, value: float, t: DType) -> Value:
    return emit1(builder, "constant", value=np.array(value, t.numpy), name="number")


def _cast(builder: GraphBuilder, x: Value, t: DType) -> Value:
    return x if x.dtype is t else emit1(builder, "cast", x, dtype=t, name=x.name)


def _place(builder: GraphBuilder, arena: Arena, memory: Value, params: Mapping[str, Value]) -> None:
    """Emit each parameter in `params`, under its own name, as a reshaped slice of the arena `memory`."""
    for name, start, size in zip(arena.names, arena.starts, arena.sizes, strict=True):
        if name in params:
            flat = _cast(builder, _part(builder, memory, start, size), params[name].dtype)
            builder.reserved.discard(name)
            emit1(builder, "reshape", flat, shape=params[name].shape, name=name)


def _part(builder: GraphBuilder, vector: Value, start: int, size: int) -> Value:
    if as_int(vector.type.size) == size:
        return vector
    return emit1(
        builder, "slice", vector, begin=(as_expr(start),), size=(as_expr(size),), step=(1,), name=f"{vector.name}_part"
    )


def _joined(builder: GraphBuilder, arena: Arena, values: Sequence[Value | None], name: str) -> Value:
    """`values` concatenated in the arena's order to one vector, called `name`, with zeros for values that are None and
    for padding."""
    pieces: list[Value] = []
    for value, size, room in zip(values, arena.sizes, arena.room, strict=True):
        rest = room
        if value is not None:
            flat = emit1(builder, "reshape", value, shape=(as_expr(size),), name=name)
            pieces.append(_cast(builder, flat, arena.dtype))
            rest -= size
        if rest:
            zeros = (as_expr(rest),)
            pieces.append(emit1(builder, "broadcast", _number(builder, 0, arena.dtype), shape=zeros, name="zeros"))
    return pieces[0] if len(pieces) == 1 else emit1(builder, "concat", *pieces, axis=0, name=name)


def _norm(builder: GraphBuilder, g: Value) -> Value:
    squares = emit1(builder, "reduce_sum", emit1(builder, "mul", g, g), axes=(0,), keepdims=True)
    return emit1(builder, "sqrt", squares, name="gradient_norm")


def _clipped(builder: GraphBuilder, g: Value, norm: Value, most: float) -> Value:
    most_, epsilon, one = (_number(builder, number, g.dtype) for number in (most, CLIP_EPSILON, 1.0))
    share = emit1(builder, "div", most_, emit1(builder, "add", norm, epsilon))
    return emit1(builder, "mul", g, emit1(builder, "min", share, one))
