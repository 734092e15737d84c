"""Models with control flow and sizes that data decides: a recurrence, greedy decoding, boxes that none covers.

Weights are random with a fixed seed. Only `onnx` and NumPy are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class _Nodes:
    """Nodes of a graph under construction. Values are their names, each is fresh."""

    def __init__(self, weights: dict[str, Any], seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights = weights
        self.rng = np.random.default_rng(seed)

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"{op.lower()}_{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def named(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        numbers = self.rng.standard_normal(shape) * (shape[0] ** -0.5 if scale is None else scale)
        return self.constant(numbers.astype(np.float32))

    def constant(self, value: Any, kind: Any = None) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, kind)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)


def _info(name: str, code: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, code, list(shape))


def _model(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], weights: dict[str, Any]) -> Any:
    initializers = [numpy_helper.from_array(v, k) for k, v in weights.items()]
    graph = helper.make_graph(list(nodes), "control", list(inputs), list(outputs), initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def recurrence(hidden: int = 128, size: int = 64, seed: int = 0) -> onnx.ModelProto:
    """A Scan of unknown length: h = tanh(x w + h u + b)."""
    weights: dict[str, Any] = {}
    n = _Nodes(weights, seed)
    product = n("Add", n("MatMul", "x", n.weight(size, hidden)), n("MatMul", "h", n.weight(hidden, hidden)))
    n.named("Tanh", [n("Add", product, n.weight(hidden))], "next")
    n.named("Identity", ["next"], "seen")
    state, element = _info("h", F32, 1, hidden), _info("x", F32, 1, size)
    body = helper.make_graph(
        n.nodes, "step", [state, element], [_info("next", F32, 1, hidden), _info("seen", F32, 1, hidden)]
    )
    scan = helper.make_node("Scan", ["h0", "xs"], ["last", "all"], num_scan_inputs=1, body=body)
    inputs = [_info("h0", F32, 1, hidden), _info("xs", F32, "length", 1, size)]
    outputs = [_info("last", F32, 1, hidden), _info("all", F32, "length", 1, hidden)]
    return _model([scan], inputs, outputs, weights)


def decoder(
    layers: int = 2, width: int = 128, heads: int = 4, words: int = 256, most: int = 64, seed: int = 0
) -> onnx.ModelProto:
    """Greedy decoding as one Loop: a small GPT, whose cache of `most` places each iteration writes one place of."""
    weights: dict[str, Any] = {}
    n = _Nodes(weights, seed)
    part = width // heads
    cache = (1, heads, most, part)
    positions = n.constant(np.arange(most))
    split, joined = n.ints(1, heads, 1, part), n.ints(1, 1, width)
    n.named("Identity", ["go"], "on")
    place = n("Unsqueeze", n("Gather", n.weight(most, width, scale=1.0), "i"), n.ints(0, 1))
    x = n("Add", n("Gather", n.weight(words, width, scale=1.0), "word"), place)
    zero, never = n.constant(np.float32(0)), n.constant(np.float32(-1e9))
    mask = n("Where", n("LessOrEqual", positions, "i"), zero, never)
    here = n("Unsqueeze", n("Equal", positions, "i"), n.ints(1))
    carried: list[str] = []
    for layer in range(layers):
        ones, zeros = n.constant(np.ones(width, np.float32)), n.constant(np.zeros(width, np.float32))
        h = n("LayerNormalization", x, ones, zeros, axis=-1)
        q, k, v = (n("Reshape", n("MatMul", h, n.weight(width, width)), split) for _ in range(3))
        keys, values = (
            n.named("Where", [here, new, f"old_{name}{layer}"], f"new_{name}{layer}")
            for name, new in (("keys", k), ("values", v))
        )
        carried += [f"keys{layer}", f"values{layer}"]
        scores = n("Mul", n("MatMul", q, n("Transpose", keys, perm=[0, 1, 3, 2])), n.constant(np.float32(part**-0.5)))
        mixed = n("MatMul", n("Softmax", n("Add", scores, mask), axis=-1), values)
        x = n("Add", x, n("MatMul", n("Reshape", mixed, joined), n.weight(width, width)))
        inner = n("Relu", n("MatMul", x, n.weight(width, 4 * width)))
        x = n("Add", x, n("MatMul", inner, n.weight(4 * width, width)))
    n.named("ArgMax", [n("MatMul", x, n.weight(width, words))], "next", axis=-1, keepdims=0)
    n.named("Identity", ["next"], "chosen")
    inputs = [_info("i", I64), _info("go", BOOL), _info("word", I64, 1, 1)]
    inputs += [_info(f"old_{name}", F32, *cache) for name in carried]
    outputs = [_info("on", BOOL), _info("next", I64, 1, 1)]
    outputs += [_info(f"new_{name}", F32, *cache) for name in carried] + [_info("chosen", I64, 1, 1)]
    body = helper.make_graph(n.nodes, "step", inputs, outputs)
    count, yes, empty = n.constant(np.int64(most)), n.constant(np.array(True)), n.constant(np.zeros(cache, np.float32))
    results = ["last", *(f"last_{name}" for name in carried), "words"]
    loop = helper.make_node("Loop", [count, yes, "first", *[empty] * len(carried)], results, body=body)
    return _model([loop], [_info("first", I64, 1, 1)], [_info("words", I64, most, 1, 1)], weights)


def detector(size: int = 64, channels: int = 32, classes: int = 4, seed: int = 0) -> onnx.ModelProto:
    """Convolutions that give a box and scores at each place, and NonMaxSuppression: boxes and scores that are left."""
    weights: dict[str, Any] = {}
    n = _Nodes(weights, seed)
    x, depth = "image", 3
    for stride in (2, 1, 2, 1):
        x = n(
            "Relu",
            n(
                "Conv",
                x,
                n.weight(channels, depth, 3, 3, scale=(2 / 9 / depth) ** 0.5),
                pads=[1] * 4,
                strides=[stride] * 2,
            ),
        )
        depth = channels
    places = (size // 4) ** 2
    flat = [n.ints(1, rows, places) for rows in (4, classes)]
    corners = n("Sigmoid", n("Reshape", n("Conv", x, n.weight(4, channels, 1, 1, scale=0.1)), flat[0]))
    boxes = n("Transpose", corners, perm=[0, 2, 1])
    scores = n("Sigmoid", n("Reshape", n("Conv", x, n.weight(classes, channels, 1, 1, scale=0.2)), flat[1]))
    limits = n.ints(20), n.constant([0.5], np.float32), n.constant([0.6], np.float32)
    chosen = n.named("NonMaxSuppression", [boxes, scores, *limits], "chosen")
    column = n("Gather", chosen, n.constant(np.int64(2)), axis=1)
    n.named("Gather", [n("Squeeze", boxes, n.ints(0)), column], "boxes", axis=0)
    n.named("GatherND", [scores, chosen], "scores")
    outputs = [_info("chosen", I64, "kept", 3), _info("boxes", F32, "kept", 4), _info("scores", F32, "kept")]
    return _model(n.nodes, [_info("image", F32, 1, 3, size, size)], outputs, weights)
