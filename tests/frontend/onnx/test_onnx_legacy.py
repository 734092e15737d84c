"""Operator sets 1 to 6: what they said in another way, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.frontend.onnx import import_onnx
from tilewright.support.errors import ModelError

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
V = RNG.uniform(0.5, 2, 3).astype(np.float32)


def run(opset: int, op: str, x: Array, weights: dict[str, Array], code: int = TensorProto.FLOAT, **attrs: Any) -> Array:
    nodes = [node(op, ["x", *weights], ["y"], **attrs)]
    compiled = tw.compile(model(nodes, [info("x", ["n", *x.shape[1:]], code)], ["y"], weights, opset=opset))
    result: Array = compiled(x)
    return result


BROADCAST: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": lambda x, y: np.power(np.abs(x), y),
    "Less": np.less,
}


@pytest.mark.daily(4)
@pytest.mark.costly(3)
@pytest.mark.parametrize("op", BROADCAST)
@pytest.mark.parametrize(("axis", "shape"), [(1, (3,)), (1, (3, 4)), (None, (4, 5)), (-1, (5,)), (0, ()), (None, (1,))])
def test_operands_broadcast_at_an_axis(op: str, axis: int | None, shape: tuple[int, ...]) -> None:
    y = RNG.uniform(0.5, 2, shape).astype(np.float32)
    x = np.abs(X) if op == "Pow" else X
    attrs = {} if axis is None else {"axis": axis}
    after = 0 if axis is None or not shape else X.ndim - axis % X.ndim - len(shape)
    want = BROADCAST[op](x, y.reshape((*shape, *[1] * after)))
    np.testing.assert_allclose(run(6, op, x, {"w": y}, broadcast=1, **attrs), want, rtol=2e-6)


def test_an_operand_past_the_end_is_refused() -> None:
    with pytest.raises(ModelError, match="reaches past"):
        nodes = [node("Add", ["x", "w"], ["y"], broadcast=1, axis=3)]
        import_onnx(model(nodes, [info("x", X.shape)], ["y"], {"w": np.zeros((4, 5), np.float32)}, opset=6))


CASES: dict[str, tuple[int, str, dict[str, Array], dict[str, Any], Callable[[], Array]]] = {
    "slopes": (6, "PRelu", {"w": V}, {}, lambda: np.where(X < 0, X * V[:, None, None], X)),
    "one slope": (6, "PRelu", {"w": V[:1]}, {}, lambda: np.where(X < 0, X * V[0], X)),
    "cast": (5, "Cast", {}, {"to": "INT32"}, lambda: X.astype(np.int32)),
    "reshape": (1, "Reshape", {}, {"shape": [0, -1, 5]}, lambda: X.reshape(2, 12, 5)),
    "pad": (1, "Pad", {}, {"paddings": [0, 1, 0, 0, 0, 0, 2, 0], "value": 3.0}, lambda: np.pad(
        X, [(0, 0), (1, 0), (0, 2), (0, 0)], constant_values=3)),
    "tile": (1, "Tile", {"t": np.array([3], np.float32), "a": np.array([2], np.float32)}, {}, lambda: np.tile(
        X, (1, 1, 3, 1))),
    "upsample": (1, "Upsample", {}, {"height_scale": 2.0, "width_scale": 3.0}, lambda: X.repeat(2, 2).repeat(3, 3)),
    "split": (1, "Split", {"s": np.array([3], np.float32)}, {"axis": 1}, lambda: X),
    "relu": (1, "Relu", {}, {"consumed_inputs": [0]}, lambda: np.maximum(X, 0)),
    "dropout": (1, "Dropout", {}, {"is_test": 1, "ratio": 0.3}, lambda: X),
    "norm": (6, "LpPool", {}, {"kernel_shape": [4, 5], "p": 2}, lambda: np.sqrt((X**2).sum((2, 3), keepdims=True))),
    "old norm": (1, "GlobalLpPool", {}, {"p": 3.0}, lambda: (np.abs(X) ** 3).sum((2, 3), keepdims=True) ** (1 / 3)),
    "affine": (1, "Affine", {}, {"alpha": 2.0, "beta": -1.0}, lambda: 2 * X - 1),
    "softplus": (1, "ParametricSoftplus", {}, {"alpha": 2.0, "beta": 0.5}, lambda: 2 * np.log1p(np.exp(0.5 * X))),
    "tanh": (1, "ScaledTanh", {}, {"alpha": 2.0, "beta": 0.5}, lambda: 2 * np.tanh(0.5 * X)),
    "image": (1, "ImageScaler", {}, {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}, lambda: 2 * X + np.array(
        [1, 2, 3], np.float32)[:, None, None]),
    "crop": (1, "Crop", {}, {"border": [1, 0, 2, 1]}, lambda: X[:, :, :3, 1:3]),
    "crop to": (1, "Crop", {}, {"border": [1, 2, 0, 0], "scale": [2, 3]}, lambda: X[:, :, 2:4, 1:4]),
}  # fmt: skip


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", CASES)
def test_old_forms(name: str) -> None:
    opset, op, weights, attrs, want = CASES[name]
    got = run(opset, op, X, weights, **attrs)
    assert got.dtype == want().dtype
    np.testing.assert_allclose(got, want(), rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("opset", [1, 6, 7, 8])
@pytest.mark.parametrize("spatial", [0, 1])
def test_batch_norm_with_statistics_of_channels_or_elements(opset: int, spatial: int) -> None:
    shape = (3,) if spatial else (3, 4, 5)
    scale, bias, mean, var = (RNG.uniform(0.5, 2, shape).astype(np.float32) for _ in range(4))
    attrs = {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]} if opset == 1 else {"is_test": 1} if opset < 7 else {}
    weights = {"scale": scale, "bias": bias, "mean": mean, "var": var}
    got = run(opset, "BatchNormalization", X, weights, spatial=spatial, epsilon=1e-3, **attrs)
    s, b, m, v = (a.reshape(3, 1, 1) if spatial else a for a in (scale, bias, mean, var))
    np.testing.assert_allclose(got, (X - m) / np.sqrt(v + 1e-3) * s + b, rtol=1e-5, atol=1e-5)


def test_a_matrix_product_with_a_broadcast_bias() -> None:
    x, w = X[:, 0, 0], RNG.standard_normal((6, 5)).astype(np.float32)
    bias = RNG.standard_normal(6).astype(np.float32)
    got = run(6, "Gemm", x, {"w": w, "b": bias}, transB=1, broadcast=1)
    np.testing.assert_allclose(got, x @ w.T + bias, rtol=1e-5, atol=1e-5)
