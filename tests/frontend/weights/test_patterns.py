"""Sparse products against dense ones of the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.compression.steps import pruning_mask
from tilewright.frontend.weights.patterns import pattern_of


def network(w: np.ndarray, rows: int | str, transposed: bool) -> object:
    """y = relu(x w + b)."""
    columns = w.shape[1]
    info = helper.make_tensor_value_info
    arrays = {"w": np.ascontiguousarray(w.T) if transposed else w, "b": np.linspace(-1, 1, columns, dtype=np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["a"], transB=int(transposed)),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        "g",
        [info("x", TensorProto.FLOAT, [rows, len(w)])],
        [info("y", TensorProto.FLOAT, [rows, columns])],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def weights(rng: np.random.Generator, depth: int, columns: int, block: tuple[int, int]) -> np.ndarray:
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    return w * pruning_mask(w, 0.9, block)


@pytest.mark.parametrize("block,width", [((1, 1), 1), ((1, 8), 8), ((1, 16), 16), ((16, 16), 16)])
@pytest.mark.parametrize("rows", [1, 5, "n"])
@pytest.mark.parametrize("transposed", [False, True])
def test_zeros_are_left_out(block: tuple[int, int], width: int, rows: int | str, transposed: bool) -> None:
    rng = np.random.default_rng(11)
    w = weights(rng, 96, 80, block)
    assert pattern_of(w).width == width
    read = tw.with_patterns(network(w, rows, transposed))
    model = tw.compile(read)
    assert "sparse" in " ".join(step.label for step in model.manifest.run_steps)
    for count in (1, 3, 37) if rows == "n" else (rows,):
        x = rng.standard_normal((count, 96)).astype(np.float32)
        wanted = np.maximum(x @ w.astype(np.float64) + np.linspace(-1, 1, 80), 0)
        np.testing.assert_allclose(model(x), wanted, rtol=0, atol=2e-5)
    model.update({"w": np.ascontiguousarray((w * 2).T if transposed else w * 2), "b": np.zeros(80, np.float32)})
    x = rng.standard_normal((1 if rows == "n" else int(rows), 96)).astype(np.float32)
    np.testing.assert_allclose(model(x), np.maximum(x @ (w * 2.0), 0), rtol=0, atol=4e-5)


def test_columns_that_fill_no_panel_and_rows_without_elements() -> None:
    rng = np.random.default_rng(12)
    w = weights(rng, 40, 37, (1, 8))
    w[:, 8:16] = 0
    x = rng.standard_normal((4, 40)).astype(np.float32)
    got = tw.compile(tw.with_patterns(network(w, 4, False)))(x)
    np.testing.assert_allclose(got, np.maximum(x @ w + np.linspace(-1, 1, 37), 0), rtol=0, atol=2e-5)


def test_weights_below_the_share_of_zeros_stay_dense() -> None:
    w = np.ones((32, 32), np.float32)
    model = tw.compile(tw.with_patterns(network(w, 2, False)))
    assert "sparse" not in " ".join(step.label for step in model.manifest.run_steps)
