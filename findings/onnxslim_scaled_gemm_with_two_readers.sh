#!/usr/bin/env bash
# onnxslim 0.1.98: where a Gemm's result is reshaped and multiplied by a constant, every other reader of that result gets the
# multiplied numbers as well.
#
# The factor is multiplied into the Gemm's weights and bias; that the reshaped result has one reader is looked at, that the
# Gemm's own has one is not. Here z = -(x W + b) becomes -3 (x W + b). A query that is scaled before attention and read
# unscaled by a second branch has this form. The fusion of an Add in the place of the Mul looks at both.
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


def model(operator):
    rng = np.random.default_rng(0)
    info = helper.make_tensor_value_info
    arrays = {
        "w": rng.standard_normal((4, 3)).astype(np.float32),
        "b": rng.standard_normal(4).astype(np.float32),
        "shape": np.array([1, 2, 4]),
        "three": np.float32(3),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["q"], transB=1),
            helper.make_node("Reshape", ["q", "shape"], ["r"]),
            helper.make_node(operator, ["r", "three"], ["y"]),
            helper.make_node("Neg", ["q"], ["z"]),
        ],
        "g",
        [info("x", TensorProto.FLOAT, [2, 3])],
        [info("y", TensorProto.FLOAT, [1, 2, 4]), info("z", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(built, full_check=True)
    return built


def results(built):
    x = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["y", "z"], {"x": x})


print("onnxslim", importlib.metadata.version("onnxslim"))
same = True
for operator, factor in (("Mul", 3), ("Add", 1)):
    before, after = results(model(operator)), results(onnxslim.slim(model(operator)))
    print(operator, "z before", before[1][0].tolist(), "z after", after[1][0].tolist())
    same &= np.allclose(before[0], after[0], atol=1e-5) and np.allclose(factor * before[1], after[1], atol=1e-5)
sys.exit(not same)
PYTHON
