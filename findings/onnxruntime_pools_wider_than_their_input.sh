#!/usr/bin/env bash
# onnxruntime 1.32.0: MaxPool, AveragePool and LpPool without padding whose window is wider than the input give one element
# of a partial window if the stride is greater than the lack, and nothing if it is not.
#
# The operators' text has floor((n - k) / stride) + 1 places: for 2 elements, a window of 3 and a stride of 3 (or 2) that is
# floor(-1 / 3) + 1 = 0. ONNX Runtime divides as C does, towards zero, and gives one place, over the two elements that there
# are. With a stride of 1 it gives none, as the text says; ONNX's reference (onnx 1.23.2) gives none for either.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy
"$folder/env/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


def outputs(operator, stride):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], kernel_shape=[3], strides=[stride])],
        "g",
        [info("x", TensorProto.FLOAT, [1, 1, "n"])],
        [info("y", TensorProto.FLOAT, [1, 1, None])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    x = np.array([[[1, 2]]], np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    try:
        reference = ReferenceEvaluator(model).run(None, {"x": x})[0].ravel().tolist()
    except RuntimeError:  # what it says of a maximum over no place with a stride of 1
        reference = []
    return session.run(None, {"x": x})[0].ravel().tolist(), reference


print(onnxruntime.__version__, onnx.__version__)
same = True
for operator, partial in (("MaxPool", 2.0), ("AveragePool", 1.5), ("LpPool", 5**0.5)):
    for stride in (1, 2, 3):
        runtime, reference = outputs(operator, stride)
        print(operator, "stride", stride, "onnxruntime", runtime, "reference", reference)
        wanted = [] if stride == 1 else [partial]
        same &= len(runtime) == len(wanted) and bool(np.allclose(runtime, wanted)) and reference == []
sys.exit(not same)
PYTHON
