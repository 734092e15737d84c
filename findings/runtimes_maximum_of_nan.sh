#!/usr/bin/env bash
# onnxruntime 1.32.0 and openvino 2026.4.1: whether a maximum over numbers with a NaN is NaN depends on where it stands.
#
# ReduceMax over three numbers (ONNX says nothing of NaN; onnx.reference takes NumPy's, which is NaN at any place):
#                     [nan, 1, 2]   [1, nan, 3]   [1, 2, nan]
#   onnxruntime       nan           3             2
#   openvino (f32)    2             3             nan
# So each of them differs from itself when its input is turned around, and they differ from each other at both ends.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 openvino==2026.4.1 numpy
"$folder/env/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnxruntime
import openvino
from onnx import TensorProto, helper

graph = helper.make_graph(
    [helper.make_node("ReduceMax", ["x"], ["y"], axes=[0], keepdims=0)],
    "maximum",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
model.ir_version = 8
text = model.SerializeToString()
session = onnxruntime.InferenceSession(text, providers=["CPUExecutionProvider"])
compiled = openvino.compile_model(openvino.Core().read_model(text), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
rows = [np.array(v, np.float32) for v in ([np.nan, 1, 2], [1, np.nan, 3], [1, 2, np.nan])]
got = {
    "onnxruntime": [float(session.run(None, {"x": x})[0]) for x in rows],
    "openvino": [float(compiled(x)[0]) for x in rows],
}
print(onnxruntime.__version__, openvino.__version__, got)
wanted = {"onnxruntime": [np.nan, 3, 2], "openvino": [2, 3, np.nan]}
sys.exit(not all(np.array_equal(got[name], wanted[name], equal_nan=True) for name in wanted))
PYTHON
