"""A small ONNX graph builder: layers with seeded random weights, named as a PyTorch exporter names them.

Only `onnx` and NumPy are needed, so the models of the demo can be built without PyTorch.
Weights are drawn so that activations keep a scale of about one through the network: a model whose
outputs die out or explode would hide errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
IR_VERSION = 10
BATCH = "batch"

_DTYPES = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int64": TensorProto.INT64}

Dim = int | str


class Builder:
    """Collects nodes and initializers of one ONNX graph. Values are their names."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    # ---------------------------------------------------------------- values

    def input(self, name: str, shape: Sequence[Dim], dtype: str = "float32") -> str:
        self._inputs.append(helper.make_tensor_value_info(name, _DTYPES[dtype], list(shape)))
        return name

    def output(self, value: str, name: str, shape: Sequence[Dim]) -> None:
        """Declares `value` as the output called `name`: the node that computes it is renamed."""
        for node in self._nodes:
            node.input[:] = [name if x == value else x for x in node.input]
            node.output[:] = [name if x == value else x for x in node.output]
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def weight(self, name: str, array: np.ndarray) -> str:
        self._initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def constant(self, array: np.ndarray) -> str:
        """A constant of the program's structure (a shape, a divisor), not a weight."""
        value = numpy_helper.from_array(array)
        return self.op("Constant", [], value=value)

    def op(self, op_type: str, inputs: Sequence[str], **attributes: object) -> str:
        return self.ops(op_type, inputs, 1, **attributes)[0]

    def ops(self, op_type: str, inputs: Sequence[str], outputs: int, **attributes: object) -> list[str]:
        """Adds a node with several outputs."""
        self._count += 1
        names = [f"{op_type.lower()}_{self._count}"]
        names += [f"{names[0]}_{i}" for i in range(1, outputs)]
        self._nodes.append(helper.make_node(op_type, list(inputs), names, name=f"/{names[0]}", **attributes))
        return names

    # ---------------------------------------------------------------- layers

    def normal(self, shape: Sequence[int], std: float) -> np.ndarray:
        return (self.rng.standard_normal(tuple(shape)) * std).astype(np.float32)

    def linear(self, x: str, name: str, fan_in: int, fan_out: int, gain: float = 2.0**0.5) -> str:
        """Gemm with the weight stored as [out, in], as torch.nn.Linear is exported."""
        weight = self.weight(f"{name}.weight", self.normal((fan_out, fan_in), gain / fan_in**0.5))
        bias = self.weight(f"{name}.bias", self.normal((fan_out,), 0.1))
        return self.op("Gemm", [x, weight, bias], transB=1)

    def dense(self, x: str, name: str, fan_in: int, fan_out: int) -> str:
        """MatMul + Add over the last axis of a tensor of any rank: torch.nn.Linear on more than two dimensions."""
        weight = self.weight(f"{name}.weight", self.normal((fan_in, fan_out), (2.0 / fan_in) ** 0.5))
        bias = self.weight(f"{name}.bias", self.normal((fan_out,), 0.1))
        return self.op("Add", [self.op("MatMul", [x, weight]), bias])

    def conv(
        self, x: str, name: str, c_in: int, c_out: int, kernel: int, stride: int = 1, pad: int = 0, bias: bool = True
    ) -> str:
        std = (2.0 / (c_in * kernel * kernel)) ** 0.5
        inputs = [x, self.weight(f"{name}.weight", self.normal((c_out, c_in, kernel, kernel), std))]
        if bias:
            inputs.append(self.weight(f"{name}.bias", self.normal((c_out,), 0.1)))
        return self.op(
            "Conv",
            inputs,
            dilations=[1, 1],
            group=1,
            kernel_shape=[kernel, kernel],
            pads=[pad] * 4,
            strides=[stride, stride],
        )

    def batch_norm(self, x: str, name: str, channels: int, gain: float = 1.0) -> str:
        uniform = self.rng.uniform
        scale = self.weight(f"{name}.weight", (gain * uniform(0.8, 1.2, channels)).astype(np.float32))
        shift = self.weight(f"{name}.bias", self.normal((channels,), 0.1))
        mean = self.weight(f"{name}.running_mean", self.normal((channels,), 0.1))
        var = self.weight(f"{name}.running_var", uniform(0.8, 1.2, channels).astype(np.float32))
        return self.op("BatchNormalization", [x, scale, shift, mean, var], epsilon=1e-5)

    def layer_norm(self, x: str, name: str, width: int) -> str:
        scale = self.weight(f"{name}.weight", self.rng.uniform(0.8, 1.2, width).astype(np.float32))
        shift = self.weight(f"{name}.bias", self.normal((width,), 0.1))
        return self.op("LayerNormalization", [x, scale, shift], axis=-1, epsilon=1e-5)

    def relu(self, x: str) -> str:
        return self.op("Relu", [x])

    def lstm(self, x: str, h: str, c: str, name: str, fan_in: int, hidden: int) -> list[str]:
        """One layer, one direction. x [steps, batch, fan_in], h and c [1, batch, hidden] (or empty).

        Returns Y [steps, 1, batch, hidden], Y_h and Y_c [1, batch, hidden].
        """
        w = self.weight(f"{name}.W", self.normal((1, 4 * hidden, fan_in), 1 / fan_in**0.5))
        r = self.weight(f"{name}.R", self.normal((1, 4 * hidden, hidden), 1 / hidden**0.5))
        b = self.weight(f"{name}.B", self.normal((1, 8 * hidden), 0.1))
        return self.ops("LSTM", [x, w, r, b, "", h, c], 3, hidden_size=hidden)

    def unsqueeze(self, x: str, axis: int) -> str:
        return self.op("Unsqueeze", [x, self.constant(np.array([axis], np.int64))])

    def squeeze(self, x: str, axis: int) -> str:
        return self.op("Squeeze", [x, self.constant(np.array([axis], np.int64))])

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        return self.op("Reshape", [x, self.constant(np.array(shape, np.int64))])

    def scaled_bytes(self, x: str) -> str:
        """A uint8 image as floats in [0, 1]."""
        return self.op("Div", [self.op("Cast", [x], to=TensorProto.FLOAT), self.constant(np.float32(255))])

    # ---------------------------------------------------------------- result

    def build(self) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, self._initializers)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="tilewright-benchmarks",
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def save(self, path: Path) -> None:
        onnx.save(self.build(), path)
