"""A graph of source operators run by PyTorch, an operator at a time, as modules of `torch.nn` do: the audit's peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilewright.ir.graph import Graph, Node, Value

Call = Callable[..., Any]
Attributes = dict[str, Any]


def _conv(attrs: Attributes) -> Call:
    call, pads = _ranked(attrs, F.conv1d, F.conv2d, F.conv3d)
    return lambda x, w, b=None: call(x, w, b, attrs["strides"], pads, attrs["dilations"], attrs["groups"])


def _transposed(attrs: Attributes) -> Call:
    call, pads = _ranked(attrs, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
    return lambda x, w, b=None: call(x, w, b, attrs["strides"], pads)


def _max_pool(attrs: Attributes) -> Call:
    call, pads = _ranked(attrs, F.max_pool1d, F.max_pool2d, F.max_pool3d)
    return lambda x: call(x, attrs["kernel"], attrs["strides"], pads)


def _avg_pool(attrs: Attributes) -> Call:
    call, pads = _ranked(attrs, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
    return lambda x: call(x, attrs["kernel"], attrs["strides"], pads, False, attrs["count_include_pad"])


def _ranked(attrs: Attributes, *calls: Any) -> tuple[Call, tuple[int, ...]]:
    """The function of so many spatial dimensions, and the padding before each, which is that after it."""
    rank = len(attrs["strides"])
    return calls[rank - 1], attrs["pads"][:rank]


def _reduced(call: Call) -> Callable[[Attributes], Call]:
    return lambda attrs: lambda x: call(x, attrs["axes"], attrs["keepdims"])


def _norm(call: Call) -> Callable[[Attributes], Call]:
    return lambda attrs: lambda x, scale: call(x, scale.shape, scale, eps=attrs["epsilon"])


def _softmax(call: Call) -> Callable[[Attributes], Call]:
    return lambda attrs: lambda x: call(x, attrs["axis"])


def _product(attrs: Attributes) -> Call:
    return (lambda x, y: torch.matmul(x, y.mT)) if attrs["transpose_b"] else torch.matmul


def _without_attributes(call: Call) -> Callable[[Attributes], Call]:
    return lambda _: call


CALLS: dict[str, Callable[[Attributes], Call]] = {
    "matmul": _product,
    "conv": _conv,
    "conv_transpose": _transposed,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "reduce_mean": _reduced(torch.mean),
    "reduce_sum": _reduced(torch.sum),
    "reduce_max": _reduced(torch.amax),
    "layer_norm": _norm(F.layer_norm),
    "rms_norm": _norm(F.rms_norm),
    "softmax": _softmax(torch.softmax),
    "log_softmax": _softmax(torch.log_softmax),
    "transpose": lambda attrs: lambda x: x.permute(attrs["perm"]).contiguous(),
    "add": _without_attributes(torch.add),
    "mul": _without_attributes(torch.mul),
    "relu": _without_attributes(torch.relu),
    "gelu": _without_attributes(F.gelu),
    "tanh": _without_attributes(torch.tanh),
    "sigmoid": _without_attributes(torch.sigmoid),
    "exp": _without_attributes(torch.exp),
    "sqrt": _without_attributes(torch.sqrt),
}
"""The call of PyTorch for an operator with its attributes."""

BIASED = ("matmul", "conv", "conv_transpose")
"""Operators to whose modules a bias belongs that is added after them."""


@dataclass(frozen=True, slots=True)
class _Step:
    call: Call
    inputs: tuple[Any, ...]
    result: Value


def eager(graph: Graph, weights: Mapping[str, np.ndarray]) -> Call:
    """The graph as a function of tensors, its inputs."""
    params: dict[Any, Any] = {v: torch.from_numpy(weights[v.name]) for v in graph.params}
    steps = list(_steps(graph, params))

    def run(*inputs: Tensor) -> Tensor:
        values = params | dict(zip(graph.inputs, inputs, strict=True))
        for step in steps:
            values[step.result] = step.call(*(values[i] for i in step.inputs))
        result: Tensor = values[graph.outputs[0]]
        return result

    return run


def _steps(graph: Graph, params: dict[Any, Any]) -> Iterator[_Step]:
    """The calls of a graph whose operators follow one another; weights get the shapes that modules keep them in."""
    nodes = list(graph.nodes)
    while nodes:
        node = nodes.pop(0)
        if node.op in BIASED and node.inputs[1] in params and nodes and nodes[0].op == "add":
            added = nodes.pop(0)
            yield _biased(node, added, params)
        else:
            yield _Step(CALLS[node.op](_attributes(node)), node.inputs, node.outputs[0])


def _attributes(node: Node) -> Attributes:
    """All attributes by name, those that have their defaults too."""
    return {f.name: getattr(node.attrs, f.name) for f in fields(node.attrs)}


def _biased(node: Node, added: Node, params: dict[Any, Any]) -> _Step:
    """An operator with its bias, as `nn.Linear` and `nn.Conv2d` call it."""
    x, weight, bias = *node.inputs, added.inputs[1]
    params[bias] = params[bias].flatten()
    if node.op == "matmul":
        params[weight] = params[weight].T.contiguous()
        return _Step(F.linear, (x, weight, bias), added.outputs[0])
    return _Step(CALLS[node.op](_attributes(node)), (x, weight, bias), added.outputs[0])
