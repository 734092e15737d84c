"""An ONNX model as a PyTorch module, for the peers that start from PyTorch: `module(proto)`.

It covers the operators that the policy suite and the layers use. Weights become buffers; shapes, axes and other
structure are read when the module is made, so that a call is tensor functions alone and `torch.compile` sees one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

Attributes = dict[str, Any]
Values = Sequence[Any]
"""Tensors; integers or lists of them where they are known when the module is made; None where an input is left out."""


@dataclass(frozen=True, slots=True)
class _Known:
    """An integer or a list that belongs to the structure; torch.compile takes it as a constant, unlike an array."""

    value: Any


class OnnxModule(nn.Module):
    """Runs the nodes in order. Takes the graph's inputs in order and returns its outputs as a tuple."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        super().__init__()
        graph = proto.graph
        known = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                known[node.output[0]] = numpy_helper.to_array(helper.get_node_attr_value(node, "value"))
        self.inputs = [v.name for v in graph.input if v.name not in known]
        self.outputs = [v.name for v in graph.output]
        self.weights: dict[str, str] = {}
        nodes = [_lstm_as_torch_has_it(node, known) if node.op_type == "LSTM" else node for node in graph.node]
        for number, (name, array) in enumerate(known.items()):
            if array.dtype.kind == "f":
                self.register_buffer(f"w{number}", torch.from_numpy(np.array(array)))
                self.weights[name] = f"w{number}"
        self.steps = [self._step(node, known) for node in nodes if node.op_type != "Constant"]

    def _step(self, node: onnx.NodeProto, known: dict[str, Any]) -> tuple[Any, list[Any], list[str]]:
        if node.op_type not in OPERATORS:
            raise NotImplementedError(f"the PyTorch form of {node.op_type} is not written (node {node.name})")
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        operands: list[Any] = []
        for name in node.input:
            floating = name not in known or known[name].dtype.kind == "f"
            floating &= node.op_type != "Resize" or name not in known
            operands.append((name or None) if floating else _Known(known[name].tolist()))
        function = OPERATORS[node.op_type]
        return (lambda values: function(values, attributes)), operands, list(node.output)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values: dict[str, Any] = dict(zip(self.inputs, inputs, strict=True))
        for name, buffer in self.weights.items():
            values[name] = getattr(self, buffer)
        for function, operands, names in self.steps:
            match = function([x.value if isinstance(x, _Known) else values[x] if x else None for x in operands])
            results = match if isinstance(match, tuple) else (match,)
            for name, result in zip(names, results, strict=False):
                values[name] = result
        return tuple(values[name] for name in self.outputs)


def module(proto: onnx.ModelProto) -> OnnxModule:
    """The module in evaluation mode; NotImplementedError names an operator that is not covered."""
    return OnnxModule(proto).eval()


def _pair(pads: Sequence[int], rank: int) -> tuple[list[int], list[int] | None]:
    """Pads that a torch function can take, and otherwise what `F.pad` takes."""
    before, after = list(pads[:rank]), list(pads[rank:])
    if before == after:
        return before, None
    both = [side for pair in zip(reversed(before), reversed(after), strict=True) for side in pair]
    return [0] * rank, both


def _conv(v: Values, a: Attributes) -> Tensor:
    x, rank = v[0], v[1].dim() - 2
    pads, extra = _pair(a.get("pads", [0] * 2 * rank), rank)
    x = F.pad(x, extra) if extra else x
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    bias = v[2] if len(v) > 2 else None
    strides, dilations = (a.get(name, [1] * rank) for name in ("strides", "dilations"))
    return function(x, v[1], bias, strides, pads, dilations, a.get("group", 1))


def _conv_transpose(v: Values, a: Attributes) -> Tensor:
    rank = v[1].dim() - 2
    pads, _ = _pair(a.get("pads", [0] * 2 * rank), rank)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    extra = a.get("output_padding", [0] * rank)
    return function(v[0], v[1], v[2] if len(v) > 2 else None, a["strides"], pads, extra, a.get("group", 1))


def _gemm(v: Values, a: Attributes) -> Tensor:
    x = v[0].t() if a.get("transA") else v[0]
    if a.get("transB") and a.get("alpha", 1.0) == a.get("beta", 1.0) == 1.0:
        return F.linear(x, v[1], v[2] if len(v) > 2 else None)
    y = a.get("alpha", 1.0) * (x @ (v[1].t() if a.get("transB") else v[1]))
    return y + a.get("beta", 1.0) * v[2] if len(v) > 2 else y


def _lstm_as_torch_has_it(node: onnx.NodeProto, known: dict[str, Any]) -> onnx.NodeProto:
    """An LSTM of one direction with inputs x, w, r, bias of w, bias of r, h, c, its gates in PyTorch's order.

    ONNX orders them i, o, f, c and PyTorch i, f, c, o; the weights in that order are added to `known`.
    """
    hidden = next(a.i for a in node.attribute if a.name == "hidden_size")

    def gates(weight: np.ndarray[Any, Any], name: str) -> str:
        parts = np.split(weight, range(hidden, 4 * hidden, hidden))
        known[f"{node.name}.{name}"] = np.concatenate([parts[i] for i in (0, 2, 3, 1)])
        return f"{node.name}.{name}"

    w, r, bias = (known[name][0] for name in node.input[1:4])
    names = [gates(w, "w"), gates(r, "r"), gates(bias[: 4 * hidden], "bw"), gates(bias[4 * hidden :], "br")]
    state = [*node.input[5:7], "", ""][:2]
    new = onnx.NodeProto()
    new.CopyFrom(node)
    new.input[:] = [node.input[0], *names, *state]
    return new


def _lstm(v: Values, a: Attributes) -> tuple[Tensor, Tensor, Tensor]:
    zeros = v[0].new_zeros(1, v[0].shape[1], a["hidden_size"])
    state = tuple(zeros if x is None else x for x in v[5:7])
    y, h, c = torch._VF.lstm(v[0], state, list(v[1:5]), True, 1, 0.0, False, False, False)  # type: ignore[attr-defined]
    return y.unsqueeze(1), h, c


def _max_pool(v: Values, a: Attributes) -> Tensor:
    rank = len(a["kernel_shape"])
    pads, extra = _pair(a.get("pads", [0] * 2 * rank), rank)
    x = F.pad(v[0], extra, value=float("-inf")) if extra else v[0]
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    return function(x, a["kernel_shape"], a.get("strides", [1] * rank), pads, ceil_mode=bool(a.get("ceil_mode", 0)))


def _split(v: Values, a: Attributes) -> tuple[Tensor, ...]:
    return tuple(torch.split(v[0], v[1], a.get("axis", 0)))


def _slice(v: Values, a: Attributes) -> Any:
    starts, ends = v[1], v[2]
    if isinstance(v[0], list):
        (start,), (end,) = starts, ends
        return v[0][start:end]
    axes = v[3] if len(v) > 3 else list(range(len(starts)))
    steps = v[4] if len(v) > 4 else [1] * len(starts)
    index: list[Any] = [slice(None)] * v[0].dim()
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, min(end, v[0].shape[axis]), step)
    return v[0][tuple(index)]


def _reshape(v: Values, a: Attributes) -> Tensor:
    shape = [v[0].shape[i] if size == 0 else size for i, size in enumerate(v[1])]
    return v[0].reshape(shape)


def _gather(v: Values, a: Attributes) -> Tensor:
    index, axis = v[1], a.get("axis", 0)
    if isinstance(index, int):
        return v[0].select(axis, index)
    if isinstance(index, list):
        index = torch.tensor(index)
    result = torch.index_select(v[0], axis, index.reshape(-1))
    return result.reshape(*v[0].shape[:axis], *index.shape, *v[0].shape[axis + 1 :])


def _reduce(function: Callable[..., Tensor]) -> Callable[[Values, Attributes], Tensor]:
    def reduce(v: Values, a: Attributes) -> Tensor:
        axes = tuple(v[1] if len(v) > 1 else a.get("axes", range(v[0].dim())))
        return function(v[0], dim=axes, keepdim=bool(a.get("keepdims", 1)))

    return reduce


_DTYPES = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.UINT8: torch.uint8,
    TensorProto.INT32: torch.int32,
    TensorProto.INT64: torch.int64,
    TensorProto.BOOL: torch.bool,
}


def _cast(v: Values, a: Attributes) -> Tensor:
    return v[0].to(_DTYPES[a["to"]])


def _layer_norm(v: Values, a: Attributes) -> Tensor:
    assert a.get("axis", -1) in (-1, v[0].dim() - 1)
    return F.layer_norm(v[0], v[0].shape[-1:], v[1], v[2] if len(v) > 2 else None, a.get("epsilon", 1e-5))


def _concat(v: Values, a: Attributes) -> Any:
    if isinstance(v[0], list):
        return [size for part in v for size in part]
    return torch.cat(list(v), a["axis"])


def _flatten(v: Values, a: Attributes) -> Tensor:
    return v[0].flatten(a.get("axis", 1))


def _batch_norm(v: Values, a: Attributes) -> Tensor:
    return F.batch_norm(v[0], v[3], v[4], v[1], v[2], False, 0.0, a.get("epsilon", 1e-5))


def _expand(v: Values, a: Attributes) -> Tensor:
    return v[0].expand(torch.broadcast_shapes(v[0].shape, tuple(v[1])))


def _resize(v: Values, a: Attributes) -> Tensor:
    """Each element so many times: what a network that goes up again does."""
    assert a["mode"] == b"nearest" and a["coordinate_transformation_mode"] == b"asymmetric", a
    return F.interpolate(v[0], scale_factor=v[2][2:], mode="nearest")


def _shape(v: Values, a: Attributes) -> list[int]:
    return list(v[0].shape[a.get("start", 0) : a.get("end")])


OPERATORS: dict[str, Callable[[Values, Attributes], Any]] = {
    "Add": lambda v, a: v[0] + v[1],
    "Sub": lambda v, a: v[0] - v[1],
    "Mul": lambda v, a: v[0] * v[1],
    "Div": lambda v, a: v[0] / v[1],
    "Sqrt": lambda v, a: torch.sqrt(v[0]),
    "Reciprocal": lambda v, a: torch.reciprocal(v[0]),
    "Relu": lambda v, a: F.relu(v[0]),
    "Clip": lambda v, a: torch.clamp(v[0], v[1], v[2]),
    "Tanh": lambda v, a: torch.tanh(v[0]),
    "Sigmoid": lambda v, a: torch.sigmoid(v[0]),
    "Erf": lambda v, a: torch.erf(v[0]),
    "MatMul": lambda v, a: v[0] @ v[1],
    "Identity": lambda v, a: v[0],
    "Softmax": lambda v, a: F.softmax(v[0], a.get("axis", -1)),
    "LogSoftmax": lambda v, a: F.log_softmax(v[0], a.get("axis", -1)),
    "Transpose": lambda v, a: v[0].permute(a["perm"]),
    "Unsqueeze": lambda v, a: v[0].unsqueeze(int(v[1][0])),
    "Squeeze": lambda v, a: v[0].squeeze(tuple(v[1])),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "LayerNormalization": _layer_norm,
    "LSTM": _lstm,
    "MaxPool": _max_pool,
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _shape,
    "Slice": _slice,
    "Split": _split,
}
