#!/usr/bin/env bash
# onnxruntime 1.32.0: Cast of float32 to 8-bit floats with saturate=0 is wrong in one interval beyond the largest number.
#
# Without saturation what rounds beyond the largest number becomes NaN (E4M3FN, which has no infinity) or infinity (E5M2).
# Above 464 E4M3FN's numbers are NaN, but those in [480, 496) become 448, the largest one: the cast is not monotone. E5M2
# makes NaN of [61440, 65536) and infinity of what is greater. ONNX's reference (onnx 1.23.2) and ml_dtypes give NaN and
# infinity there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 ml_dtypes==0.5.4 numpy
"$folder/env/bin/python" - <<'PYTHON'
import sys

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

INPUTS = {"FLOAT8E4M3FN": [464, 465, 479, 480, 495, 496, 600], "FLOAT8E5M2": [57344, 61439, 61440, 65535, 65536, 80000]}
NAN, INF = float("nan"), float("inf")
TRUE = {"FLOAT8E4M3FN": [448, NAN, NAN, NAN, NAN, NAN, NAN], "FLOAT8E5M2": [57344, 57344, INF, INF, INF, INF]}
SEEN = {"FLOAT8E4M3FN": [448, NAN, NAN, 448, 448, NAN, NAN], "FLOAT8E5M2": [57344, 57344, NAN, NAN, INF, INF]}
TYPES = {"FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn, "FLOAT8E5M2": ml_dtypes.float8_e5m2}

print(onnxruntime.__version__, onnx.__version__, ml_dtypes.__version__)
same = True
for name, numbers in INPUTS.items():
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["code"], to=getattr(TensorProto, name), saturate=0),
            helper.make_node("Cast", ["code"], ["y"], to=TensorProto.FLOAT),
        ],
        "g",
        [info("x", TensorProto.FLOAT, [len(numbers)])],
        [info("y", TensorProto.FLOAT, [len(numbers)])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    x = np.array(numbers, np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (runtime,) = session.run(None, {"x": x})
    (reference,) = ReferenceEvaluator(model).run(None, {"x": x})
    by_type = x.astype(TYPES[name]).astype(np.float32)
    print(name, numbers, "onnxruntime", runtime.tolist(), "reference", reference.tolist(), "ml_dtypes", by_type.tolist())
    same &= np.array_equal(runtime, SEEN[name], equal_nan=True)
    same &= np.array_equal(reference, TRUE[name], equal_nan=True)
    same &= np.array_equal(by_type, TRUE[name], equal_nan=True)
sys.exit(not same)
PYTHON
