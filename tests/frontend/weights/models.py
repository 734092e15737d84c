"""A model of one product, whose weights tests put in."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper


def products(depth: int, columns: int, transposed: bool) -> ModelProto:
    """`y = x w`, w f32[depth, columns], or its transpose in the file."""
    w = np.zeros((columns, depth) if transposed else (depth, columns), np.float32)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transB=int(transposed))],
        "g",
        [info("x", TensorProto.FLOAT, ["n", depth])],
        [info("y", TensorProto.FLOAT, ["n", columns])],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
