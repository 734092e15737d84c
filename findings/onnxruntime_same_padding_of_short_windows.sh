#!/usr/bin/env bash
# onnxruntime 1.32.0: auto_pad=SAME_UPPER with a window shorter than the stride is four things: a Conv begins at element 0, an
# AveragePool or LpPool later, a MaxPool is refused, a ConvTranspose gives fewer elements than the operator's text says.
#
# For 8 elements, a window of 2 and a stride of 4 no padding is needed ((2 - 1) * 4 + 2 - 8 is -2). Conv takes 0 for it; the
# pools take -1 at each end, so that AveragePool is [1.5, 5.5] in the place of [0.5, 4.5], and MaxPool fails when it runs
# ("padding values must be non-negative"). With SAME_LOWER AveragePool begins at 0. A ConvTranspose of 2 elements has
# 2 * 4 = 8 by its text for SAME; it gives 6. OpenVINO 2026.4.1 begins at 0 in Conv, AveragePool and MaxPool.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 openvino==2026.4.1 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper


def model(operator, pad, length):
    info = helper.make_tensor_value_info
    weights = [numpy_helper.from_array(np.full((1, 1, 2), 0.5, np.float32), "w")] if "Conv" in operator else []
    attributes = {"p": 1} if operator == "LpPool" else {}
    node = helper.make_node(
        operator, ["x", "w"][: 1 + len(weights)], ["y"], kernel_shape=[2], strides=[4], auto_pad=pad, **attributes
    )
    graph = helper.make_graph(
        [node], "g", [info("x", TensorProto.FLOAT, [1, 1, length])], [info("y", TensorProto.FLOAT, [1, 1, None])], weights
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(built, full_check=True)
    return built.SerializeToString()


def runtime(built, x):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(built, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0].ravel().tolist()
    except Exception as error:
        return "refused" if "must be non-negative" in str(error) else str(error)


print(onnxruntime.__version__, importlib.metadata.version("openvino"))
x = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
got = {}
for operator in ("Conv", "AveragePool", "LpPool", "MaxPool"):
    got[operator] = tuple(runtime(model(operator, pad, 8), x) for pad in ("SAME_UPPER", "SAME_LOWER"))
    if operator != "LpPool":
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(model(operator, "SAME_UPPER", 8)), "CPU")
        got[operator] += (compiled({"x": x})[0].ravel().tolist(),)
got["ConvTranspose"] = (len(runtime(model("ConvTranspose", "SAME_UPPER", 2), x[:, :, :2])),)
for operator, numbers in got.items():
    print(operator, "SAME_UPPER, SAME_LOWER, openvino:", *numbers)
wanted = {
    "Conv": ([0.5, 4.5], [0.5, 4.5], [0.5, 4.5]),
    "AveragePool": ([1.5, 5.5], [0.5, 4.5], [0.5, 4.5]),
    "LpPool": ([3, 11], [1, 9]),
    "MaxPool": ("refused", "refused", [1, 5]),
    "ConvTranspose": (6,),
}
sys.exit(got != wanted)
PYTHON
