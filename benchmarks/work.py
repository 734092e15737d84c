"""How much a model has to do at least: multiply-adds of its products, bytes of its weights, inputs and outputs.

Convolutions count as direct ones, so an algorithm that needs fewer multiplications can beat the limit. Pointwise work
counts no operations; intermediate results count no bytes, as fusion could avoid them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx
from onnx import helper, shape_inference

_LEVELS = ("L1", "L2", "L3", "memory")


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations (a multiply-add is two), bytes read, bytes written, of one call."""

    flops: int
    read: int
    written: int


def count(proto: onnx.ModelProto) -> Work:
    """The work of a model whose shapes are all fixed. Drops the values of its large weights."""
    for weight in proto.graph.initializer:
        if len(weight.raw_data) > 4096:
            weight.ClearField("raw_data")  # shapes come from the small ones, and a copy of the large ones takes seconds
    graph = shape_inference.infer_shapes(proto, data_prop=True).graph
    shapes = {v.name: _shape(v) for v in (*graph.input, *graph.output, *graph.value_info)}
    shapes |= {w.name: tuple(w.dims) for w in graph.initializer}
    flops = 2 * sum(_multiply_adds(node, shapes) for node in graph.node)
    weights = {w.name for w in graph.initializer}
    read = sum(math.prod(w.dims) * _item(w.data_type) for w in graph.initializer)
    read += sum(_bytes(v) for v in graph.input if v.name not in weights)
    return Work(flops, read, sum(_bytes(v) for v in graph.output))


def level(work: Work, caches: dict[int, int]) -> str:
    """The smallest level of memory that holds everything together."""
    total = work.read + work.written
    sizes = (caches.get(1, 32 << 10), caches.get(2, 512 << 10), caches.get(3, 0))
    return _LEVELS[next((i for i, size in enumerate(sizes) if total <= size), 3)]


def _shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(d.dim_value for d in value.type.tensor_type.shape.dim)


def _item(kind: int) -> int:
    return int(helper.tensor_dtype_to_np_dtype(kind).itemsize)


def _bytes(value: onnx.ValueInfoProto) -> int:
    return math.prod(_shape(value)) * _item(value.type.tensor_type.elem_type)


def _multiply_adds(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> int:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    operands = [shapes.get(name, ()) for name in node.input]
    output = shapes.get(node.output[0], ())
    match node.op_type:
        case "Conv":
            return math.prod(output) * math.prod(operands[1][1:])
        case "ConvTranspose":
            return math.prod(operands[0]) * math.prod(operands[1][1:])
        case "Gemm":
            return math.prod(output) * operands[0][0 if attributes.get("transA") else 1]
        case "MatMul":
            return math.prod(output) * operands[0][-1] if operands[0] else 0
        case "LSTM":
            steps, batch, _ = operands[0]
            return steps * batch * (math.prod(operands[1]) + math.prod(operands[2]))
        case _:
            return 0
