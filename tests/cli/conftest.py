"""The command line in this process, and a small model to use it on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.main import get_command

import tilewright as tw
from tilewright.cli.main import main

Cli = Callable[..., tuple[int, str, str]]

_COMMAND = cache(get_command)
"""Typer makes all commands anew in each call, for as long as most tests here take by themselves."""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli("run", "m.onnx")` -> (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("typer.main.get_command", _COMMAND)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["tilewright", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return call


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """layer.onnx: y = relu(x @ w + b) with x: f32[n, 4], y: f32[n, 3]."""
    source = np.random.default_rng(0)
    weights = {"w": source.standard_normal((4, 3), np.float32), "b": source.standard_normal(3, np.float32)}
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["g"]), helper.make_node("Relu", ["g"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "layer.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all stores."""
    folder = tmp_path / "stores"
    monkeypatch.setenv("TILEWRIGHT_STORE_DIR", str(folder))
    return folder


@pytest.fixture
def program(layer: Path, tmp_path: Path) -> Path:
    """layer.onnx, compiled to layer.tw."""
    path = tmp_path / "layer.tw"
    tw.compile(layer).save(path)
    return path
