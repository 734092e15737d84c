"""Recurrent weights that files have as codes stay codes: what they mean, against ONNX Runtime, and where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.compiler import passed
from tilewright.frontend.onnx import import_onnx
from tilewright.ir.dtype import f32, i8
from tilewright.ops.interpret import run_graph
from tilewright.targets.target import Target
from tilewright.transform.graph.constant_operands import hoist_constants
from tilewright.transform.layout import recurrence

GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
TIME, FEATURES = 18, 8


def layer(kind: str, hidden: int, *, by_channel: bool = True, batch: int = 1, **attrs: Any) -> onnx.ModelProto:
    """A recurrent layer with QuantizeLinear and DequantizeLinear around its input and output, and coded weights."""
    rng = np.random.default_rng(hidden)
    weights: dict[str, Any] = {"zero": np.uint8(120), "s": np.float32(0.03), "t": np.float32(0.01)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "zero"], ["xq"])]
    nodes.append(helper.make_node("DequantizeLinear", ["xq", "s", "zero"], ["xd"]))
    rows = GATES[kind] * hidden
    for name, columns in (("w", FEATURES), ("r", hidden)):
        weights[f"{name}q"] = rng.integers(-127, 128, (1, rows, columns)).astype(np.int8)
        size, where = (rows, {"axis": 1}) if by_channel else ((), {})
        weights[f"{name}s"] = (rng.random(size) * 0.002 + 0.001).astype(np.float32)
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}q", f"{name}s"], [name], **where))
    weights["b"] = rng.standard_normal((1, 2 * rows)).astype(np.float32) / 10
    nodes.append(helper.make_node(kind, ["xd", "w", "r", "b"], ["h"], hidden_size=hidden, **attrs))
    nodes.append(helper.make_node("QuantizeLinear", ["h", "t", "zero"], ["hq"]))
    nodes.append(helper.make_node("DequantizeLinear", ["hq", "t", "zero"], ["y"]))
    info = helper.make_tensor_value_info
    ends = [info("x", TensorProto.FLOAT, [TIME, batch, FEATURES])], [info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(
        nodes, "g", *ends, [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def packed(model: onnx.ModelProto, target: str) -> tuple[Any, Any]:
    """The node of the recurrence after all passes, and the graph."""
    after = passed(hoist_constants(import_onnx(model).graph, ())[0], Target.parse(target))
    (node,) = [n for n in after.nodes if n.op == "lowered.recurrence"]
    return node, after


CASES = [("GRU", True, {"linear_before_reset": 1}), ("GRU", False, {})]


@pytest.mark.parametrize("kind,by_channel,attrs", CASES)
def test_codes_mean_what_onnx_runtime_says(
    kind: str, by_channel: bool, attrs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(recurrence, "exceeds_cache", lambda *_: True)  # as if the caches were small
    model = layer(kind, 11, by_channel=by_channel, batch=3, **attrs)
    node, after = packed(model, "x86-64-v3")
    assert node.inputs[1].dtype is i8 and node.inputs[7].dtype is f32
    options = onnxruntime.SessionOptions()  # its fused kernels multiply with sums that saturate on AVX2
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    x = np.random.default_rng(0).standard_normal((TIME, 3, FEATURES)).astype(np.float32)
    (want,) = session.run(None, {"x": x})
    imported = import_onnx(model)
    _, constants = hoist_constants(imported.graph, ())
    (reference,) = run_graph(after, {"x": x}, {**imported.weights, **constants}).values()
    for got in (tw.compile(model)(x), reference):
        steps = np.abs(got - want) / 0.01  # a number in the middle of two levels falls to either
        assert steps.max() < 1.01 and (steps > 0.5).mean() < 0.01


def test_weights_in_the_second_cache_or_read_by_eight_rows_are_numbers() -> None:
    assert packed(layer("GRU", 320), "x86-64-v3")[0].inputs[1].dtype is i8
    assert packed(layer("GRU", 64), "x86-64-v3")[0].inputs[1].dtype is f32
    assert packed(layer("GRU", 320, batch=8), "x86-64-v3")[0].inputs[1].dtype is f32


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_the_input_s_share_multiplies_integers(kind: str) -> None:
    _, after = packed(layer(kind, 16), "znver4")
    assert sum(n.op == "lowered.matmul_dot" for n in after.nodes) == 1
    assert not any(n.op in ("matmul", "lowered.matmul_packed") for n in after.nodes)


def test_a_tile_has_no_rows_beyond_the_batch() -> None:
    for batch in (1, 2, 3):
        node, _ = packed(layer("GRU", 64, batch=batch), "x86-64-v3")
        assert node.attrs.rows <= batch
