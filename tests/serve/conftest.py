"""A small model, and servers of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.runtime.specs import InputSpec, OutputSpec
from tilewright.serve.models import Function, Served
from tilewright.serve.server import Server, Settings

WEIGHTS = {
    "w": np.random.default_rng(0).standard_normal((4, 3), np.float32),
    "b": np.random.default_rng(1).standard_normal(3, np.float32),
}


def layer_model() -> onnx.ModelProto:
    """y = relu(x @ w + b) with x: f32[n, 4], y: f32[n, 3]."""
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["g"]), helper.make_node("Relu", ["g"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def expected(x: np.ndarray, weights: dict[str, np.ndarray] = WEIGHTS) -> np.ndarray:
    """The layer's result, by NumPy."""
    return np.maximum(x @ weights["w"] + weights["b"], 0)


def echo(name: str = "echo", dtype: str = "string", call: Callable[..., Any] = lambda x: x, **options: Any) -> Served:
    """A function of one input as a model: without another one, it gives what it is given."""
    return Served(
        name, "1", Function(call, [InputSpec("x", dtype, ("n",))], [OutputSpec("y", dtype, ("n",))]), **options
    )


@pytest.fixture(scope="session")
def layer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """layer.onnx."""
    path = tmp_path_factory.mktemp("models") / "layer.onnx"
    onnx.save(layer_model(), path)
    return path


@pytest.fixture(scope="session")
def layer(layer_path: Path) -> tw.Model:
    return tw.Model(tw.compile_program(layer_path))


@pytest.fixture
def server(layer: tw.Model) -> Iterator[Server]:
    """The layer, and models that give what they are given, over HTTP."""
    models = [
        Served("layer", "1", layer),
        echo(),
        *(echo(f"echo-{t}", t) for t in ("f32", "f16", "bf16", "bool", "i64")),
    ]
    with Server(Settings(http_port=0), models) as started:
        yield started
