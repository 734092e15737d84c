"""Models with `target="vta-1x16x16"`: layers go to VTA, the host has the rest, and the numbers are NumPy's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.codegen.vta.resnet import Network, resnet18
from tilewright.codegen.vta import machine  # its scopes are known to all tests
from tilewright.support.errors import TargetError
from tilewright.targets.target import Target

TARGET = "vta-1x16x16"
assert machine.MEMORIES


def layers(model: tw.Model) -> list[str]:
    return re.findall(r'= lowered.vta\(.*layer = "(\w+)"', str(model.show("graph")))


@pytest.mark.daily(2)
@pytest.mark.parametrize("style", ["qdq", "qop"])
def test_a_small_network(style: str, tmp_path: Path) -> None:
    """A convolution, one of stride 2, a depthwise one, a sum and a pool; also from its file."""
    image = np.random.default_rng(3).integers(-128, 128, (1, 3, 16, 16)).astype(np.float32)
    net = Network(image, style)
    x = net.pool(net.conv("x_q", 24, 3))
    y = net.conv(net.conv(x, 24, 3, groups=24), 40, 1, 2, relu=False)
    last = net.sum(y, net.conv(x, 40, 3, 2, relu=False))
    proto = net.model(last, 5, image)
    model = tw.compile(proto, target=TARGET)
    assert sorted(layers(model)) == ["addition", *["convolution"] * 4, "maxpool"]
    results = model.run({"x": image})
    assert np.array_equal(np.asarray(results["features"])[0], net.values[last])
    host = tw.compile(proto)  # words64 are rounded otherwise there
    assert np.abs(np.asarray(host.run({"x": image})["features"]).astype(int) - results["features"]).max() <= 4
    mean = net.values[last].reshape(40, -1).astype(np.float64).mean(1)
    matrix = next(w for w in net.weights if w.name == "matrix")
    wanted = mean @ np.frombuffer(matrix.raw_data, np.float32).reshape(40, 5)
    assert np.allclose(results["y"], wanted, rtol=1e-4, atol=1e-3)
    model.save(tmp_path / "m.tw")
    reloaded = tw.load(tmp_path / "m.tw")
    assert np.array_equal(reloaded.run({"x": image})["features"], results["features"])


def one_layer(
    op: str, inputs: dict[str, Any], weights: dict[str, Any], shift: int, shape: Any, **attributes: Any
) -> Any:
    """A model of one operator between bytes: activations of scale 1, weights (and a bias of int32) of 2^-shift."""
    net = Network(np.zeros((1, 1, 1, 1), np.float32))
    net.nodes.clear()
    names = []
    for name in inputs:
        net.add("QuantizeLinear", [name, net.scale(0), net.zero], f"{name}_q")
        names.append(net.real(f"{name}_q"))
    for name, w in weights.items():
        zero = net.weight(f"{name}_z", w.dtype.type(0))
        names.append(net.add("DequantizeLinear", [net.weight(name, w), net.scale(shift), zero], f"{name}_r"))
    if op == "MatMul" and len(names) > 2:
        net.add("MatMul", names[:2], "product")
        net.add("Add", ["product", names[2]], "real")
    else:
        net.add(op, names, "real", **attributes)
    out = net.scale(0 if weights else shift)
    net.add("QuantizeLinear", ["real", out, net.zero], "y")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in inputs.items()]
    result = [helper.make_tensor_value_info("y", TensorProto.INT8, shape)]
    graph = helper.make_graph(net.nodes, op, values, result, net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(-128, 128, shape, np.int8)


def rounded(total: Any, shift: int) -> Any:
    return np.clip((total + (1 << shift - 1)) >> shift, -128, 127)


@pytest.mark.parametrize("kernel", [(2, 2), (4, 2), None])
def test_averages(kernel: tuple[int, int] | None) -> None:
    x = numbers(1, 1, 20, 8, 8).astype(np.float32)
    high, wide = kernel or (8, 8)
    total = x.astype(np.int64).reshape(1, 20, 8 // high, high, 8 // wide, wide).sum((3, 5))
    wanted = rounded(total, int(np.log2(high * wide)))
    attributes = {} if kernel is None else {"kernel_shape": kernel, "strides": kernel}
    op = "GlobalAveragePool" if kernel is None else "AveragePool"
    if kernel == (4, 2):
        attributes["strides"] = (4, 4)  # one stride for both: every other column
        wanted = wanted[..., ::2]
    model = tw.compile(one_layer(op, {"x": x}, {}, 0, wanted.shape, **attributes), target=TARGET)
    assert layers(model) == ["convolution"]
    assert np.array_equal(model.run({"x": x})["y"], wanted)


@pytest.mark.daily(2)
@pytest.mark.parametrize(("kernel", "pad", "more"), [(4, 1, 0), (3, 1, 1), (2, 0, 0), (4, 0, 0)])
def test_transposed_convolutions(kernel: int, pad: int, more: int) -> None:
    x, w = numbers(1, 1, 20, 5, 6), numbers(2, 20, 24, kernel, kernel)
    bias = np.random.default_rng(3).integers(-9000, 9000, 24).astype(np.int32)
    whole = np.zeros((24, 2 * 4 + kernel + more, 2 * 5 + kernel + more), np.int64)
    for y in range(5):
        for q in range(6):
            part = np.einsum("c,cokl->okl", x[0, :, y, q].astype(np.int64), w.astype(np.int64))
            whole[:, 2 * y : 2 * y + kernel, 2 * q : 2 * q + kernel] += part
    whole = whole[None, :, pad : whole.shape[1] - pad, pad : whole.shape[2] - pad]
    wanted = rounded(whole + bias[:, None, None], 11)
    inputs = {"x": x.astype(np.float32)}
    attributes = {"strides": [2, 2], "pads": [pad] * 4, "output_padding": [more] * 2}
    model = tw.compile(
        one_layer("ConvTranspose", inputs, {"w": w, "b": bias}, 11, wanted.shape, **attributes), target=TARGET
    )
    assert layers(model) == ["convolution"]
    assert np.array_equal(model.run(inputs)["y"], wanted)


def test_products_with_weights() -> None:
    x, w = numbers(1, 3, 7, 40), numbers(2, 40, 24)
    bias = np.random.default_rng(3).integers(-9000, 9000, 24).astype(np.int32)
    wanted = rounded(x.astype(np.int64) @ w.astype(np.int64) + bias, 11)
    inputs = {"x": x.astype(np.float32)}
    model = tw.compile(one_layer("MatMul", inputs, {"w": w, "b": bias}, 11, wanted.shape), target=TARGET)
    assert layers(model) == ["product"]
    assert np.array_equal(model.run(inputs)["y"], wanted)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("shape", "offloaded"),
    [((1,), True), ((1, 1), True), ((1, 24), True), ((24, 1), False), ((24, 24), False)],
)
def test_biases_of_products(shape: tuple[int, ...], offloaded: bool) -> None:
    """VTA adds one number a column. What is added row by row, or element by element, keeps the host's operators, also
    where there are as many rows as columns."""
    x, w = numbers(1, 24, 40), numbers(2, 40, 24)
    bias = np.random.default_rng(3).integers(-9000, 9000, shape).astype(np.int32)
    wanted = rounded(x.astype(np.int64) @ w.astype(np.int64) + bias, 11)
    inputs = {"x": x.astype(np.float32)}
    model = tw.compile(one_layer("MatMul", inputs, {"w": w, "b": bias}, 11, wanted.shape), target=TARGET)
    assert layers(model) == (["product"] if offloaded else [])
    assert np.abs(np.asarray(model.run(inputs)["y"]).astype(int) - wanted).max() <= (0 if offloaded else 1)


@pytest.mark.parametrize("count", [1, 3])
def test_products_of_computed_values(count: int) -> None:
    a, b = numbers(1, count, 9, 33), numbers(2, count, 33, 20)
    wanted = rounded(a.astype(np.int64) @ b.astype(np.int64), 9)
    inputs = {"a": a.astype(np.float32), "b": b.astype(np.float32)}
    model = tw.compile(one_layer("MatMul", inputs, {}, -9, wanted.shape), target=TARGET)
    assert layers(model) == ["product"] * count
    assert np.array_equal(model.run(inputs)["y"], wanted)


@pytest.mark.parametrize(("shift", "factor"), [(3, 1), (7, 4)])
def test_exact_models_round_ties_to_even(shift: int, factor: int) -> None:
    """Exact models round as ONNX and the host do: many of the sums, of few products, lie midway between two results."""
    x, w = numbers(1, 1, 16, 6, 6) // 32, numbers(2, 16, 16, 1, 1) // 32
    inputs = {"x": (x * factor).astype(np.float32)}
    weights = {"w": (w * factor).astype(np.int8)}
    total = np.einsum("ncyx,oc->noyx", inputs["x"], weights["w"][:, :, 0, 0].astype(np.float64))
    wanted = np.clip(np.rint(total / (1 << shift)), -128, 127)
    proto = one_layer("Conv", inputs, weights, shift, wanted.shape)
    exact, fast = (tw.compile(proto, target=TARGET, fast=mode) for mode in ("exact", "auto"))
    assert layers(exact) == layers(fast) == ["convolution"]
    assert np.array_equal(exact.run(inputs)["y"], wanted)
    assert np.array_equal(exact.run(inputs)["y"], tw.compile(proto).run(inputs)["y"])
    assert not np.array_equal(fast.run(inputs)["y"], wanted), "no sum lies in the middle"


def test_what_vta_cannot_shift_stays_on_the_host() -> None:
    image = np.random.default_rng(3).integers(-128, 128, (1, 16, 6, 6)).astype(np.float32)
    net = Network(image)
    last = net.conv("x_q", 16, 3)
    proto = net.model(last, 2, image)
    for w in proto.graph.initializer:
        if w.name.startswith("scale") and w.name != "scale0":
            w.raw_data = np.float32(0.013).tobytes()
    model = tw.compile(proto, target=TARGET)
    assert layers(model) == []
    assert np.array_equal(model.run({"x": image})["features"], tw.compile(proto).run({"x": image})["features"])


def test_the_target_is_the_host_with_a_device() -> None:
    target = Target.parse(TARGET)
    assert target.accelerator == TARGET and target.cpu == Target.on_host("host").cpu
    assert target.fingerprint != Target.on_host("host").fingerprint
    with pytest.raises(TargetError, match=TARGET):
        Target.parse("vta-9")


def test_a_small_resnet() -> None:
    proto, image, wanted = resnet18(32, 16)
    model = tw.compile(proto, target=TARGET)
    assert len(layers(model)) == 29
    assert np.array_equal(np.asarray(model.run({"x": image})["features"])[0], wanted)
