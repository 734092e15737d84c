#!/usr/bin/env bash
# openvino 2026.4.1: reductions of an ONNX file that go over no axes give the input itself, where they have to take
# magnitudes or logarithms; and a MaxPool with ceil_mode=1 has a window of padding alone, whose result is -3.4e38.
#
# With noop_with_empty_axes=1 and no axes an operator reduces nothing, but its pointwise part stays: ReduceL1 and ReduceL2
# are |x| and ReduceLogSum is log(x); ONNX Runtime 1.32.0 agrees. OpenVINO gives x. Its ReduceSumSquare is right.
#
# A window of 2 with stride 2 over 6 elements and 1 of padding at the end has ceil((6 + 1 - 2) / 2) + 1 = 4 places, of which
# the last begins in the padding and, by the operator's text, is ignored. OpenVINO has it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet openvino==2026.4.1 onnx==1.23.2 onnxruntime==1.32.0 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper

CORE = openvino.Core()


def both(operator, x, shape, **attributes):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], **attributes)],
        "g",
        [info("x", TensorProto.FLOAT, x.shape)],
        [info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    precise = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = CORE.compile_model(CORE.read_model(model.SerializeToString()), "CPU", precise)
    return session.run(None, {"x": x})[0].ravel(), compiled({"x": x})[compiled.outputs[0]].ravel()


print(openvino.__version__, onnxruntime.__version__)
same = True
X = np.float32([[-3, 4]])
for operator, x, right, seen in (
    ("ReduceSumSquare", X, X**2, X**2),
    ("ReduceL1", X, np.abs(X), X),
    ("ReduceL2", X, np.abs(X), X),
    ("ReduceLogSum", np.abs(X), np.log(np.abs(X)), np.abs(X)),
):
    runtime, vino = both(operator, x, [1, 2], noop_with_empty_axes=1, keepdims=0)
    print(operator, "onnxruntime", runtime.tolist(), "openvino", vino.tolist())
    same &= np.allclose(runtime, right) and np.allclose(vino, seen)
row = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
runtime, vino = both("MaxPool", row, [1, 1, 3], kernel_shape=[2], strides=[2], pads=[0, 1], ceil_mode=1)
print("MaxPool", "onnxruntime", runtime.tolist(), "openvino", vino.tolist())
same &= runtime.tolist() == [1, 3, 5] and vino.tolist() == [1, 3, 5, float(np.finfo(np.float32).min)]
sys.exit(not same)
PYTHON
