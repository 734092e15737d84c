#!/usr/bin/env bash
# onnxruntime 1.32.0: 1 / x times z becomes z / x for integers as well, whose division rounds.
#
# For x = [2, 3, 4] and z = [5, 6, 7] in int64 or int32 ONNX's text gives 1 // x * z = [0, 0, 0], and so does ONNX Runtime without
# optimizations; with them, from the basic level on, it gives [2, 2, 1].
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
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator


def results(dtype):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Div", ["one", "x"], ["a"]), helper.make_node("Mul", ["a", "z"], ["y"])],
        "g",
        [info("x", kind, [3]), info("z", kind, [3])],
        [info("y", kind, [3])],
        [numpy_helper.from_array(np.array(1, dtype), "one")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    feeds = {"x": np.array([2, 3, 4], dtype), "z": np.array([5, 6, 7], dtype)}
    got = {"reference": ReferenceEvaluator(model).run(None, feeds)[0].tolist()}
    for name in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, name)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        got[name] = session.run(None, feeds)[0].tolist()
    return got


print(onnxruntime.__version__, onnx.__version__)
same = True
for dtype in (np.int64, np.int32):
    got = results(dtype)
    print(dtype.__name__, got)
    same &= got["reference"] == got["ORT_DISABLE_ALL"] == [0, 0, 0]
    same &= got["ORT_ENABLE_BASIC"] == got["ORT_ENABLE_ALL"] == [2, 2, 1]
sys.exit(not same)
PYTHON
