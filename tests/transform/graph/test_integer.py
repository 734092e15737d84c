"""Quantised ONNX models keep their exact meaning whichever kernel computes them: equal to NumPy in integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.ops.oracle import check
from tilewright.compiler import passed
from tilewright.frontend.onnx import import_onnx
from tilewright.ops.interpret import run_graph
from tilewright.targets.target import Target

RNG = np.random.default_rng(0)


def model(nodes: list[Any], x: np.ndarray, weights: dict[str, np.ndarray], out: int) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", out, None)],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def compiled(proto: onnx.ModelProto, op: str) -> tw.Model:
    done = tw.compile(proto)
    if Target.host().has("avx2"):
        assert f"lowered.{'conv' if 'Conv' in op else 'matmul'}_dot" in done.show("graph"), op
    return done


@pytest.mark.parametrize("m,k,n", [(1, 32, 40), (9, 64, 17)])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_matmul_integer(m: int, k: int, n: int, kind: Any) -> None:
    info = np.iinfo(kind)
    x, w = (RNG.integers(info.min, info.max + 1, s).astype(kind) for s in ((m, k), (k, n)))
    weights = {"w": w, "xz": np.array(info.max, kind), "wz": np.array(3, kind)}
    nodes = [helper.make_node("MatMulInteger", ["x", "w", "xz", "wz"], ["y"])]
    got = np.asarray(compiled(model(nodes, x, weights, TensorProto.INT32), "MatMulInteger")(x))
    want = (x.astype(np.int64) - int(info.max)) @ (w.astype(np.int64) - 3)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("batch,m,k,n", [((2, 3), 9, 10, 17), ((), 24, 64, 33)])
def test_matmul_integer_of_two_computed_factors(batch: tuple[int, ...], m: int, k: int, n: int) -> None:
    x, w = (RNG.integers(0, 256, (*batch, *s)).astype(np.uint8) for s in ((m, k), (k, n)))
    info, points = helper.make_tensor_value_info, {"xz": np.array(255, np.uint8), "wz": np.array(3, np.uint8)}
    inputs = [info(name, TensorProto.UINT8, a.shape) for name, a in (("x", x), ("w", w))]
    node = helper.make_node("MatMulInteger", ["x", "w", "xz", "wz"], ["y"])
    ends = inputs, [info("y", TensorProto.INT32, None)], [numpy_helper.from_array(v, k) for k, v in points.items()]
    graph = helper.make_graph([node], "g", *ends)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    want = (x.astype(np.int64) - 255) @ (w.astype(np.int64) - 3)
    np.testing.assert_array_equal(compiled(proto, "MatMulInteger")(x, w), want)
    for name in ("znver4", "sapphirerapids"):
        after = passed(import_onnx(proto).graph, Target.parse(name))
        assert "lowered.matmul_dot" in [v.op for v in after.nodes]
        (got,) = run_graph(after, {"x": x, "w": w}, points).values()
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("stride,pads,c,f", [(1, [1, 1, 1, 1], 3, 5), (2, [0, 1, 1, 0], 4, 16)])
def test_conv_integer(stride: int, pads: list[int], c: int, f: int) -> None:
    x = RNG.integers(0, 256, (2, c, 7, 6)).astype(np.uint8)
    w = RNG.integers(-128, 128, (f, c, 3, 3)).astype(np.int8)
    weights = {"w": w, "xz": np.array(7, np.uint8)}
    node = helper.make_node("ConvInteger", ["x", "w", "xz"], ["y"], strides=[stride] * 2, pads=pads)
    got = np.asarray(compiled(model([node], x, weights, TensorProto.INT32), "ConvInteger")(x))
    wide = np.pad(x.astype(np.int64) - 7, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    views = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
    np.testing.assert_array_equal(got, np.einsum("nchwij,fcij->nfhw", views, w.astype(np.int64)))


def test_qlinear_matmul() -> None:
    x = RNG.integers(0, 256, (6, 48)).astype(np.uint8)
    w = RNG.integers(-128, 128, (48, 20)).astype(np.int8)
    weights = {"w": w, "xs": np.float32(0.02), "xz": np.uint8(120), "ws": np.float32(0.01), "wz": np.int8(0),
               "ys": np.float32(0.05), "yz": np.uint8(128)}  # fmt: skip
    arrays = {k: np.asarray(v) for k, v in weights.items()}
    nodes = [helper.make_node("QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"])]
    got = np.asarray(compiled(model(nodes, x, arrays, TensorProto.UINT8), "QLinearMatMul")(x))
    total = (x.astype(np.int64) - 120) @ w.astype(np.int64)
    want = np.clip(np.round(total * (0.02 * 0.01 / 0.05)) + 128, 0, 255)
    assert np.abs(got.astype(np.int64) - want).max() <= 1  # the factor is rounded to f32
    assert (got == want).mean() > 0.98


@pytest.mark.parametrize(
    "kernel,strides,dilations,pads", [((3,), (1,), (2,), (1, 2)), ((2, 3), (2, 1), (1, 1), (0, 1, 1, 0))]
)
def test_patches(kernel: Any, strides: Any, dilations: Any, pads: Any) -> None:
    x = RNG.integers(-9, 9, (2, 3, *(8, 7)[: len(kernel)])).astype(np.int16)
    depth = 3 * int(np.prod(kernel))
    for more in (0, 1):
        check("lowered.patches", x, kernel=kernel, strides=strides, dilations=dilations, pads=pads, depth=depth + more)
