"""Imported models as native code: what the importer emits in unusual combinations."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.frontend.onnx import import_onnx
from tilewright.ops.interpret import run_graph

rng = np.random.default_rng(0)
F = np.float32


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_long_sequences(kind: str) -> None:
    """A loop, not unrolled; without initial states, so that one value is read as both of them."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    weights = {
        "w": rng.standard_normal((1, gates * 5, 3)).astype(F),
        "r": rng.standard_normal((1, gates * 5, 5)).astype(F),
    }
    m = model(
        [helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=5)], [info("x", ["t", "n", 3])], ["y"], weights
    )
    same(m, {"x": rng.standard_normal((40, 2, 3)).astype(F)})


@pytest.mark.slow
def test_transposed_and_one_dimensional_convolutions() -> None:
    nodes = [
        node("Conv", ["x", "k", "b"], ["c"], pads=[1, 1]),
        node("Relu", ["c"], ["r"]),
        node("ConvTranspose", ["r", "k"], ["y"], strides=[2], pads=[1, 1], output_padding=[1]),
    ]
    weights = {"k": rng.standard_normal((4, 4, 3)).astype(F), "b": rng.standard_normal(4).astype(F)}
    same(model(nodes, [info("x", ["n", 4, 9])], ["y"], weights), {"x": rng.standard_normal((3, 4, 9)).astype(F)})


@pytest.mark.slow
def test_constants_as_operands_of_loops() -> None:
    nodes = [node("ScatterND", ["x", "i", "u"], ["s"]), node("CumSum", ["s", "axis"], ["y"])]
    weights = {"i": np.array([[1], [0]]), "u": np.arange(8, dtype=F).reshape(2, 4), "axis": np.array(1)}
    same(model(nodes, [info("x", ["n", 4])], ["y"], weights), {"x": rng.standard_normal((3, 4)).astype(F)})


@pytest.mark.parametrize("shape", [(3, 5, 6, 6), (3, 5, 2, 3, 4)])
def test_a_sum_of_everything_over_loops_that_join_in_part(shape: tuple[int, ...]) -> None:
    """An operand that is picked by index is contiguous in some of the reduction's dimensions only."""
    picked = [shape[0], *shape[2:]]
    nodes = [node("NegativeLogLikelihoodLoss", ["x", "t"], ["y"], reduction="sum")]
    m = model(nodes, [info("x", list(shape)), info("t", picked, onnx.TensorProto.INT64)], ["y"])
    same(m, {"x": rng.standard_normal(shape).astype(F), "t": rng.integers(0, shape[1], picked)})


def same(m: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    imported = import_onnx(m)
    want = run_graph(imported.graph, feeds, imported.weights)
    got = tw.compile(m).run(feeds)
    for name, w in want.items():
        np.testing.assert_allclose(got[name], w, rtol=1e-4, atol=1e-5)


@pytest.mark.daily(4)
@pytest.mark.parametrize("op", ["Mod", "Mul"])
@pytest.mark.parametrize("outputs", [["f"], ["c", "e", "f"], ["d", "e"], ["e"]])
@pytest.mark.parametrize("rows", [4, "n"])
def test_integers_of_which_nothing_is_left(op: str, outputs: list[str], rows: int | str) -> None:
    """`x % 1` and `x * 0` read nothing once the number is inlined: the sum in x has no reader then, or what follows it
    in a kernel of rows is no longer connected with it."""
    nodes = [
        node("ReduceSum", ["x", "one"], ["c"], keepdims=1),
        node("Sub", ["x", "c"], ["d"]),
        node(op, ["d", "k"], ["e"]),
        node("ReduceMax", ["e", "one"], ["m"], keepdims=1),
        node("Sub", ["e", "m"], ["f"]),
    ]
    k = np.array(1 if op == "Mod" else 0)
    m = model(nodes, [info("x", [rows, 9], TensorProto.INT64)], outputs, {"one": np.array([1]), "k": k})
    x = np.random.default_rng(0).integers(-50, 50, (4, 9))
    result = tw.compile(m, fallback="never")(x)
    c = x.sum(1, keepdims=True)
    want = {"c": c, "d": x - c, "e": 0 * x, "f": 0 * x}
    for name, y in zip(outputs, result if isinstance(result, tuple) else (result,), strict=True):
        np.testing.assert_array_equal(y, want[name])
