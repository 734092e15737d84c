"""Small graphs that exercise the graph passes, with inputs and weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value

BATCH = Var("batch", lo=1, hi=64)
Arrays = dict[str, Any]


def tensor(*shape: Any) -> TensorType:
    return TensorType(f32, tuple(const(d) if isinstance(d, int) else d for d in shape))


def numbers(graph: Graph, batch: int, seed: int = 0) -> tuple[Arrays, Arrays]:
    """Random inputs and weights."""
    rng = np.random.default_rng(seed)

    def make(value: Value) -> Any:
        shape = [batch if d is BATCH else d.value for d in value.shape]  # type: ignore[attr-defined]
        return rng.standard_normal(shape).astype(np.float32)

    return {v.name: make(v) for v in graph.inputs}, {v.name: make(v) for v in graph.params}


def conv(b: GraphBuilder, x: Value, w: Value, pad: int = 1, stride: int = 1) -> Value:
    return ops.emit1(b, "conv", x, w, pads=(pad,) * 4, strides=(stride,) * 2, dilations=(1, 1), groups=1)


def mlp() -> Graph:
    """Two dense layers and two heads, one of six columns."""
    b = GraphBuilder("mlp")
    h = b.input("x", tensor(BATCH, 17))
    for name, size in (("a", 17), ("b", 64)):
        w, bias = b.param(f"{name}_w", tensor(64, size)), b.param(f"{name}_b", tensor(64))
        h = ops.emit1(b, "tanh", ops.emit1(b, "add", ops.emit1(b, "matmul", h, w, transpose_b=True), bias))
    heads = [ops.emit1(b, "matmul", h, b.param(f"{n}_w", tensor(64, k))) for n, k in (("action", 6), ("value", 1))]
    return b.finish(tuple(heads))


def residual(channels: int = 20, size: int = 7) -> Graph:
    """Convolutions with unfolded normalisation, a skip, pooling; channels that do not fill their blocks."""
    b = GraphBuilder("residual")
    x = b.input("x", tensor(BATCH, 3, size, size))
    y = conv(b, x, b.param("w0", tensor(channels, 3, 3, 3)))
    y = ops.emit1(b, "add", y, b.param("bias", tensor(1, channels, 1, 1)))
    y = ops.emit1(b, "mul", y, b.param("scale", tensor(channels, 1, 1)))
    y = skip = ops.emit1(b, "relu", ops.emit1(b, "add", y, b.param("shift", tensor(1, channels, 1, 1))))
    y = conv(b, y, b.param("w1", tensor(channels, channels, 3, 3)))
    y = ops.emit1(b, "relu", ops.emit1(b, "add", ops.emit1(b, "add", y, b.param("b1", tensor(channels, 1, 1))), skip))
    y = ops.emit1(b, "max_pool", y, kernel=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2), dilations=(1, 1))
    pooled = ops.emit1(b, "reduce_mean", y, axes=(2, 3), keepdims=True)
    flat = ops.emit1(b, "reshape", pooled, shape=(BATCH, const(channels)))
    return b.finish((ops.emit1(b, "softmax", flat, axis=1), y))


def attention() -> Graph:
    """One head: two operands of the products are computed, one is transposed; a gated pointwise diamond after."""
    b = GraphBuilder("attention")
    x = b.input("x", tensor(BATCH, 10, 24))
    q, k, v = (ops.emit1(b, "matmul", x, b.param(f"w{n}", tensor(24, 24))) for n in "qkv")
    scores = ops.emit1(b, "softmax", ops.emit1(b, "matmul", q, k, transpose_b=True), axis=2)
    y = ops.emit1(b, "matmul", scores, v)
    return b.finish((ops.emit1(b, "add", ops.emit1(b, "mul", y, ops.emit1(b, "sigmoid", y)), x),))


ALL = {"mlp": mlp, "residual": residual, "full blocks": lambda: residual(32, 9), "attention": attention}
