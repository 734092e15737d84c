"""Training what is left of a model to follow the original (distillation: Hinton et al., 2015, arXiv 1503.02531)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import f32
from tilewright.ir.graph import Graph, GraphBuilder, Value
from tilewright.quantization.samples import Feed
from tilewright.support.errors import CallError
from tilewright.support.progress import expect, tell
from tilewright.train.entry import compile_step
from tilewright.train.optimizers import Adam
from tilewright.transform.regions.captures import names_of

SMALLEST = 1e-12
"""Added to what an output's error is divided by."""


def follow(
    graph: Graph,
    weights: Mapping[str, Any],
    masks: Mapping[str, Any],
    batches: Sequence[tuple[Feed, Mapping[str, Any]]],
    names: Sequence[str],
    epochs: int,
    rate: float,
    threads: int,
) -> dict[str, Any]:
    """The weights after training: the outputs come closer to those of the original, by the mean square of the
    difference relative to that of each output.

    Args:
        graph: of static shapes, those of the batches.
        masks: 1 or 0 for each element of some weights, by the weight's name; those with 0 stay 0.
        batches: inputs by name and the original's outputs by name.
        names: of the graph's inputs, in order.

    Raises UnsupportedError where an operator has no gradient.
    """
    taught = [v for v in graph.outputs if v.dtype is f32]
    if not taught:
        raise CallError("a model without outputs of f32 has nothing to follow", where=graph.name)
    trained = [p.name for p in graph.params if p.dtype is f32 and p.type.rank > 1 and not p.name.endswith(".mask")]
    objective, arrays = _objective(graph, masks, taught)
    keys = list(batches[0][1])
    outputs = [keys[graph.outputs.index(v)] for v in taught]

    def batch(feed: Feed, targets: Mapping[str, Any]) -> list[Any]:
        return [*(feed[name] for name in names), *(targets[name] for name in outputs)]

    whole = {**weights, **arrays}
    step = compile_step(
        (objective, {p.name: whole[p.name] for p in objective.params}),
        None,
        Adam(rate),
        batch(*batches[0]),
        trained=trained,
        threads=threads,
    )
    expect(epochs)
    for epoch in range(epochs):
        for feed, targets in batches:
            loss = step(*batch(feed, targets))["loss"]
        tell(f"epoch {epoch + 1}: loss {loss:.3g}")
    moved = {name: np.array(step.parameters[name]) for name in trained}
    return {**weights, **{name: v * masks[name] if name in masks else v for name, v in moved.items()}}


def _objective(graph: Graph, masks: Mapping[str, Any], taught: Sequence[Value]) -> tuple[Graph, dict[str, Any]]:
    """The loss as a graph, and the arrays of the masks by the names of their parameters."""
    builder = GraphBuilder(graph.name, list(graph.inputs), list(graph.params), reserved=names_of(graph))
    masked: dict[Value, Value] = {}
    arrays: dict[str, Any] = {}
    for p in graph.params:
        if p.name in masks:
            mask = builder.param(f"{p.name}.mask", p.type)
            arrays[mask.name] = masks[p.name]
            masked[p] = ops.emit1(builder, "mul", p, mask)
    for node in graph.nodes:
        inputs = tuple(None if v is None else masked.get(v, v) for v in node.inputs)
        builder.nodes.append(replace(node, inputs=inputs))
    losses = []
    for value in taught:
        target = builder.input(f"{value.name}.target", value.type)
        difference = ops.emit1(builder, "sub", value, target)
        axes = tuple(range(value.type.rank))
        error, size = (
            ops.emit1(builder, "reduce_mean", ops.emit1(builder, "mul", v, v), axes=axes, keepdims=False)
            for v in (difference, target)
        )
        least = ops.emit1(builder, "constant", value=ConstantArray(np.float32(SMALLEST)))
        losses.append(ops.emit1(builder, "div", error, ops.emit1(builder, "add", size, least)))
    total = losses[0]
    for loss in losses[1:]:
        total = ops.emit1(builder, "add", total, loss)
    return replace(builder.finish((total,)), assumptions=graph.assumptions), arrays
