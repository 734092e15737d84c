"""Both networks as graphs: what is computed, operator by operator. Their gradients are the compiler's business.

logistic regression    softmax(x w + b)
perceptron             softmax(relu(x w0 + b0) w1 + b1)
loss                   -mean over the batch of log softmax(...) at the digit that is shown (cross entropy)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from examples.mnist_like.digits import CLASSES, PIXELS
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ops.registry import emit1

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]
NETWORKS = {"logistic regression": (), "perceptron": (128,)}
"""The units of the hidden layers."""


@dataclass(slots=True)
class Layers:
    """Puts layers into a graph."""

    builder: GraphBuilder

    def linear(self, x: Value, k: int, inputs: int, outputs: int) -> Value:
        """x w + b: [batch, inputs] to [batch, outputs]."""
        w = self.builder.param(f"w{k}", TensorType(f32, (as_expr(inputs), as_expr(outputs))))
        b = self.builder.param(f"b{k}", TensorType(f32, (as_expr(outputs),)))
        return emit1(self.builder, "add", emit1(self.builder, "matmul", x, w), b)

    def relu(self, x: Value) -> Value:
        return emit1(self.builder, "relu", x)

    def cross_entropy(self, scores: Value, shown: Value) -> Value:
        """-sum(shown * log softmax(scores)) / batch, of [batch, classes] both."""
        likely = emit1(self.builder, "log_softmax", scores, axis=1)
        right = emit1(self.builder, "reduce_sum", emit1(self.builder, "mul", shown, likely), axes=(1,), keepdims=False)
        return emit1(self.builder, "neg", emit1(self.builder, "reduce_mean", right, axes=(0,), keepdims=False))


def network(hidden: tuple[int, ...], batch: int) -> Graph:
    """From pictures and what they show to the loss."""
    builder = GraphBuilder("digits")
    x = builder.input("pictures", TensorType(f32, (as_expr(batch), as_expr(PIXELS))))
    shown = builder.input("shown", TensorType(f32, (as_expr(batch), as_expr(CLASSES))))
    layers = Layers(builder)
    sizes = (PIXELS, *hidden, CLASSES)
    for k, (inputs, outputs) in enumerate(pairwise(sizes)):
        x = layers.linear(layers.relu(x) if k else x, k, inputs, outputs)
    return builder.finish((layers.cross_entropy(x, shown),))


def first_weights(hidden: tuple[int, ...], seed: int = 0) -> Weights:
    """Random weights that keep the size of what flows through them (He et al., 2015); offsets of zero."""
    rng = np.random.default_rng(seed)
    result: Weights = {}
    for k, (inputs, outputs) in enumerate(pairwise((PIXELS, *hidden, CLASSES))):
        result[f"w{k}"] = (rng.normal(size=(inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32)
        result[f"b{k}"] = np.zeros(outputs, np.float32)
    return result


def accuracy(weights: Weights, pictures: Array, labels: Array) -> float:
    """The share of pictures whose digit has the highest score, in NumPy, for weights of any learner."""
    x = pictures
    for k in range(len(weights) // 2):
        x = (np.maximum(x, 0) if k else x) @ weights[f"w{k}"] + weights[f"b{k}"]
    return float((x.argmax(1) == labels).mean())
