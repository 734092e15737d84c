#!/usr/bin/env bash
# onnxruntime 1.32.0: the fusion to LayerNormalization does not look at the exponent: a Pow by 3 or 4 in the place of the
# square is computed as if it were 2.
#
# (x - mean) / sqrt(mean((x - mean) ^ e) + epsilon), times a scale, plus a bias, becomes LayerNormalization for every
# constant e, from the basic level of optimizations on. A normalization by the fourth moment, whose graph differs in one
# number from the usual one, comes out as the usual one. Without optimizations it is right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

LEVELS = onnxruntime.GraphOptimizationLevel
X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)


def model(exponent):
    node, info = helper.make_node, helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            node("ReduceMean", ["x"], ["mean"], axes=[-1]),
            node("Sub", ["x", "mean"], ["centred"]),
            node("Pow", ["centred", "exponent"], ["power"]),
            node("ReduceMean", ["power"], ["moment"], axes=[-1]),
            node("Add", ["moment", "epsilon"], ["positive"]),
            node("Sqrt", ["positive"], ["root"]),
            node("Div", ["centred", "root"], ["normal"]),
            node("Mul", ["normal", "scale"], ["scaled"]),
            node("Add", ["scaled", "bias"], ["y"]),
        ],
        "g",
        [info("x", TensorProto.FLOAT, X.shape)],
        [info("y", TensorProto.FLOAT, X.shape)],
        [
            numpy_helper.from_array(np.asarray(a, np.float32), n)
            for n, a in (("exponent", exponent), ("epsilon", 1e-5), ("scale", np.ones(8)), ("bias", np.zeros(8)))
        ],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(built, full_check=True)
    return built.SerializeToString()


def results(exponent, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(model(exponent), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0]


def exact(exponent):
    centred = X.astype(np.float64) - X.mean(-1, keepdims=True, dtype=np.float64)
    return centred / np.sqrt((centred**exponent).mean(-1, keepdims=True) + 1e-5)


print("onnxruntime", onnxruntime.__version__)
same = True
for exponent in (2, 4):
    plain, fused = (results(exponent, level) for level in (LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_BASIC))
    print(exponent, "exact", exact(exponent)[0, :3], "not optimized", plain[0, :3], "optimized", fused[0, :3])
    same &= np.allclose(plain, exact(exponent), atol=1e-4) and np.allclose(fused, exact(2), atol=1e-4)
sys.exit(not same or np.allclose(exact(4), exact(2), atol=1e-2))
PYTHON
