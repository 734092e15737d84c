"""Layers with operands of 16 bits, against NumPy's numbers of 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from tests.quantization.test_quantize import model_of, network, samples
from tilewright.ir.dtype import f16

RNG = np.random.default_rng(16)


def half(x: Any) -> Any:
    return x.astype(np.float16).astype(np.float64)


@pytest.mark.parametrize("rows", [1, 64])
def test_products_have_operands_of_f16_and_sums_of_f32(rows: int) -> None:
    w1, w2 = (RNG.standard_normal(s).astype(np.float32) / 8 for s in ((48, 64), (64, 10)))
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m"]),
        helper.make_node("Tanh", ["m"], ["t"]),
        helper.make_node("MatMul", ["t", "w2"], ["y"]),
    ]
    model, data = model_of(nodes, {"w1": w1, "w2": w2}, [rows, 48], [rows, 10]), samples(RNG, rows, 48)
    q = tw.quantize(model, calibrate=data, precision="fp16", max_drop=0.01)
    assert q.report.chosen == "fp16" and {r.type for r in q.report.layers} == {"fp16"}
    hidden = np.tanh(half(data[0]) @ half(w1)).astype(np.float32)
    want = half(hidden) @ half(w2)
    # A number in the middle of two numbers falls to either.
    np.testing.assert_allclose(q(data[0]), want, rtol=0, atol=2e-4 * np.abs(want).max())
    assert q.report.metric[1] > 0.999
    q.update({"w1": w1 * 2, "w2": w2})
    updated = half(np.tanh(half(data[0]) @ half(w1 * 2)).astype(np.float32)) @ half(w2)
    np.testing.assert_allclose(q(data[0]), updated, rtol=0, atol=2e-4 * np.abs(updated).max())


def test_packed_weights_and_what_is_handed_on_have_16_bits() -> None:
    w1, w2 = (RNG.standard_normal((256, 256)).astype(np.float32) / 16 for _ in range(2))
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["m"]), helper.make_node("MatMul", ["m", "w2"], ["y"])]
    model = model_of(nodes, {"w1": w1, "w2": w2}, [1, 256], [1, 256])
    q = tw.quantize(model, calibrate=samples(RNG, 1, 256), precision="fp16")
    shown = q.show("graph")
    assert shown.count(f"{f16}[256, 256]") + shown.count(f"{f16}[") >= 3


@pytest.mark.parametrize("window,channels,size", [(3, 32, 12), (1, 128, 28)], ids=["Winograd", "direct"])
def test_convolutions_read_what_has_16_bits(window: int, channels: int, size: int) -> None:
    """No map of f32 lies between two convolutions, and results are those of NumPy's numbers of 16 bits."""
    w1, w2 = (RNG.standard_normal((channels, channels, window, window)).astype("f4") for _ in range(2))
    pads = [window // 2] * 4
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["m"], pads=pads),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("Conv", ["r", "w2"], ["y"], pads=pads),
    ]
    shape = [1, channels, size, size]
    model = model_of(nodes, {"w1": w1, "w2": w2}, shape, shape)
    q = tw.quantize(model, calibrate=samples(RNG, *shape), precision="fp16")
    x = RNG.standard_normal(shape).astype("f4")
    between = [k.split(" + ") for k in labels(q) if "conv" in k]
    # any machine: how a convolution is computed is a host's choice, its operands' bits are not
    assert "cast" in between[-1][: between[-1].index(convolution(between[-1]))], between
    assert between[-2][-1] == "cast" and between[-2][-2] != "cast", between
    hidden = np.maximum(correlated(half(x), half(w1)), 0).astype(np.float32)
    want = correlated(half(hidden), half(w2))
    np.testing.assert_allclose(q(x), want, rtol=0, atol=4e-4 * np.abs(want).max())


def convolution(label: list[str]) -> str:
    return next(op for op in label if "conv" in op)


def labels(model: tw.Model) -> list[str]:
    x = np.zeros([int(d) for d in model.inputs[0].shape], np.float32)
    return [k.label for k in model.profile(x, repeat=1).kernels]


def correlated(x: Any, w: Any) -> Any:
    border = w.shape[-1] // 2
    padded = np.pad(x, ((0, 0), (0, 0), (border, border), (border, border)))
    views = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    return np.einsum("ncijhw,fchw->nfij", views, w, optimize=True)


def test_convolutions_and_weights_that_are_too_large() -> None:
    data = samples(RNG, 2, 3, 8, 8)
    q = tw.quantize(network(RNG), calibrate=data, precision="fp16")
    assert q.report.chosen == "fp16" and 0.999 < q.report.metric[1] < 1
    w = np.full((4, 4), 1e6, np.float32)
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": w}, [2, 4], [2, 4])
    report = tw.quantize(model, calibrate=samples(RNG, 2, 4), precision="fp16").report
    assert report.chosen == "fp32" and "no numbers of f16" in report.reason
