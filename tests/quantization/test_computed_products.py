"""`tw.quantize` of attention's products, and of what multiplies the state of recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.compiler import passed
from tilewright.frontend.onnx import import_onnx
from tilewright.quantization.sites import all_sites, canonical, sites_of
from tilewright.targets.target import Target
from tilewright.transform.graph.constant_operands import hoist_constants

LENGTH, HEADS, DEPTH = 12, 2, 16
WIDTH = HEADS * DEPTH
OPTIONS: dict[str, Any] = {"precision": "int8", "max_drop": 1, "correct_bias": False, "smooth": False}


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(nodes: list[Any], weights: dict[str, Any], shape: list[Any]) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    arrays = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    ends = [info("x", TensorProto.FLOAT, shape)], [info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", *ends, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def attention(length: int | str = LENGTH) -> onnx.ModelProto:
    weights: dict[str, Any] = {name: normal(WIDTH, WIDTH, seed=k) / 6 for k, name in enumerate("qkvo")}
    weights |= {"split": np.int64([0, 0, HEADS, DEPTH]), "join": np.int64([0, 0, WIDTH]), "c": np.float32(0.25)}
    op, nodes = helper.make_node, []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(op("MatMul", ["x", name], [f"{name}1"]))
        nodes.append(op("Reshape", [f"{name}1", "split"], [f"{name}2"]))
        nodes.append(op("Transpose", [f"{name}2"], [f"{name}3"], perm=perm))
    nodes += [op("MatMul", ["q3", "k3"], ["scores"]), op("Mul", ["scores", "c"], ["scaled"])]
    nodes += [op("Softmax", ["scaled"], ["shares"], axis=-1), op("MatMul", ["shares", "v3"], ["mixed"])]
    nodes += [op("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]), op("Reshape", ["turned", "join"], ["rows"])]
    return model_of([*nodes, op("MatMul", ["rows", "o"], ["y"])], weights, [1, length, WIDTH])


def by_onnx_runtime(report: Any, x: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(report.onnx(), options)
    return session.run(None, {"x": x})[0]


def test_attention_is_calibrated_and_multiplies_bytes() -> None:
    samples = [normal(1, LENGTH, WIDTH, seed=k) for k in range(8)]
    model = tw.quantize(attention(), calibrate=samples, attention=True, **OPTIONS)
    assert [r.type for r in model.report.layers if r.layer in ("scores", "mixed")] == ["int8", "int8"]
    assert len(model.report.layers) == 6 and 1 - model.report.metric[1] < 0.05
    y = model(samples[0])
    off = np.abs(by_onnx_runtime(model.report, samples[0]) - y)
    assert off.max() < 0.02 * np.abs(y).max()  # activations that round to the neighbouring level
    graph = hoist_constants(model.report.graph, ())[0]
    after = passed(graph, Target.parse("znver4"))
    assert sum(n.op == "lowered.matmul_dot" for n in after.nodes) == 6
    assert not any(n.op in ("matmul", "lowered.matmul_packed", "lowered.attention") for n in after.nodes)


@pytest.mark.daily(3)
@pytest.mark.parametrize("most,in_bytes", [(512, 6), (1 << 18, 5), (None, 5)])
def test_attention_of_open_length_multiplies_bytes_where_sums_fit(most: int | None, in_bytes: int) -> None:
    """The depth of the second product is the length: its sums fit 32 bits where the length is bounded."""
    samples = [normal(1, LENGTH, WIDTH, seed=k) for k in range(4)]
    dims = {} if most is None else {"s": tw.dim(1, most)}
    model = tw.quantize(attention("s"), calibrate=samples, attention=True, dims=dims, **OPTIONS)
    graph = hoist_constants(model.report.graph, ())[0]
    after = passed(graph, Target.parse("znver4"))
    assert sum(n.op == "lowered.matmul_dot" for n in after.nodes) == in_bytes
    codes = onnx.load_from_string(model.report.onnx())
    for length in (1, 3, 12, 17, 33):
        x = normal(1, length, WIDTH, seed=99)
        y = model(x)
        # Machines without instructions for bytes sum numbers of f32, in an order that is each kernel's own.
        atol = 0 if any("matmul_dot" in step.label for step in model.manifest.run_steps) else 1e-6 * np.abs(y).max()
        np.testing.assert_allclose(y, tw.compile(codes, dims={"s": length})(x), rtol=0, atol=atol)
        assert np.abs(by_onnx_runtime(model.report, x) - y).max() < 0.02 * np.abs(y).max()


def test_attention_is_left_out_unless_it_is_asked_for() -> None:
    graph = canonical(import_onnx(attention()).graph)
    assert [s.name for s in all_sites(graph, products=False)] == ["q1", "k1", "v1", "y"]
    assert [s.name for s in sites_of(graph)] == ["q1", "k1", "v1", "y"]


def test_recurrent_weights_become_codes() -> None:
    gates, hidden, features, time = 3, 9, 8, 18
    weights = {
        "w": normal(1, gates * hidden, features) / 4,
        "r": normal(1, gates * hidden, hidden, seed=1) / 4,
        "b": normal(1, 2 * gates * hidden, seed=2) / 10,
    }
    layer = helper.make_node("GRU", ["x", "w", "r", "b"], ["y"], hidden_size=hidden, linear_before_reset=1)
    samples = [normal(time, 1, features, seed=k) for k in range(2)]
    model = tw.quantize(model_of([layer], weights, [time, 1, features]), calibrate=samples, **OPTIONS)
    assert [(r.op, r.type) for r in model.report.layers] == [("matmul", "int8"), ("recurrence", "int8")]
    codes = [a for a in onnx.load_from_string(model.report.onnx()).graph.initializer if a.data_type == TensorProto.INT8]
    assert sum(int(np.prod(a.dims)) for a in codes) >= gates * hidden * (hidden + features)
    y = model(samples[0])
    np.testing.assert_allclose(by_onnx_runtime(model.report, samples[0]), y, atol=0.02 * np.abs(y).max())
    model.update({"w": weights["w"], "r": weights["r"] * 0, "b": weights["b"]})
    assert np.abs(model(samples[0]) - y).max() > 0.01
