"""Products of dequantised values: what files with QuantizeLinear and DequantizeLinear mean, whatever multiplies."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.frontend.onnx import import_onnx
from tilewright.ir.dtype import i8, i32, u8
from tilewright.ir.graph import Graph
from tilewright.ops import parse_graph
from tilewright.schedule.dot_intrinsics import find_dot
from tilewright.targets.target import Target
from tilewright.transform.graph.bounds import bounds
from tilewright.transform.graph.constant_operands import hoist_constants
from tilewright.transform.graph.quantised import multiply_quantised
from tilewright.transform.layout.assign import in_blocks

RNG = np.random.default_rng(0)
WITH, WITHOUT = Target.parse("znver4"), Target.parse("x86-64-v3")


class Qdq:
    """A file of quantised layers, and what it means in double precision."""

    def __init__(self, x: np.ndarray) -> None:
        self.x, self.value = x, x.astype(np.float64)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.name = "x"

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    def weight(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def quantise(self, scale: float, zero: Any) -> None:
        """Rounds the value to numbers of `zero`'s type, and takes them for it again."""
        pair = self.weight(np.float32(scale)), self.weight(zero)
        codes = self.add("QuantizeLinear", self.name, *pair)
        self.name = self.add("DequantizeLinear", codes, *pair)
        info = np.iinfo(zero.dtype)
        levels = np.round(self.value.astype(np.float32) / np.float32(scale)) + zero.astype(np.float32)
        self.value = (np.clip(levels, info.min, info.max).astype(np.float64) - float(zero)) * float(np.float32(scale))

    def factor(self, codes: np.ndarray, scale: Any, axis: int) -> tuple[str, np.ndarray]:
        """Weights of i8, with a scale for all or one a slice."""
        scale = np.asarray(scale, np.float32)
        name = self.add("DequantizeLinear", self.weight(codes), self.weight(scale), axis=axis)
        shape = [-1 if k == axis else 1 for k in range(codes.ndim)] if scale.ndim else []
        return name, codes.astype(np.float64) * scale.astype(np.float64).reshape(shape)

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.x.shape)],
            [helper.make_tensor_value_info(self.name, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(v, k) for k, v in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def conv(case: dict[str, Any], zero: Any, *, slices: bool) -> Qdq:
    q = Qdq(RNG.standard_normal(case["x"]).astype(np.float32))
    q.quantise(0.02, zero)
    groups, filters = case.get("group", 1), case["filters"]
    codes = RNG.integers(-128, 128, (filters, case["x"][1] // groups, *case["window"])).astype(np.int8)
    name, w = q.factor(codes, RNG.uniform(0.001, 0.02, filters) if slices else 0.01, 0)
    attrs = {k: v for k, v in case.items() if k in ("strides", "pads", "dilations", "group")}
    bias = RNG.standard_normal(filters).astype(np.float32)
    q.name = q.add("Conv", q.name, name, q.weight(bias), **attrs)
    q.value = reference_conv(q.value, w, attrs) + bias.reshape(1, -1, *[1] * len(case["window"]))
    q.name, q.value = q.add("Relu", q.name), np.maximum(q.value, 0)
    return q


def reference_conv(x: np.ndarray, w: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    from tilewright import ops

    rank = w.ndim - 2
    settings = {
        "strides": tuple(attrs.get("strides", [1] * rank)),
        "dilations": tuple(attrs.get("dilations", [1] * rank)),
        "pads": tuple(attrs.get("pads", [0] * 2 * rank)),
        "groups": attrs.get("group", 1),
    }
    return np.asarray(ops.get("conv").reference([x, w], ops.attributes("conv", settings))[0])


def close(got: np.ndarray, q: Qdq) -> None:
    """Equal to what `fast="exact"` allows a layer of floats; sums of integers have no error."""
    np.testing.assert_allclose(got, q.value, rtol=0, atol=4e-6 * np.abs(q.value).max())


CONVS: dict[str, dict[str, Any]] = {
    "blocks": {"x": (2, 32, 9, 10), "filters": 40, "window": (3, 3), "pads": [1, 1, 1, 1]},
    "few channels": {"x": (1, 3, 20, 31), "filters": 24, "window": (7, 7), "strides": [2, 2], "pads": [3, 3, 3, 3]},
    "one channel": {"x": (2, 1, 12, 11), "filters": 9, "window": (5, 5), "pads": [2, 2, 2, 2]},
    "one pixel": {"x": (1, 20, 5, 7), "filters": 12, "window": (1, 1)},
    "strided": {"x": (1, 18, 8, 8), "filters": 33, "window": (1, 1), "strides": [2, 2]},
    "dilated": {"x": (1, 16, 12, 9), "filters": 16, "window": (3, 2), "dilations": [2, 1], "pads": [2, 0, 2, 1]},
    "depthwise": {"x": (1, 24, 9, 9), "filters": 24, "window": (3, 3), "pads": [1, 1, 1, 1], "group": 24},
    "groups": {"x": (1, 24, 9, 9), "filters": 32, "window": (3, 3), "group": 4},
    "line": {"x": (2, 8, 30), "filters": 20, "window": (5,), "pads": [2, 2]},
}


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("zero", [np.uint8(117), np.int8(-9), np.uint8(0)], ids=lambda z: f"{z.dtype}{z}")
def test_convolutions(name: str, zero: Any) -> None:
    q = conv(CONVS[name], zero, slices=zero.dtype == np.uint8)
    close(np.asarray(tw.compile(q.model(), fast="exact")(q.x)), q)


def test_a_small_number_of_filters_between_convolutions() -> None:
    """Maps of few channels are in blocks of vectors when they come from a convolution."""
    q = Qdq(RNG.standard_normal((1, 1, 14, 13)).astype(np.float32))
    q.quantise(0.0313, np.uint8(100))
    for channels, filters in ((1, 3), (3, 1), (1, 5), (5, 20)):
        codes = RNG.integers(-128, 128, (filters, channels, 3, 3)).astype(np.int8)
        name, w = q.factor(codes, 0.01371, 0)
        attrs = {"pads": [1, 1, 1, 1]}
        q.name, q.value = q.add("Conv", q.name, name, **attrs), reference_conv(q.value, w, attrs)
        q.quantise(0.0971, np.int8(-3))
    off = np.abs(np.asarray(tw.compile(q.model(), fast="exact")(q.x)) - q.value) / 0.0971
    assert (off < 0.01).mean() > 0.97  # a level that falls to the other side changes what is around it in later layers


SHIFTED = """
    graph @g(%x: {kind}[1, 5, 6, 6]) params(%w: i8[4, 5, 3, 3]) {{
      %z = constant() {{value = array i32[] ({zero})}} : i32[]
      %a = cast(%x) {{dtype = i32}} : i32[1, 5, 6, 6]
      %b = sub(%a, %z) : i32[1, 5, 6, 6]
      %c = cast(%w) {{dtype = i32}} : i32[4, 5, 3, 3]
      %y = conv(%b, %c) {{dilations = [1, 1], groups = 1, pads = [1, 1, 1, 1], strides = [1, 1]}} : i32[1, 4, 6, 6]
      return %y
    }}"""


@pytest.mark.parametrize("kind,zero", [("u8", 300), ("u8", 255), ("i8", -128), ("i8", 200), ("u8", -1)])
def test_zero_points_that_numbers_cannot_have(kind: str, zero: int) -> None:
    """The padding of a map stands for zero: where 8 bits cannot hold it, it is taken off before."""
    graph = parse_graph(SHIFTED.format(kind=kind, zero=zero))
    dtype = np.uint8 if kind == "u8" else np.int8
    info = np.iinfo(dtype)
    x = RNG.integers(info.min, info.max + 1, (1, 5, 6, 6)).astype(dtype)
    w = RNG.integers(-128, 128, (4, 5, 3, 3)).astype(np.int8)
    want = reference_conv(x.astype(np.float64) - zero, w.astype(np.float64), {"pads": [1, 1, 1, 1]})
    np.testing.assert_array_equal(np.asarray(tw.compile((graph, {"w": w}))(x)), want)


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("shape", [(1, 64), (7, 5, 36), (3, 130), (2, 2)])
@pytest.mark.parametrize("op", ["MatMul", "Gemm", "transposed"])
def test_products(shape: tuple[int, ...], op: str) -> None:
    q = Qdq(RNG.standard_normal(shape if op != "Gemm" else (shape[0], shape[-1])).astype(np.float32))
    q.quantise(0.03, np.uint8(140))
    depth, columns = shape[-1], 45
    codes = RNG.integers(-128, 128, (columns, depth) if op != "MatMul" else (depth, columns)).astype(np.int8)
    scale = 0.01 if op == "transposed" else RNG.uniform(0.001, 0.02, columns)
    name, w = q.factor(codes, scale, 0 if op == "Gemm" else 1)
    if op == "Gemm":
        q.name, q.value = q.add("Gemm", q.name, name, transB=1), q.value @ w.T
    else:
        name = q.add("Transpose", name, perm=[1, 0]) if op == "transposed" else name
        q.name, q.value = q.add("MatMul", q.name, name), q.value @ (w.T if op == "transposed" else w)
    close(np.asarray(tw.compile(q.model(), fast="exact")(q.x)), q)


def test_layers_that_follow_each_other_stay_narrow() -> None:
    """A block with a residual: what is kept between the convolutions has 8 bits."""
    q = Qdq(RNG.standard_normal((1, 16, 14, 14)).astype(np.float32))
    q.quantise(0.03, np.uint8(128))
    retained, value = q.name, q.value
    for _ in range(2):
        codes = RNG.integers(-128, 128, (16, 16, 3, 3)).astype(np.int8)
        name, w = q.factor(codes, 0.003, 0)
        attrs = {"pads": [1, 1, 1, 1]}
        q.name, q.value = q.add("Conv", q.name, name, **attrs), reference_conv(q.value, w, attrs)
        q.quantise(0.05, np.uint8(120))
    q.name, q.value = q.add("Add", q.name, retained), q.value + value
    q.quantise(0.06, np.uint8(125))
    model = tw.compile(q.model())
    off = np.abs(np.asarray(model(q.x)) - q.value) / 0.06
    assert off.max() < 1.01 and (off < 0.01).mean() > 0.98  # a level that lies in the middle falls to either side
    if find_dot(u8, i8, Target.host()) is not None:
        text = model.show("graph")
        match = [line for line in text.splitlines() if re.search(r"= lowered\.conv_(dot|tiles)\(", line)]
        assert len(match) == 2


def test_the_target_decides() -> None:
    graph = import_onnx(conv(CONVS["blocks"], np.uint8(3), slices=True).model()).graph
    assert any(n.op == "conv" and n.output.dtype is i32 for n in multiply_quantised(graph, WITH, in_blocks()).nodes)


LARGE: dict[str, tuple[dict[str, Any], bool]] = {
    "transformed": ({"x": (1, 128, 19, 19), "filters": 128, "window": (3, 3), "pads": [1] * 4}, True),
    "one pixel": ({"x": (1, 64, 17, 18), "filters": 64, "window": (1, 1)}, True),
    "strided": ({"x": (1, 64, 17, 18), "filters": 64, "window": (3, 3), "strides": [2, 2]}, True),
    "few filters": ({"x": (1, 64, 17, 18), "filters": 2, "window": (1, 1)}, False),
    "a line": ({"x": (1, 64, 80), "filters": 64, "window": (3,)}, True),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", LARGE)
def test_without_instructions_of_bytes_codes_are_convolved_where_that_is_faster(name: str) -> None:
    case, faster = LARGE[name]
    q = conv(case, np.uint8(117), slices=True)
    graph = hoist_constants(import_onnx(q.model()).graph, ())[0]
    result = multiply_quantised(graph, WITHOUT, in_blocks())
    assert any(n.op == "conv" and n.output.dtype is i32 for n in result.nodes) is faster
    if faster:
        close(np.asarray(tw.compile(q.model(), target="x86-64-v3")(q.x)), q)  # as transforms of f32 are not


GUARDED = """
    graph @g(%x: i16[2, {depth}], %s: f32[{rows}, 1]) params(%w: i8[{depth}, 8], %t: f32[{scales}]) {{
      %a = cast(%x) {{dtype = f32}} : f32[2, {depth}]
      %b = mul(%a, %s) : f32[2, {depth}]
      %c = cast(%w) {{dtype = f32}} : f32[{depth}, 8]
      %d = mul(%c, %t) : f32[{depth}, 8]
      %y = matmul(%b, %d) : f32[2, 8]
      return %y
    }}"""


def guarded(depth: int, rows: int, scales: str) -> Graph:
    return parse_graph(GUARDED.format(depth=depth, rows=rows, scales=scales))


@pytest.mark.parametrize(
    "depth,rows,scales,rewritten",
    [
        (500, 1, "8", True),
        (500, 2, "1, 8", True),  # one scale a row
        (500, 1, "500, 1", False),  # one scale a step of the sum
        (512, 1, "8", False),  # 512 * 2^15 * 2^7 is 2^31
    ],
)
def test_only_what_stays_exact_is_rewritten(depth: int, rows: int, scales: str, rewritten: bool) -> None:
    graph = guarded(depth, rows, scales)
    result = multiply_quantised(graph, WITH, in_blocks())
    assert any(n.op == "matmul" and n.output.dtype is i32 for n in result.nodes) is rewritten
    assert (result is graph) is not rewritten


def test_bounds() -> None:
    graph = parse_graph("""
        graph @g(%x: u8[4], %z: i8[1], %w: i32[4]) {
          %k = constant() {value = array i8[1] (3)} : i8[1]
          %a = cast(%x) {dtype = i32} : i32[4]
          %b = cast(%z) {dtype = i32} : i32[1]
          %c = sub(%a, %b) : i32[4]
          %d = cast(%k) {dtype = i32} : i32[1]
          %e = add(%c, %d) : i32[4]
          %f = add(%e, %w) : i32[4]
          return %c, %e, %f
        }""")
    producers = {v: n for n in graph.nodes for v in n.outputs}
    c, e, f = (bounds(producers.get, v) for v in graph.outputs)
    assert (c, e, f) == ((-127, 383), (-124, 386), None)
