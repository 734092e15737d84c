"""A million numbers rounded to codes, bit-equal to ONNX's reference of its operators; sums are exact on all machines.

`tests/quantization/test_torch_million.py` does so for PyTorch's operators, for StableHLO's formulas
`tests/frontend/stablehlo/test_jax_quantised.py`, and `make tflite` with LiteRT's kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.quantization.million import CHANNELS, numbers, scales, zeros
from tilewright.compiler import passed
from tilewright.frontend.onnx import import_onnx
from tilewright.ops.interpret import run_graph
from tilewright.targets.target import Target


def model_of(nodes: list[Any], ends: dict[str, int], weights: dict[str, Any], opset: int = 21) -> onnx.ModelProto:
    """A model of the inputs in lower case and outputs in upper case that `ends` gives types of."""
    info = helper.make_tensor_value_info
    shape = {name: [None, CHANNELS] if len(name) == 1 else [] for name in ends}
    inputs = [info(n, t, shape[n]) for n, t in ends.items() if n.islower()]
    outputs = [info(n, t, None) for n, t in ends.items() if n.isupper()]
    arrays = [a if isinstance(a, onnx.TensorProto) else numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def reference(model: onnx.ModelProto, feed: dict[str, Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, feed)]


KINDS = {"UINT8": (0, 255), "INT8": (-128, 127), "UINT16": (0, 65535), "INT16": (-32768, 32767)}


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_for_each_channel(kind: str) -> None:
    """Codes, and the numbers that these mean: scales and zero points are constants."""
    low, high = KINDS[kind]
    code = getattr(TensorProto, kind)
    zero = zeros(low, high).astype(helper.tensor_dtype_to_np_dtype(code))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["Q"], axis=1),
        helper.make_node("DequantizeLinear", ["Q", "s", "z"], ["Y"], axis=1),
    ]
    ends = {"x": TensorProto.FLOAT, "Q": code, "Y": TensorProto.FLOAT}
    model = model_of(nodes, ends, {"s": scales(), "z": zero})
    x = numbers(low, high)
    assert x.size > 1_000_000
    codes, y = reference(model, {"x": x})
    with np.errstate(all="ignore"):
        levels = np.rint(x / scales())
        by_text = np.clip(levels + zero.astype(np.float32), low, high).astype(zero.dtype)
        inside = np.abs(levels) < 2.0**31 - 2.0**17  # levels beyond wrap in the reference, against the text
    np.testing.assert_array_equal(codes[inside], by_text[inside])
    assert inside.sum() > 950_000 and 0.05 < np.mean((by_text == low) | (by_text == high)) < 0.9
    ours, numbers_of_codes = tw.compile(model)(x)
    np.testing.assert_array_equal(ours, by_text)
    np.testing.assert_array_equal(numbers_of_codes[inside], y[inside])


def test_scales_and_zero_points_that_a_call_gives() -> None:
    ends = {"x": TensorProto.FLOAT, "sc": TensorProto.FLOAT, "ze": TensorProto.UINT8, "Q": TensorProto.UINT8}
    model = model_of([helper.make_node("QuantizeLinear", ["x", "sc", "ze"], ["Q"])], ends, {})
    compiled, x = tw.compile(model), numbers(0, 255)
    for scale, zero, column in zip(scales(), zeros(0, 255).astype(np.uint8), x.T, strict=True):
        part = np.ascontiguousarray(column).reshape(-1, CHANNELS)
        with np.errstate(all="ignore"):
            want = np.clip(np.rint(part / scale) + np.float32(zero), 0, 255)
        np.testing.assert_array_equal(compiled(part, np.asarray(scale), np.asarray(zero)), want)


def test_ranges_that_a_call_gives() -> None:
    """DynamicQuantizeLinear of a million numbers, of one number, of zeros, of one sign."""
    ends = {"x": TensorProto.FLOAT, "Q": TensorProto.UINT8, "S": TensorProto.FLOAT, "Z": TensorProto.UINT8}
    model = model_of([helper.make_node("DynamicQuantizeLinear", ["x"], ["Q", "S", "Z"])], ends, {})
    compiled = tw.compile(model)
    usual = np.random.default_rng(1).standard_normal((1 << 14, CHANNELS)).astype(np.float32)
    for x in (usual, np.abs(usual), -np.abs(usual), np.full((5, CHANNELS), 3.7, np.float32)):
        for ours, theirs in zip(compiled(x), reference(model, {"x": x}), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    codes, scale, zero = compiled(0 * usual)
    assert not codes.any() and scale == 0 and zero == 0  # as the text's formula says (docs/disagreements.md)


SHAPES = {"dense": (5, 512, 24), "odd": (3, 517, 19), "one row": (1, 256, 16)}
MACHINES = ("x86-64-v3", "znver4", "znver5", "sapphirerapids", "graniterapids")
"""Pairs of 16 bits, VNNI, and AMX, each interpreted."""


def sums(rng: np.random.Generator, shape: tuple[int, int, int], kinds: tuple[Any, Any], full: bool) -> Any:
    """A product of codes of the whole range, or of none but both ends, its model and sums in 64 bits."""
    rows, depth, columns = shape
    infos = [np.iinfo(kind) for kind in kinds]
    draw = [rng.integers(i.min, i.max + 1, s) for i, s in zip(infos, ((rows, depth), (depth, columns)), strict=True)]
    if not full:
        draw = [np.where(a > (i.min + i.max) // 2, i.max, i.min) for a, i in zip(draw, infos, strict=True)]
        draw[0][0], draw[1][:, 0] = infos[0].max, infos[1].min  # the largest sum of one sign
    x, w = (a.astype(kind) for a, kind in zip(draw, kinds, strict=True))
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kinds[0]))
    zero = {"xz": np.asarray(113 if kinds[0] is np.uint8 else -5, kinds[0]), "wz": np.asarray(0, kinds[1])}
    node = helper.make_node("MatMulInteger", ["x", "w", "xz", "wz"], ["y"])
    info = helper.make_tensor_value_info
    arrays = [numpy_helper.from_array(a, n) for n, a in ({"w": w} | zero).items()]
    inputs, outputs = [info("x", code, x.shape)], [info("y", TensorProto.INT32, None)]
    graph = helper.make_graph([node], "g", inputs, outputs, arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model, x, (x.astype(np.int64) - int(zero["xz"])) @ w.astype(np.int64)


@pytest.mark.daily(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.int8, np.int8)], ids=["u8 s8", "s8 s8"])
def test_sums_are_equal_on_every_machine(shape: str, kinds: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(2)
    for full in (True, False):
        model, x, want = sums(rng, SHAPES[shape], kinds, full)
        np.testing.assert_array_equal(tw.compile(model)(x), want)
        read = import_onnx(model)
        for machine in MACHINES:
            graph = passed(read.graph, Target.parse(machine))
            assert any(n.op.startswith("lowered.matmul_") for n in graph.nodes), machine
            (got,) = run_graph(graph, {"x": x}, read.weights).values()
            np.testing.assert_array_equal(got, want, err_msg=machine)
