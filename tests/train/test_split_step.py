"""A learning step whose products, on both ways, are made of products of bf16 pieces (AMX, emulated)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.llvm.amx_run import amx, forced, needs_compiler, products
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ops.registry import emit1
from tilewright.train.entry import compile_step
from tilewright.train.optimizers import SGD

ROWS, WIDTH, STEPS = 64, 96, 4


def network() -> Graph:
    """The mean square of tanh(x w) v - y."""
    builder = GraphBuilder("network")

    def put(op: str, *values: Value, **attrs: Any) -> Value:
        return emit1(builder, op, *values, **attrs)

    def of(*shape: int) -> TensorType:
        return TensorType(f32, tuple(map(as_expr, shape)))

    x, y = (builder.input(name, of(ROWS, WIDTH)) for name in "xy")
    w, v = (builder.param(name, of(WIDTH, WIDTH)) for name in "wv")
    d = put("sub", put("matmul", put("tanh", put("matmul", x, w)), v), y)
    return builder.finish((put("reduce_mean", put("mul", d, d), axes=(0, 1), keepdims=False),))


def curve(seed: int, **options: Any) -> np.ndarray:
    rng = np.random.default_rng(seed)
    weights = {name: (rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32) for name in "wv"}
    x, y = (rng.normal(size=(ROWS, WIDTH)).astype(np.float32) for _ in range(2))
    step = compile_step((network(), weights), example=(x, y), optimizer=SGD(20.0), **options)
    return np.array([float(step(x, y)["loss"]) for _ in range(STEPS)])


@needs_compiler
def test_loss_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses differ from those of f32 by far less than those of two seeds do."""
    usual, other = curve(0), curve(1)
    target = amx(monkeypatch)
    with forced("split terms=3,least=16", lambda: curve(0, target=target)):
        before = products()
        split = curve(0, target=target)
    both = (ROWS // 16) * (WIDTH // 16) * (WIDTH // 32) * 3  # of one product, whichever sides are exchanged
    assert products() - before == STEPS * 5 * both  # two forward, three in the backward pass
    assert usual[-1] < 0.9 * usual[0]
    assert np.abs(split - usual).max() <= 1e-3 * np.abs(other - usual).max()
