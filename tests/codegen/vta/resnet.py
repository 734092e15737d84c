"""An 8-bit ResNet-18 with random weights as an ONNX file, and what it is by NumPy's integers.

Scales are powers of two. Each layer's shift is chosen from its own sums, as a calibration would.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


class Network:
    """A model that grows layer by layer, beside the numbers that it computes for one input: bytes, as QDQ with a scale
    of 1 for all activations."""

    def __init__(self, image: Array, style: str = "qdq", seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.style = style
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.values: dict[str, Array] = {}
        self.scales: dict[int, str] = {}
        self.zero = self.weight("zero", np.int8(0))
        self.values["x_q"] = np.clip(np.rint(image[0]), -128, 127).astype(np.int8)
        self.add("QuantizeLinear", ["x", self.scale(0), self.zero], "x_q")

    def weight(self, name: str, value: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def scale(self, shift: int) -> str:
        """A scale of 2^-shift."""
        if shift not in self.scales:
            self.scales[shift] = self.weight(f"scale{shift}", np.float32(2.0**-shift))
        return self.scales[shift]

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def real(self, name: str, shift: int = 0) -> str:
        """A dequantised value."""
        return self.add("DequantizeLinear", [name, self.scale(shift), self.zero], f"{name}_r{len(self.nodes)}")

    def quantised(self, name: str, real: str, relu: bool) -> str:
        if relu:
            real = self.add("Relu", [real], f"{name}_relu")
        return self.add("QuantizeLinear", [real, self.scale(0), self.zero], name)

    def conv(self, x: str, channels: int, kernel: int, stride: int = 1, relu: bool = True, groups: int = 1) -> str:
        name, source = f"c{len(self.nodes)}", self.values[x]
        cin = source.shape[0] // groups
        w = self.rng.integers(-127, 128, (channels, cin, kernel, kernel)).astype(np.int8)
        bias = self.rng.integers(-2000, 2000, channels).astype(np.int32)
        pad = kernel // 2
        total = convolved(source, w, stride, pad, groups) + bias[:, None, None]
        shift = max(1, int(np.ceil(np.log2(max(1.0, np.abs(total).max() / 127)))) - 1)
        self.values[name] = requantised(total, shift, 0 if relu else -128)
        wq = self.weight(f"{name}_w", w)
        pads, strides = [pad] * 4, [stride, stride]
        attributes: dict[str, Any] = {"pads": pads, "strides": strides, "group": groups}
        b = self.weight(f"{name}_b", bias)
        if self.style == "qop" and not relu:
            scales = [self.scale(0), self.zero, wq, self.scale(shift), self.zero, self.scale(0), self.zero, b]
            return self.add("QLinearConv", [x, *scales], name, **attributes)
        zero = self.weight(f"{name}_z", np.int32(0))
        bias_real = self.add("DequantizeLinear", [b, self.scale(shift), zero], f"{name}_br")
        real = self.add("Conv", [self.real(x), self.real(wq, shift), bias_real], f"{name}_s", **attributes)
        return self.quantised(name, real, relu)

    def sum(self, a: str, b: str) -> str:
        name = f"a{len(self.nodes)}"
        total = self.values[a].astype(np.int64) + self.values[b]
        self.values[name] = np.clip(total, 0, 127).astype(np.int8)
        return self.quantised(name, self.add("Add", [self.real(a), self.real(b)], f"{name}_s"), True)

    def pool(self, x: str) -> str:
        name, source = f"p{len(self.nodes)}", self.values[x]
        padded = np.pad(source, ((0, 0), (1, 1), (1, 1)), constant_values=-128)
        high, wide = ((n - 1) // 2 + 1 for n in source.shape[1:])
        parts = [padded[:, y : y + 2 * high - 1 : 2, q : q + 2 * wide - 1 : 2] for y in range(3) for q in range(3)]
        self.values[name] = np.stack(parts).max(0)
        attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
        return self.quantised(name, self.add("MaxPool", [self.real(x)], f"{name}_m", **attributes), False)

    def model(self, last: str, classes: int, image: Array) -> onnx.ModelProto:
        """The model, whose outputs are the last layer's bytes and, by the host, the mean's product with a matrix."""
        mean = self.add("GlobalAveragePool", [self.real(last)], "mean")
        flat = self.add("Flatten", [mean], "flat")
        channels = self.values[last].shape[0]
        matrix = self.weight("matrix", self.rng.normal(size=(channels, classes)).astype(np.float32))
        self.add("MatMul", [flat, matrix], "y")
        self.add("Identity", [last], "features")
        source = [helper.make_tensor_value_info("x", TensorProto.FLOAT, image.shape)]
        shape = [1, *self.values[last].shape]
        results = [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, classes]),
            helper.make_tensor_value_info("features", TensorProto.INT8, shape),
        ]
        graph = helper.make_graph(self.nodes, "resnet18", source, results, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def convolved(x: Array, w: Array, stride: int, pad: int, groups: int = 1) -> Array:
    """A convolution of integers; doubles hold the sums exactly."""
    if groups > 1:
        parts = zip(np.split(x, groups), np.split(w, groups), strict=True)
        return np.concatenate([convolved(a, b, stride, pad) for a, b in parts])
    cout, cin, kernel, _ = w.shape
    padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad)))
    high, wide = ((n + 2 * pad - kernel) // stride + 1 for n in x.shape[1:])
    total = np.zeros((cout, high * wide))
    for y in range(kernel):
        for q in range(kernel):
            part = padded[:, y : y + (high - 1) * stride + 1 : stride, q : q + (wide - 1) * stride + 1 : stride]
            total += w[:, :, y, q].astype(np.float64) @ part.reshape(cin, -1)
    return total.reshape(cout, high, wide).astype(np.int64)


def requantised(total: Array, shift: int, low: int) -> Array:
    return np.clip((total + (1 << shift - 1)) >> shift, low, 127).astype(np.int8)


def resnet18(
    size: int = 224, width: int = 64, style: str = "qdq", seed: int = 0
) -> tuple[onnx.ModelProto, Array, Array]:
    """The model, an input, and its features by NumPy."""
    image = np.random.default_rng(seed).integers(-128, 128, (1, 3, size, size)).astype(np.float32)
    net = Network(image, style, seed)
    x = net.pool(net.conv("x_q", width, 7, 2))
    for stage in range(4):
        channels = width << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = net.conv(net.conv(x, channels, 3, stride), channels, 3, relu=False)
            if stride > 1:
                x = net.conv(x, channels, 1, stride, relu=False)
            x = net.sum(y, x)
    return net.model(x, 10, image), image, net.values[x]
