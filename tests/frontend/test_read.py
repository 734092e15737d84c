"""The one door to all frontends: which reads a model, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import policy_suite
from tilewright.frontend.read import from_torch, import_model
from tilewright.ir.graph import Graph
from tilewright.ops import parse_graph
from tilewright.support.errors import ModelError

GRAPH = """
graph @g(%x: f32[2, 4]) params(%w: f32[4, 3]) {
  %y = matmul(%x, %w) : f32[2, 3]
  return %y
}
"""
PRODUCT = """
module {
  func.func public @main(%arg0: tensor<2x4xf32>, %arg1: tensor<4x3xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
      : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}
"""


def test_each_kind_of_model_is_read() -> None:
    graph, weights = parse_graph(GRAPH), {"w": np.ones((4, 3), np.float32)}
    pair = import_model((graph, weights))
    assert pair.graph is graph and pair.weights == weights and pair.weights is not weights
    assert import_model(pair) is pair
    onnx = import_model(policy_suite.m64())
    assert isinstance(onnx.graph, Graph) and onnx.weights.keys() == {v.name for v in onnx.graph.params}
    assert not from_torch(graph) and not from_torch(policy_suite.m64())


def test_stablehlo_is_read_where_its_parser_is() -> None:
    pytest.importorskip("jaxlib", reason="which brings the parser of StableHLO")
    assert "matmul" in [n.op for n in import_model(PRODUCT).graph.nodes]


@pytest.mark.parametrize(
    ("model", "keywords", "message"),
    [
        (parse_graph(GRAPH), {}, "needs their values"),
        ("missing.onnx", {"example": (1,)}, "need an example"),
        ("missing.onnx", {"params": 0}, "which arguments are weights"),
        ("missing.onnx", {}, "missing.onnx"),
    ],
)
def test_models_that_do_not_fit_their_kind_are_refused(model: Any, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_model(model, **keywords)


@pytest.mark.parametrize("kind", [str, Path])
def test_compiled_files_are_refused_by_name(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.tw"
    path.write_bytes(b"TWMODEL")
    with pytest.raises(ModelError, match=r"m\.tw: the model is compiled already\nhint: tw\.load"):
        import_model(kind(path))
