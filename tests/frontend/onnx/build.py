"""Small ONNX models for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def info(name: str, shape: Sequence[int | str | None] | None, code: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, code, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str | onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 18,
    functions: Sequence[onnx.FunctionProto] = (),
    **domains: int,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "test",
        list(inputs),
        [o if not isinstance(o, str) else helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(k, v) for k, v in domains.items())]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)
