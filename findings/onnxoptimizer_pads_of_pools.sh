#!/usr/bin/env bash
# onnxoptimizer 0.4.2: a Pad by zeros before a MaxPool becomes the MaxPool's own padding, which is by minus infinity, so that
# maxima of negative numbers are no longer 0 at the border.
#
# The pass fuse_pad_into_pool is one of the default passes of `onnxoptimizer.optimize`. onnxsim 0.8.1, whose passes are the
# same code's, moves a Pad of a MaxPool only where it is by minus infinity.
#
# Before an AveragePool with ceil_mode=1 both move the padding by zeros (with count_include_pad=1), and both change the
# result's shape: 5 lines padded to 8, a window of 3 and a stride of 2 give 4 places (3.5, rounded up), but a pool that pads
# itself leaves out the last window, because it begins in the padding: 3 places.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 onnxoptimizer==0.4.2 onnxsim==0.8.1 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import onnx
import onnxoptimizer
import onnxruntime
import onnxsim
from onnx import TensorProto, helper, numpy_helper


def model(operator, pads, **attributes):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Pad", ["x", "p"], ["a"]), helper.make_node(operator, ["a"], ["y"], kernel_shape=[3], **attributes)],
        "g",
        [info("x", TensorProto.FLOAT, [1, 1, 5])],
        [info("y", TensorProto.FLOAT, [1, 1, None])],
        [numpy_helper.from_array(np.array(pads), "p")],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(built, full_check=True)
    return built


def numbers(built):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(built.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": -np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)})[0].ravel().tolist()


print({name: importlib.metadata.version(name) for name in ("onnxoptimizer", "onnxsim")})
arguments = {
    "maximum": ("MaxPool", [0, 0, 1, 0, 0, 1], {}),
    "average, rounded up": ("AveragePool", [0, 0, 1, 0, 0, 2], {"strides": [2], "ceil_mode": 1}),
}
got = {}
for name, (operator, pads, attributes) in arguments.items():
    got[name] = [
        numbers(model(operator, pads, **attributes)),
        numbers(onnxoptimizer.optimize(model(operator, pads, **attributes))),
        numbers(onnxsim.simplify(model(operator, pads, **attributes))[0]),
    ]
    print(name, "before, onnxoptimizer, onnxsim:", got[name])
before, optimized, simplified = got["maximum"]
same = before == simplified == [0, -1, -2, -3, 0] and optimized == [-1, -1, -2, -3, -4]
same &= [len(numbers) for numbers in got["average, rounded up"]] == [4, 3, 3]
sys.exit(not same)
PYTHON
