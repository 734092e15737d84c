#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator's QuantizeLinear gives the least code, not the greatest, for numbers whose quotient
# by the scale is 2^31 or more.
#
# The operator's text saturates: to [-128, 127] for int8, to [-32768, 32767] for int16, to [0, 255] for uint8. The
# evaluator rounds and turns the quotient into 32-bit integers before it clips them: on x86 3e9 and infinity become -2^31,
# and are clipped to the lower end. Negative numbers come out right. ONNX Runtime 1.32.0 gives the upper end, as the text
# says. A calibration against the evaluator sees outliers change sign.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/env/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

X = np.array([2e9, 3e9, -3e9, np.inf, -np.inf], np.float32)


def codes(dtype):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    info = helper.make_tensor_value_info
    inputs = {"x": X, "s": np.array(1, np.float32), "z": np.array(0, dtype)}
    types = [info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()]
    node = helper.make_node("QuantizeLinear", list(inputs), ["y"])
    graph = helper.make_graph([node], "g", types, [info("y", kind, X.shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0].tolist(), ReferenceEvaluator(model).run(None, inputs)[0].tolist()


print(onnxruntime.__version__, onnx.__version__, np.__version__)
same = True
for dtype, low, high in (("int8", -128, 127), ("uint8", 0, 255), ("int16", -(2**15), 2**15 - 1)):
    runtime, reference = codes(dtype)
    print(dtype, "onnxruntime", runtime, "reference", reference)
    same &= runtime == [high, high, low, high, low] and reference == [high, low, low, low, low]
sys.exit(not same)
PYTHON
