#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator computes Softmax, LogSoftmax and Hardmax of operator sets before 13 as those of 13.
#
# Up to 12 the dimensions from `axis` on (1 if nothing is said) are one, and the result sums to 1 over all of them; since 13
# `axis` is one dimension (the last one if nothing is said). For a model of opset 12 with x of [2, 3, 4] and axis 1 the
# evaluator's numbers sum to 4 an image, ONNX Runtime's to 1. `onnx.version_converter` converts Softmax and LogSoftmax to 13 so
# that they stay what they were; a Hardmax it leaves as it is, so that the model of 13 computes something else.
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
from onnx import TensorProto, helper, version_converter
from onnx.reference import ReferenceEvaluator


def model(operator, attributes):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], **attributes)],
        "g",
        [info("x", TensorProto.FLOAT, [2, 3, 4])],
        [info("y", TensorProto.FLOAT, [2, 3, 4])],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)
    onnx.checker.check_model(built, full_check=True)
    return built


print(onnx.__version__, onnxruntime.__version__)
x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
same = True
for operator in ("Softmax", "LogSoftmax", "Hardmax"):
    for attributes, ones in (({"axis": 1}, 4), ({}, 3)):
        built = model(operator, attributes)
        session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
        results = {
            "onnxruntime": session.run(None, {"x": x})[0],
            "reference": ReferenceEvaluator(built).run(None, {"x": x})[0],
            "reference of 13": ReferenceEvaluator(version_converter.convert_version(built, 13)).run(None, {"x": x})[0],
        }
        sums = {name: (np.exp(y) if operator == "LogSoftmax" else y).sum((1, 2)) for name, y in results.items()}
        print(operator, attributes, {name: np.round(s, 3).tolist() for name, s in sums.items()})
        wrong = {"reference", "reference of 13"} if operator == "Hardmax" else {"reference"}
        same &= all(np.allclose(s, ones if name in wrong else 1, atol=1e-4) for name, s in sums.items())
sys.exit(not same)
PYTHON
