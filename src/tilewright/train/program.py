"""A learning step as a graph: loss, gradients, clipping and update, from the arena before to the arena after.

    (batch..., arena, scalars)  ->  (loss, metrics..., norm of the gradients, new arena)

Parameters are slices of the arena and gradients are concatenated, both without copies where they are whole, so that the
optimiser is one kernel over all parameters that reads and writes memory once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr, as_int
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ops.registry import emit1
from tilewright.support.errors import ModelError
from tilewright.train.arena import Arena
from tilewright.train.gradient import backward
from tilewright.train.optimizers import Optimizer, Vectors

CLIP_EPSILON = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to the norm."""


@dataclass(frozen=True, slots=True)
class StepGraph:
    """The graph of a step, and where its parameters stand."""

    graph: Graph
    arena: Arena


def step_graph(graph: Graph, trained: Sequence[str], optimizer: Optimizer, clip: float | None = None) -> StepGraph:
    """The step that moves parameters against the gradient of the graph's first output, the loss.

    Args:
        graph: from the batch to the loss and, behind it, metrics.
        trained: names of the parameters that move.
        optimizer: how they move.
        clip: the largest norm of all gradients together; None: any.

    Raises ModelError for a loss that is not one number, and parameters that are not f32.
    """
    params = [v for v in graph.params if v.name in trained]
    loss = graph.outputs[0]
    if as_int(loss.type.size) != 1 or loss.dtype is not f32:
        raise ModelError("the loss must be one number", expected="f32", got=loss.type)
    for value in params:
        if value.dtype is not f32:
            raise ModelError("parameters that are trained must be f32", where=value.name, got=value.type)
    shapes = tuple(tuple(as_int(d) or 0 for d in v.shape) for v in params)
    arena = Arena(tuple(v.name for v in params), shapes, optimizer.state)
    taken = {v.name for v in (*graph.inputs, *graph.params)} | {v.name for n in graph.nodes for v in n.outputs}
    builder = GraphBuilder(graph.name, list(graph.inputs), [v for v in graph.params if v not in params], [], taken)
    memory = builder.input("arena", TensorType(f32, (as_expr(arena.size),)))
    numbers = builder.input("scalars", TensorType(f32, (as_expr(len(optimizer.scalars(1, optimizer.lr))),)))
    _place(builder, arena, memory, params)
    builder.nodes += graph.nodes
    one = emit1(builder, "constant", value=np.ones((), np.float32), name="d.loss")
    seed = emit1(builder, "broadcast", one, shape=loss.shape, name="d.loss") if loss.type.rank else one
    flows = backward(builder, graph.nodes, {loss: seed}, params)
    g = _joined(builder, arena, [flows.get(v) for v in params])
    norm = emit1(
        builder,
        "sqrt",
        emit1(builder, "reduce_sum", emit1(builder, "mul", g, g), axes=(0,), keepdims=True),
        name="gradient_norm",
    )
    g = g if clip is None else _clipped(builder, g, norm, clip)
    parts = [_part(builder, memory, k * arena.part, arena.part) for k in range(1 + len(arena.state))]
    scalars = [_part(builder, numbers, k, 1) for k in range(as_int(numbers.shape[0]) or 0)]
    moved = optimizer.update(Vectors(builder), parts[0], g, parts[1:], scalars)
    after = emit1(builder, "concat", *moved, axis=0, name="new_arena") if len(moved) > 1 else moved[0]
    return StepGraph(builder.finish((*graph.outputs, norm, after)), arena)


def _place(builder: GraphBuilder, arena: Arena, memory: Value, params: Sequence[Value]) -> None:
    """Each parameter, by its own name, as its part of the arena."""
    for value, start, size in zip(params, arena.starts, arena.sizes, strict=True):
        flat = _part(builder, memory, start, size)
        builder.taken.discard(value.name)
        emit1(builder, "reshape", flat, shape=value.shape, name=value.name)


def _part(builder: GraphBuilder, vector: Value, start: int, size: int) -> Value:
    return emit1(
        builder, "slice", vector, begin=(as_expr(start),), size=(as_expr(size),), step=(1,), name=f"{vector.name}_part"
    )


def _joined(builder: GraphBuilder, arena: Arena, flows: Sequence[Value | None]) -> Value:
    """The gradients in the parameters' order; zeros where there is none and in what is left free."""
    pieces: list[Value] = []
    for flow, size, room in zip(flows, arena.sizes, arena.room, strict=True):
        rest = room
        if flow is not None:
            pieces.append(emit1(builder, "reshape", flow, shape=(as_expr(size),), name="gradient"))
            rest -= size
        if rest:
            zero = emit1(builder, "constant", value=np.zeros((), np.float32), name="zero")
            pieces.append(emit1(builder, "broadcast", zero, shape=(as_expr(rest),), name="zeros"))
    return pieces[0] if len(pieces) == 1 else emit1(builder, "concat", *pieces, axis=0, name="gradients")


def _clipped(builder: GraphBuilder, g: Value, norm: Value, most: float) -> Value:
    def number(value: float) -> Value:
        return emit1(builder, "constant", value=np.float32(value), name="clip")

    share = emit1(builder, "div", number(most), emit1(builder, "add", norm, number(CLIP_EPSILON)))
    return emit1(builder, "mul", g, emit1(builder, "min", share, number(1.0)))
