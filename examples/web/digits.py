"""A network that reads digits of 8x8 pixels, trained by `examples/mnist_like`'s compiled step, as an ONNX model."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from examples.mnist_like.digits import CLASSES, PIXELS, Digits
from examples.mnist_like.learners import Tilewright
from examples.mnist_like.networks import NETWORKS, Weights, accuracy

HIDDEN = NETWORKS["perceptron"]
MODEL = f"""
    <ir_version: 9, opset_import: ["" : 20]>
    digits (float[1, {PIXELS}] picture) => (float[1, {CLASSES}] likely) {{
        sum0 = Gemm(picture, w0, b0)
        hidden = Relu(sum0)
        sum1 = Gemm(hidden, w1, b1)
        likely = Softmax(sum1)
    }}
"""


def trained(data: Digits, epochs: int = 30, batch: int = 64) -> tuple[Weights, float]:
    """Weights, and the share of the pictures kept for the test that they read right."""
    learner = Tilewright(HIDDEN, batch)
    for epoch in range(epochs):
        for pictures, shown in data.batches(batch, epoch):
            learner.step(pictures, shown)
    weights = learner.weights()
    return weights, accuracy(weights, data.test, data.test_labels)


def model(weights: Weights) -> onnx.ModelProto:
    """From a picture [1, 64], 0 to 1, to how likely each digit is [1, 10]."""
    return with_weights(MODEL, weights)


def with_weights(text: str, weights: Weights) -> onnx.ModelProto:
    """A model in ONNX's text format whose free names are weights."""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.ascontiguousarray(w), n) for n, w in weights.items())
    return proto
