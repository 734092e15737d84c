"""A model of f32 as one of f16 or bf16: weights, constants, inputs and outputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

KINDS: dict[str, tuple[int, Any]] = {
    "f16": (TensorProto.FLOAT16, np.float16),
    "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}
"""ONNX's number of a type, and NumPy's type."""


def narrowed(model: onnx.ModelProto, to: str) -> onnx.ModelProto:
    """The model in another type of floating-point numbers."""
    number, kind = KINDS[to]
    result = onnx.ModelProto()
    result.CopyFrom(model)

    def narrow(tensor: TensorProto) -> None:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(kind), tensor.name))

    for weight in result.graph.initializer:
        narrow(weight)
    for node in result.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                narrow(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = number
    for value in (*result.graph.input, *result.graph.output, *result.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = number
    return result


__all__ = ["narrowed"]
