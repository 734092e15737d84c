"""ONNX's small types as storage: moved, converted, quantised as ONNX's reference does, and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.frontend.onnx import import_onnx
from tilewright.support.errors import ModelError, UnsupportedError

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(8)

TYPES: dict[int, Any] = {
    T.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
    T.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    T.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    T.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    T.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    T.INT2: ml_dtypes.int2,
    T.UINT2: ml_dtypes.uint2,
    T.INT4: ml_dtypes.int4,
    T.UINT4: ml_dtypes.uint4,
}
INTEGERS = [np.dtype(t) for code, t in TYPES.items() if "INT" in T.DataType.Name(code)]
NAMES = {code: T.DataType.Name(code) for code in TYPES}
every = pytest.mark.parametrize("code", TYPES, ids=NAMES.get)


def values(code: int, *shape: int) -> Array:
    t = np.dtype(TYPES[code])
    if code in (T.INT2, T.UINT2, T.INT4, T.UINT4):
        low, high = int(ml_dtypes.iinfo(t).min), int(ml_dtypes.iinfo(t).max)
        return RNG.integers(low, high + 1, shape).astype(t)
    array = RNG.standard_normal(shape).astype(np.float32) * 3
    return array.astype(t)


def same(m: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    """Bit for bit what ONNX's reference gives."""
    got = tw.compile(m).run(feeds)
    for o, want in zip(m.graph.output, ReferenceEvaluator(m).run(None, feeds), strict=True):
        assert got[o.name].dtype == want.dtype
        np.testing.assert_array_equal(bits(got[o.name]), bits(want))


def bits(a: Array) -> Array:
    """The bits that count: NumPy leaves those above a small integer's undefined."""
    return a.astype(np.int8) if a.dtype in INTEGERS else np.ascontiguousarray(a).view(np.uint8)


@every
def test_elements_move(code: int) -> None:
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("Concat", ["t", "w"], ["c"], axis=0),
        node("Slice", ["c", "one", "six"], ["s"]),
        node("Reshape", ["s", "shape"], ["r"]),
        node("Where", ["chosen", "r", "r"], ["v"]),
        node("Identity", ["v"], ["y"]),
        node("Gather", ["x", "index"], ["z"], axis=1),
    ]
    weights = {
        "w": values(code, 2, 3), "one": np.array([1]), "six": np.array([6]), "shape": np.array([3, 5]),
        "chosen": RNG.random((3, 5)) < 0.5, "index": np.array([4, 0, 4]),
    }  # fmt: skip
    outputs = [info("y", [3, 5], code), info("z", [3, 3], code)]
    same(model(nodes, [info("x", [3, 5], code)], outputs, weights, opset=25), {"x": values(code, 3, 5)})


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@every
@pytest.mark.parametrize("other", [T.FLOAT, T.FLOAT16, T.BFLOAT16])
def test_casts(code: int, other: int) -> None:
    nodes = [node("Cast", ["x"], ["wide"], to=other), node("CastLike", ["wide", "x"], ["back"])]
    m = model(nodes, [info("x", [7, 9], code)], [info("wide", [7, 9], other), info("back", [7, 9], code)], opset=25)
    same(m, {"x": values(code, 7, 9)})


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("axis", [None, 1, "block"])
@every
def test_quantised(code: int, axis: Any) -> None:
    """One scale, one a row, one a block of two: to the small type and back."""
    shape = {None: (), 1: (4,), "block": (3, 2)}[axis]
    scale = RNG.uniform(0.3, 0.8, shape).astype(np.float32)
    zero = np.zeros(shape, TYPES[code])
    attrs = {} if axis is None else {"axis": 1} if axis == 1 else {"axis": 1, "block_size": 2}
    nodes = [
        node("QuantizeLinear", ["x", "s", "zero"], ["q"], **attrs),
        node("DequantizeLinear", ["q", "s", "zero"], ["y"], **attrs),
    ]
    m = model(
        nodes, [info("x", [3, 4])], [info("q", [3, 4], code), info("y", [3, 4])], {"s": scale, "zero": zero}, opset=25
    )
    same(m, {"x": (3 * RNG.standard_normal((3, 4))).astype(np.float32)})


@every
def test_constants_in_every_place_of_a_file(code: int, tmp_path: Path) -> None:
    w = values(code, 3, 5)
    tensors = [onnx.numpy_helper.from_array(w, "w")]
    tensors.append(onnx.helper.make_tensor("w", code, [3, 5], w.astype(np.float32).reshape(-1).tolist()))
    outside = onnx.numpy_helper.from_array(w, "w")
    onnx.external_data_helper.set_external_data(outside, "w.bin")
    (tmp_path / "w.bin").write_bytes(outside.raw_data)
    outside.ClearField("raw_data")
    tensors.append(outside)
    for tensor in tensors:
        m = model([node("Cast", ["w"], ["f"], to=1), node("Add", ["f", "x"], ["y"])], [info("x", [5])], ["y"], opset=25)
        m.graph.initializer.append(tensor)
        path = tmp_path / "m.onnx"
        path.write_bytes(m.SerializeToString())
        got = tw.compile(path)(np.zeros(5, np.float32))
        np.testing.assert_array_equal(got, w.astype(np.float32))


@every
def test_data_of_the_wrong_length(code: int) -> None:
    tensor = onnx.numpy_helper.from_array(values(code, 3, 5), "w")
    tensor.raw_data = tensor.raw_data[:-1]
    m = model([node("Cast", ["w"], ["y"], to=1)], [], ["y"], opset=25)
    m.graph.initializer.append(tensor)
    with pytest.raises(ModelError, match="wrong length"):
        tw.compile(m)


SMALL = [code for code in TYPES if "FLOAT8" in NAMES[code]]


@pytest.mark.parametrize("op", ["IsNaN", "IsInf"])
@pytest.mark.parametrize("code", SMALL, ids=NAMES.get)
def test_what_is_no_number(code: int, op: str) -> None:
    x = np.arange(256, dtype=np.uint8).view(TYPES[code])
    m = model([node(op, ["x"], ["y"])], [info("x", ["n"], code)], ["y"], opset=20)
    want = (np.isnan if op == "IsNaN" else np.isinf)(x.astype(np.float32))
    np.testing.assert_array_equal(tw.compile(m)(x), want)


@pytest.mark.parametrize("code", SMALL, ids=NAMES.get)
def test_caches_of_small_floats(code: int) -> None:
    inputs = [info("p", [2, 5, 3], code), info("u", [2, 2, 3], code), info("i", [2], T.INT64)]
    m = model([node("TensorScatter", ["p", "u", "i"], ["y"], axis=1)], inputs, [info("y", [2, 5, 3], code)], opset=24)
    same(m, {"p": values(code, 2, 5, 3), "u": values(code, 2, 2, 3), "i": np.array([1, 3])})


@pytest.mark.parametrize("code", [T.INT32, T.UINT8])
def test_samples_of_integers(code: int) -> None:
    x = RNG.integers(0, 99, (1, 2, 4, 5)).astype(np.int32 if code == T.INT32 else np.uint8)
    n = node("GridSample", ["x", "g"], ["y"], mode="nearest")
    inputs = [info("x", x.shape, code), info("g", [1, 3, 3, 2])]
    m = model([n], inputs, [info("y", [1, 2, 3, 3], code)], opset=22)
    same(m, {"x": x, "g": RNG.uniform(-1.2, 1.2, (1, 3, 3, 2)).astype(np.float32)})


def test_arithmetic_is_refused_by_name() -> None:
    m = model([node("Add", ["x", "x"], ["y"])], [info("x", [3], T.FLOAT8E5M2)], ["y"], opset=25)
    with pytest.raises(UnsupportedError, match="Add does not compute with f8e5m2"):
        import_onnx(m)


@pytest.mark.parametrize(("code", "reduction"), [(T.BOOL, "add"), (T.FLOAT8E5M2, "max")])
def test_scatters_that_cannot_combine(code: int, reduction: str) -> None:
    n = node("ScatterElements", ["x", "i", "u"], ["y"], reduction=reduction)
    inputs = [info("x", [4], code), info("i", [2], T.INT64), info("u", [2], code)]
    with pytest.raises(UnsupportedError, match="is not defined on"):
        import_onnx(model([n], inputs, ["y"], opset=18))
