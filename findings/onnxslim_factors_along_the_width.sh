#!/usr/bin/env bash
# onnxslim 0.1.98: a convolution whose result is multiplied by a vector along its width comes out multiplied along its
# channels, if the width equals the number of output channels.
#
# By ONNX's broadcasting a Mul of [1, 4, 4, 4] and [4] multiplies columns. onnxslim takes any constant that has one
# dimension once those of length 1 are gone, and as many elements as there are channels, for a factor of channels, and
# multiplies the weights by it; so it does for [1, 1, 4, 1], which multiplies lines. Its fusion of an Add looks at where the
# dimension stands and leaves both alone. Where width and channels differ nothing is fused and the numbers are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 onnxslim==0.1.98 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import onnx
import onnxruntime
import onnxslim
from onnx import TensorProto, helper, numpy_helper


def model(operator, shape):
    rng = np.random.default_rng(0)
    info = helper.make_tensor_value_info
    arrays = {"w": rng.standard_normal((4, 3, 1, 1)), "s": 1 + np.arange(4).reshape(shape)}
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node(operator, ["c", "s"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, [1, 3, 4, 4])],
        [info("y", TensorProto.FLOAT, [1, 4, 4, 4])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(built, full_check=True)
    return built


def results(built):
    x = np.random.default_rng(1).standard_normal((1, 3, 4, 4)).astype(np.float32)
    session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


print("onnxslim", importlib.metadata.version("onnxslim"))
same = True
for operator in ("Mul", "Add"):
    for shape, along in (((4,), "columns"), ((1, 1, 4, 1), "lines"), ((1, 4, 1, 1), "channels")):
        before, after = results(model(operator, shape)), results(onnxslim.slim(model(operator, shape)))
        equal = np.allclose(before, after, atol=1e-4)
        print(operator, "along", along, "equal" if equal else f"differs by up to {np.abs(before - after).max():.2f}")
        same &= equal == (operator == "Add" or along == "channels")
sys.exit(not same)
PYTHON
