"""A learning step that computes next to nothing, so that what is left is its call."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.measure.contender import Prepared
from tilewright.ops.registry import emit1
from tilewright.train.step import Step

INPUTS = 5
"""The number of inputs of a PPO update."""
CALLS = 100
"""Calls at once, of which one is too short for a clock."""


def own() -> Prepared:
    step, batch = _step()

    def call() -> None:
        for _ in range(CALLS):
            step(*batch)

    return Prepared(call, lambda: dict(step.state_dict()), {})


def native() -> Prepared:
    """The call that the step makes, with the vectors of one turn."""
    step, batch = _step()
    inputs = (*batch, *(_empty(spec) for spec in step.model.inputs[INPUTS:]))
    outputs = tuple(_empty(spec) for spec in step.model.outputs)

    def call() -> None:
        for _ in range(CALLS):
            step.model(*inputs, out=outputs)

    return Prepared(call, None, {})


def _empty(spec: Any) -> np.ndarray[Any, Any]:
    return np.zeros([int(d) for d in spec.shape], np.float32)


def _step() -> tuple[Step, list[Any]]:
    zeros = np.zeros(1, np.float32)
    step = tw.compile_step((_sum(), {"w": zeros}), optimizer=tw.train.Adam(1e-3, eps=1e-5), clip=0.5)
    return step, [zeros] * INPUTS


def _sum() -> Graph:
    """(w + x0 + ... + x4) ^ 2"""
    builder = GraphBuilder("sum")
    one = TensorType(f32, (as_expr(1),))
    inputs = [builder.input(f"x{k}", one) for k in range(INPUTS)]
    total = builder.param("w", one)
    for value in inputs:
        total = emit1(builder, "add", total, value)
    squared = emit1(builder, "mul", total, total)
    return builder.finish((emit1(builder, "reduce_sum", squared, axes=(0,), keepdims=False),))
