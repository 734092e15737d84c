"""Parts that the tests of the broker share: policies of whole numbers, whose answers are exact however they are
summed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw

OBS, BYTES, HIDDEN, ACTIONS = 5, 3, 4, 3


def build(nodes: Sequence[Any], inputs: dict[str, Any], outputs: dict[str, Any], weights: dict[str, np.ndarray]) -> Any:
    """A compiled ONNX graph; inputs and outputs are name -> (type, shape)."""
    graph = helper.make_graph(
        list(nodes),
        "recurrent",
        [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],
        [helper.make_tensor_value_info(name, *spec) for name, spec in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(proto)
    return tw.compile(proto)


def policy_weights(version: int) -> dict[str, np.ndarray]:
    """Weights of a version: whole numbers."""
    random = np.random.default_rng(version)
    shapes = {"w": (OBS, HIDDEN), "v": (BYTES, HIDDEN), "a": (HIDDEN, ACTIONS)}
    return {name: random.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()}


def recurrent_policy(version: int = 0) -> Any:
    """h_next = obs @ w + bytes @ v + h, action = h_next @ a: three inputs, the state's batch is its second axis."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["obs", "w"], ["x0"]),
        node("Cast", ["bytes"], ["floats"], to=TensorProto.FLOAT),
        node("MatMul", ["floats", "v"], ["x1"]),
        node("Add", ["x0", "x1"], ["x2"]),
        node("Add", ["x2", "h"], ["h_next"]),  # [batch, HIDDEN] and [1, batch, HIDDEN]
        node("Squeeze", ["h_next", "zero"], ["x3"]),
        node("MatMul", ["x3", "a"], ["action"]),
    ]
    f32 = TensorProto.FLOAT
    inputs = {
        "obs": (f32, ["batch", OBS]),
        "bytes": (TensorProto.UINT8, ["batch", BYTES]),
        "h": (f32, [1, "batch", HIDDEN]),
    }
    outputs = {"action": (f32, ["batch", ACTIONS]), "h_next": (f32, [1, "batch", HIDDEN])}
    weights = {**policy_weights(version), "zero": np.array([0], np.int64)}
    return build(nodes, inputs, outputs, weights)


def observations(random: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs of the recurrent policy: whole numbers."""
    return (
        random.integers(-9, 10, (rows, OBS)).astype(np.float32),
        random.integers(0, 256, (rows, BYTES)).astype(np.uint8),
        random.integers(-9, 10, (1, rows, HIDDEN)).astype(np.float32),
    )


def expected(version: int, obs: np.ndarray, raw: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The answers of the recurrent policy with the weights of a version, to the bit."""
    w = policy_weights(version)
    h_next = obs @ w["w"] + raw.astype(np.float32) @ w["v"] + h
    return h_next[0] @ w["a"], h_next


def is_right(answer: Any, version: int, arguments: tuple[np.ndarray, ...]) -> bool:
    """Whether an answer is that of a version, in every row."""
    return all(np.array_equal(a, b) for a, b in zip(answer, expected(version, *arguments), strict=True))


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.005)
