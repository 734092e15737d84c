"""LSTM in 8 bits: DynamicQuantizeLSTM as ONNX Runtime computes it, and codes before and after an LSTM."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.compiler import passed
from tilewright.frontend.onnx import import_onnx
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import UnsupportedError
from tilewright.targets.target import Target

ort = pytest.importorskip("onnxruntime", reason="the peer is an extra: tilewright[test] has it")
RNG = np.random.default_rng(0)
FEATURES, HIDDEN = 8, 16


def model(node: onnx.NodeProto, inputs: dict[str, Any], weights: dict[str, Any]) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    kinds = {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in inputs.items()}
    ends = [info(k, kinds[k], v.shape) for k, v in inputs.items()], [info(k, 1, None) for k in node.output]
    stored = [numpy_helper.from_array(v, k) for k, v in weights.items()]
    graph = helper.make_graph([node], "g", *ends, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def dynamic(
    steps: int, batch: int, directions: int, lengths: bool, kind: Any, **attrs: Any
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A layer of weights of a type, with scales of columns where that is i8."""
    low, high, columns = (0, 256, ()) if kind is np.uint8 else (-127, 128, (4 * HIDDEN,))
    weights: dict[str, Any] = {
        "w": RNG.integers(low, high, (directions, FEATURES, 4 * HIDDEN)).astype(kind),
        "r": RNG.integers(low, high, (directions, HIDDEN, 4 * HIDDEN)).astype(kind),
        "b": (RNG.standard_normal((directions, 8 * HIDDEN)) / 8).astype(np.float32),
    }
    for name in "wr":
        weights[f"{name}s"] = (RNG.random((directions, *columns)) * 0.002 + 0.002).astype(np.float32)
        weights[f"{name}z"] = np.full((directions, *columns), 120 if kind is np.uint8 else 0, kind)
    inputs: dict[str, Any] = {"x": RNG.standard_normal((steps, batch, FEATURES)).astype(np.float32)}
    if lengths:
        inputs["n"] = np.int32([steps, steps // 2, 2][:batch])
    names = ["x", "w", "r", "b", "n" if lengths else "", "", "", "", "ws", "wz", "rs", "rz"]
    way = "bidirectional" if directions == 2 else "forward"
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y", "h", "c"], hidden_size=HIDDEN, direction=way, **attrs)
    node.domain = "com.microsoft"
    return model(node, inputs, weights), inputs


@pytest.mark.parametrize(
    "steps,batch,directions,lengths,kind",
    [(4, 3, 1, False, np.uint8), (18, 3, 2, True, np.int8)],
)
def test_same_as_onnxruntime(steps: int, batch: int, directions: int, lengths: bool, kind: Any) -> None:
    proto, inputs = dynamic(steps, batch, directions, lengths, kind)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.intra_op_num_threads = 1
    wanted = ort.InferenceSession(proto.SerializeToString(), options).run(None, inputs)
    for got, want in zip(tw.compile(proto)(*inputs.values()), wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)  # the ranges of all steps are the same: no level moves


def test_the_product_of_a_state_in_a_loop_is_by_dots() -> None:
    """More steps than are unrolled: the weights that the loop captures are as narrow as the file has them."""
    graph = passed(import_onnx(dynamic(18, 1, 1, False, np.int8)[0]).graph, Target.parse("znver4"))
    (loop,) = (node for node in graph.nodes if node.op == "loop")
    (body,) = loop.bodies
    products = [node.op for node in body.nodes if "matmul" in node.op]
    assert products == ["lowered.matmul_dot"]
    assert not any(node.op == "lowered.pack_dot" for node in body.nodes)


def test_coupled_gates_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="coupled input and forget gates"):
        tw.compile(dynamic(2, 1, 1, False, np.int8, input_forget=1)[0], fallback="never")


def test_codes_before_and_after_an_lstm() -> None:
    """The share of the inputs is a product of codes, the layer's states leave as codes."""
    x = RNG.standard_normal((3, 2, FEATURES)).astype(np.float32)
    shapes = {"w": (1, 4 * HIDDEN, FEATURES), "r": (1, 4 * HIDDEN, HIDDEN)}
    weights: dict[str, Any] = {k: RNG.integers(-127, 128, s).astype(np.int8) for k, s in shapes.items()}
    weights |= {"s": np.float32(0.004), "z": np.int8(0), "xs": np.float32(0.03), "xz": np.uint8(128)}
    names = [("x", "x0", "xs", "xz"), ("w", "w0", "s", "z"), ("r", "r0", "s", "z")]
    nodes = [helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"])]
    nodes += [helper.make_node("DequantizeLinear", ["q" if a == "x" else a, s, z], [b]) for a, b, s, z in names]
    nodes.append(helper.make_node("LSTM", ["x0", "w0", "r0"], ["y"], hidden_size=HIDDEN))
    nodes.append(helper.make_node("QuantizeLinear", ["y", "xs", "xz"], ["yq"]))
    info = helper.make_tensor_value_info
    ends = [info("x", TensorProto.FLOAT, x.shape)], [info("yq", TensorProto.UINT8, None)]
    graph = helper.make_graph(
        nodes, "g", *ends, [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    read = import_onnx(proto)
    after = passed(read.graph, Target.parse("znver4"))
    assert "lowered.matmul_dot" in [n.op for n in after.nodes]
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    (got,) = run_graph(after, {"x": x}, read.weights).values()
    for result in (got, tw.compile(proto)(x)):
        assert np.abs(np.asarray(result).astype(int) - want.astype(int)).max() <= 1
        assert (np.asarray(result) == want).mean() > 0.97
