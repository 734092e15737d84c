"""Arithmetic that quantises goes out as the operators that mean it, where it is exactly that."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.codegen.onnx import onnx_model
from tilewright.frontend.read import import_model
from tilewright.ops.interpret import run_graph

CODES = {"u8": np.uint8, "i8": np.int8, "u16": np.uint16, "i16": np.int16}


def qdq(scale: Any, zero: Any, axis: int | None = None) -> onnx.ModelProto:
    """x, quantised and dequantised, and the codes."""
    attributes = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes),
    ]
    constants = [numpy_helper.from_array(np.asarray(v), n) for n, v in (("s", scale), ("z", zero))]
    code = helper.np_dtype_to_tensor_dtype(np.asarray(zero).dtype)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, ["n", 3])],
        [info("y", TensorProto.FLOAT, ["n", 3]), info("q", code, ["n", 3])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("zero", [0, 7])
@pytest.mark.parametrize("axis", [None, 1])
def test_files_go_out_as_they_came(kind: str, zero: int, axis: int | None) -> None:
    shape = () if axis is None else (3,)
    scale = np.full(shape, 0.5, np.float32) if axis is None else np.asarray([0.5, 0.25, 2], np.float32)
    imported = import_model(qdq(scale, np.full(shape, zero, CODES[kind]), axis))
    written = onnx_model(imported.graph, imported.weights)
    onnx.checker.check_model(written, full_check=True)
    kinds = {n.op_type for n in written.graph.node}
    assert (
        {"QuantizeLinear", "DequantizeLinear"}
        <= kinds
        <= {
            "QuantizeLinear",
            "DequantizeLinear",
            "Constant",
            "Reshape",
            "Shape",
        }
    )
    reloaded = import_model(written)
    x = np.asarray([[-1e9, 0.25, 3e9], [0.75, -0.125, 1.0], [-3.1, 1e3, -7]], np.float32)
    before, after = (run_graph(m.graph, {"x": x}, m.weights) for m in (imported, reloaded))
    for name in ("y", "q"):
        np.testing.assert_array_equal(before[name], after[name])
