"""ONNX out: ONNX Runtime reads it and agrees with the interpreter, and what comes in again computes the same.

`python -m tests.onnx.run --backend exported` does so for all of ONNX's own tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

import tilewright as tw
from benchmarks import control_models, policy_suite
from tests.frontend.onnx.build import info, model, node
from tilewright.cli.main import app
from tilewright.codegen.onnx import onnx_model
from tilewright.frontend.onnx import import_onnx
from tilewright.ir.graph import Graph
from tilewright.ir.key import key
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import UnsupportedError


def by_onnxruntime(model: onnx.ModelProto, arguments: dict[str, Any]) -> list[Any]:
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run([o.name for o in model.graph.output], arguments))


def feeds(graph: Graph, rng: np.random.Generator, **sizes: int) -> dict[str, Any]:
    def values(shape: list[int], t: Any) -> Any:
        return rng.integers(0, 3, shape).astype(t) if t.kind in "iub" else rng.normal(size=shape).astype(t)

    return {v.name: values([sizes.get(str(d)) or int(str(d)) for d in v.shape], v.dtype.numpy) for v in graph.inputs}


def agree(graph: Graph, weights: dict[str, Any], arguments: dict[str, Any], tolerance: float = 1e-5) -> onnx.ModelProto:
    """ONNX Runtime on the model, and ours on the model read again, against the interpreter."""
    model = onnx_model(graph, weights)
    expected = list(run_graph(graph, arguments, weights).values())
    reloaded = import_onnx(model)
    back = list(run_graph(reloaded.graph, arguments, reloaded.weights).values())
    for name, e, x, y in zip(
        [v.name for v in graph.outputs], expected, by_onnxruntime(model, arguments), back, strict=True
    ):
        for candidate in (x, y):
            assert np.asarray(candidate).dtype == e.dtype and np.shape(candidate) == e.shape, name
            np.testing.assert_allclose(candidate, e, atol=tolerance, rtol=tolerance, err_msg=name)
    return model


OPERATORS = """
graph @operators(%x: f32[2, 3, 8], %p: f32[1, 2, 9, 9], %i: i32[4], %n: i32[5], %m: i32[5], %c: bool[2, 3, 8])
    params(%s: f32[8], %k: f32[4, 2, 3, 3]) {
  %a1 = matmul(%x, %x) {transpose_a = true, transpose_b = false} : f32[2, 8, 8]
  %a2 = einsum(%x, %s) {equation = "abc,c->ab"} : f32[2, 3]
  %a3 = conv(%p, %k) {dilations = [2, 1], groups = 1, pads = [1, 0, 2, 1], strides = [1, 2]} : f32[1, 4, 8, 4]
  %a4 = avg_pool(%p) {count_include_pad = true, dilations = [1, 1], kernel = [3, 3], pads = [1, 1, 1, 1],
    strides = [2, 2]} : f32[1, 2, 5, 5]
  %a5 = max_pool(%p) {dilations = [2, 1], kernel = [2, 3], pads = [0, 1, 0, 1], strides = [1, 1]} : f32[1, 2, 7, 9]
  %b1 = softmax(%x) {axis = 1} : f32[2, 3, 8]
  %b2 = log_softmax(%x) {axis = 2} : f32[2, 3, 8]
  %b3 = layer_norm(%x, %s) {axis = 2, epsilon = 0.001} : f32[2, 3, 8]
  %b4 = layer_norm(%x) {axis = 1, epsilon = 0.001} : f32[2, 3, 8]
  %b5 = layer_norm(%x, %s) {axis = 1, epsilon = 0.001} : f32[2, 3, 8]
  %b6 = rms_norm(%x, %s) {axis = 1, epsilon = 0.001} : f32[2, 3, 8]
  %c1 = gather(%x, %i) {axis = 1} : f32[2, 4, 8]
  %c2 = slice(%x) {begin = [1, 0, 7], size = [1, 2, 3], step = [1, 1, -2]} : f32[1, 2, 3]
  %c3 = slice(%x) {begin = [0, 2, 7], size = [2, 3, 8], step = [1, -1, -1]} : f32[2, 3, 8]
  %c4 = slice(%x) {begin = [0, 0, 1], size = [1, 2, 3], step = [2, 2, 3]} : f32[1, 2, 3]
  %c5 = pad(%x) {after = [0, 1, 0], before = [0, 0, 2], mode = "constant", value = 1.5} : f32[2, 4, 10]
  %c6 = pad(%x) {after = [0, 1, 0], before = [0, 0, 2], mode = "reflect"} : f32[2, 4, 10]
  %c7 = broadcast(%s) {shape = [3, 8]} : f32[3, 8]
  %c8 = tile(%s) {repeats = [3]} : f32[24]
  %c9 = concat(%x, %b1) {axis = 1} : f32[2, 6, 8]
  %d1 = argmax(%x) {axis = 2, keepdims = false} : i64[2, 3]
  %d2 = reduce_mean(%x) {axes = [0, 2], keepdims = true} : f32[1, 3, 1]
  %d3 = reduce_max(%x) {axes = [1], keepdims = false} : f32[2, 8]
  %d4 = cumsum(%x) {axis = 2, exclusive = true, reverse = true} : f32[2, 3, 8]
  %d5, %d6 = topk(%x) {axis = 2, k = 3, largest = false} : f32[2, 3, 3], i64[2, 3, 3]
  %d7 = trilu(%x) {k = 1, upper = true} : f32[2, 3, 8]
  %d8 = range() {dtype = f32, size = 5, start = 2, step = 0.5} : f32[5]
  %e1 = floordiv(%n, %m) : i32[5]
  %e2 = mod(%n, %m) : i32[5]
  %e3 = truncmod(%n, %m) : i32[5]
  %e4 = truncdiv(%n, %m) : i32[5]
  %e5 = ne(%n, %m) : bool[5]
  %f1 = gelu(%x) : f32[2, 3, 8]
  %f2 = elu(%x) {alpha = 0.5} : f32[2, 3, 8]
  %f3 = swish(%x) {alpha = 1.5} : f32[2, 3, 8]
  %f4 = clip(%x) {max = 0.5} : f32[2, 3, 8]
  %f5 = trunc(%x) : f32[2, 3, 8]
  %f6 = cast(%x) {dtype = i8} : i8[2, 3, 8]
  %f7 = select(%c, %x, %b1) : f32[2, 3, 8]
  %f8 = exp2(%x) : f32[2, 3, 8]
  %f9 = fmod(%x, %b1) : f32[2, 3, 8]
  return %a1, %a2, %a3, %a4, %a5, %b1, %b2, %b3, %b4, %b5, %b6, %c1, %c2, %c3, %c4, %c5, %c6, %c7, %c8, %c9,
    %d1, %d2, %d3, %d4, %d5, %d6, %d7, %d8, %e1, %e2, %e3, %e4, %e5, %f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8, %f9
}
"""


def test_operators_of_every_kind_agree() -> None:
    rng = np.random.default_rng(0)
    graph = parse_graph(OPERATORS)
    weights = {p.name: rng.normal(size=[int(str(d)) for d in p.shape]).astype(np.float32) for p in graph.params}
    inputs = feeds(graph, rng) | {"i": np.array([0, -1, 2, 1], np.int32), "m": np.array([2, -3, 4, -5, 3], np.int32)}
    inputs["n"] = np.array([7, 7, -7, -7, 6], np.int32)
    agree(graph, weights, inputs)


def test_functions_close_to_zero_keep_their_digits() -> None:
    """log1p and expm1, which ONNX lacks: 1e-6 of the value, tiny ones too, and at their ends."""
    graph = parse_graph("""
graph @near(%x: f32[12]) {
  %a = log1p(%x) : f32[12]
  %b = expm1(%x) : f32[12]
  return %a, %b
}""")
    x = np.array([0, 1e-20, -1e-20, 1e-8, -3e-7, 1e-4, -0.5, 0.7, 30, 200, np.inf, np.nan], np.float32)
    result = by_onnxruntime(onnx_model(graph, {}), {"x": x})
    with np.errstate(over="ignore"):
        expected = np.log1p(x.astype(np.float64)), np.expm1(x.astype(np.float64)).astype(np.float32)
    for got, e in zip(result, expected, strict=True):
        np.testing.assert_allclose(got, e, rtol=1e-6)


SYMBOLIC = """
graph @symbolic(%x: f32[n, m, 8], %y: f32[m]) where n in 1.., m in 1.. {
  %a = reshape(%x) {shape = [$(n * m), $8]} : f32[(n * m), 8]
  %b = slice(%x) {begin = [$0, $(m - 1), $0], size = [$n, $m, $8], step = [1, -1, 1]} : f32[n, m, 8]
  %c = slice(%y) {begin = [$0], size = [$((m + 1) // 2)], step = [2]} : f32[((m + 1) // 2)]
  %d = broadcast(%y) {shape = [$n, $m]} : f32[n, m]
  %e = range() {dtype = i64, size = $m, start = 3, step = 2} : i64[m]
  return %a, %b, %c, %d, %e
}
"""


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 4), (2, 7)])
def test_open_sizes(n: int, m: int) -> None:
    graph = parse_graph(SYMBOLIC)
    agree(graph, {}, feeds(graph, np.random.default_rng(0), n=n, m=m))


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", ["m64", "nat", "imp"])
def test_models_agree_and_come_in_once_more(name: str) -> None:
    imported = import_onnx(getattr(policy_suite, name)())
    inputs = feeds(imported.graph, np.random.default_rng(1), batch=3)
    model = agree(imported.graph, imported.weights, inputs)
    recomputed = import_onnx(model)
    if name != "nat":  # whose batched products with a turned operand are two nodes in ONNX
        assert key(recomputed.graph) == key(imported.graph)
    assert recomputed.weights.keys() - recomputed.interface.fixed == imported.weights.keys() - imported.interface.fixed


@pytest.mark.parametrize("name", ["recurrence", "decoder", "detector"])
def test_loops_and_sizes_that_data_decides(name: str) -> None:
    imported = import_onnx(getattr(control_models, name)())
    inputs = feeds(imported.graph, np.random.default_rng(2), length=7)
    agree(imported.graph, imported.weights, inputs, 1e-4)


def test_a_loop_from_the_end() -> None:
    text = """graph @main(%xs: f32[5, 4], %s0: f32[4]) {
      %s, %rows = loop(none, none, %s0, %xs) {backward = true, body = graph @body(%i: i64[], %s: f32[4], %x: f32[4]) {
        %t = sub(%s, %x) : f32[4]
        %n = cast(%i) {dtype = f32} : f32[]
        %next = mul(%t, %n) : f32[4]
        return %next, %t
      }, carried = 1, scanned = 1} : f32[4], f32[5, 4]
      return %s, %rows
    }"""
    graph = parse_graph(text)
    agree(graph, {}, feeds(graph, np.random.default_rng(5)))


def test_what_a_recurrent_layer_keeps_is_refused() -> None:
    text = """graph @main(%x: f32[3, 2, 8], %w: f32[2, 8], %h: f32[2, 2]) {
      %y, %last, %c, %kept = recurrence(%x, %w, %h) {activations = [["sigmoid", []], ["tanh", []], ["tanh", []]],
        cell = "lstm", keeps = true} : f32[3, 2, 2], f32[2, 2], f32[2, 2], f32[3, 6, 2, 2]
      return %y, %kept
    }"""
    with pytest.raises(UnsupportedError, match="keeps for its gradient"):
        onnx_model(parse_graph(text), {})


@pytest.mark.parametrize("count", [0, 1, 5, 12])
def test_places_that_are_not_zero(count: int) -> None:
    imported = import_onnx(model([node("NonZero", ["x"], ["y"])], [info("x", [3, 4])], ["y"]))
    x = np.zeros(12, np.float32)
    x[np.random.default_rng(count).permutation(12)[:count]] = 1
    agree(imported.graph, imported.weights, {"x": x.reshape(3, 4)})


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_ranges_to_an_end_that_data_decides(limit: int) -> None:
    weights = {"zero": np.array(0), "one": np.array(2)}
    nodes = [node("Range", ["zero", "end", "one"], ["r"]), node("Cast", ["r"], ["y"], to=1)]
    imported = import_onnx(model(nodes, [info("end", [], 7)], ["y"], weights))
    inputs = {v.name: np.array(limit) for v in imported.graph.inputs if v.name == "end"}
    (result,) = by_onnxruntime(onnx_model(imported.graph, imported.weights), inputs)
    np.testing.assert_array_equal(result, np.arange(0, limit, 2, dtype=np.float32))


def test_a_small_number_of_steps_of_an_lstm() -> None:
    """Cells one after the other, clipped, with a row of zeros to begin with."""
    rng = np.random.default_rng(5)
    weights = {"w": rng.normal(size=(1, 20, 3)).astype(np.float32), "r": rng.normal(size=(1, 20, 5)).astype(np.float32)}
    layer = node("LSTM", ["x", "w", "r"], ["y"], hidden_size=5, clip=0.75)
    imported = import_onnx(model([layer], [info("x", [3, 2, 3])], ["y"], weights))
    assert any(n.op == "lstm_cell" for n in imported.graph.nodes)
    agree(imported.graph, imported.weights, {"x": rng.normal(size=(3, 2, 3)).astype(np.float32)})


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(kind: str) -> None:
    rng, gates = np.random.default_rng(3), {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    steps, batch, hidden = 20, 2, 5
    shapes = {"w": (1, gates * hidden, 3), "r": (1, gates * hidden, hidden), "b": (1, 2 * gates * hidden)}
    names = ["x", *shapes, "lengths"]
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    node = onnx.helper.make_node(kind, names, ["y", "last"], hidden_size=hidden, **more)
    inputs = [
        onnx.helper.make_tensor_value_info("x", 1, [steps, batch, 3]),
        onnx.helper.make_tensor_value_info("lengths", 6, [batch]),
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in ("y", "last")]
    weights = [onnx.numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in shapes.items()]
    graph = onnx.helper.make_graph([node], "layer", inputs, outputs, weights)
    imported = import_onnx(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]))
    arguments = {"x": rng.normal(size=(steps, batch, 3)).astype(np.float32), "lengths": np.array([20, 11], np.int32)}
    agree(imported.graph, imported.weights, arguments)


def test_on_the_command_line(tmp_path: Path) -> None:
    onnx.save(policy_suite.m64(), tmp_path / "m.onnx")
    result = CliRunner().invoke(
        app, ["export", str(tmp_path / "m.onnx"), "--to", "onnx", "-o", str(tmp_path / "n.onnx")]
    )
    assert result.exit_code == 0, result.output
    x = np.random.default_rng(4).normal(size=(3, 17)).astype(np.float32)
    got = by_onnxruntime(onnx.load(tmp_path / "n.onnx"), {"obs": x})
    for a, b in zip(got, by_onnxruntime(policy_suite.m64(), {"obs": x}), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad"), [(7, 3, 2, 0), (8, 3, 2, 0), (6, 2, 3, 0), (5, 3, 3, 1), (2, 1, 2, 0)]
)
def test_pools_that_round_up(kind: str, size: int, kernel: int, stride: int, pad: int) -> None:
    """A last window that would begin after the input is none, which ONNX's inference of shapes does not know."""
    more = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    arguments = [info("x", [1, 2, size, size])]
    imported = import_onnx(model([node(kind, ["x"], ["y"], ceil_mode=1, **more)], arguments, ["y"]))
    x = np.random.default_rng(1).normal(size=(1, 2, size, size)).astype(np.float32)
    agree(imported.graph, imported.weights, {"x": x})


def test_what_has_no_words_is_listed() -> None:
    graph = parse_graph("""
graph @g(%x: f32[3, 4]) {
  %a = digamma(%x) : f32[3, 4]
  %b = cumprod(%x) {axis = 1} : f32[3, 4]
  return %a, %b
}""")
    with pytest.raises(tw.Error) as caught:
        onnx_model(graph, {})
    assert "digamma" in str(caught.value) and "cumprod" in str(caught.value)
