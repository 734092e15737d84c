#!/usr/bin/env bash
# onnxruntime 1.32.0: MaxPool and AveragePool with auto_pad=SAME_UPPER or SAME_LOWER pad as if a dilated window were not
# dilated, so that the result is not as long as the input.
#
# The operators' text has ceil(input / stride) places for SAME, whatever the dilations. For 7 lines, a window of 3, a
# stride of 1 and dilations of 2 that is 7; ONNX Runtime pads by (3 - 1), the window without its dilation, of which a window
# that spans 5 leaves 5 places. ONNX's reference (onnx 1.23.2) gives 7. Without dilations both give 7.
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


def lengths(operator, pad, dilation):
    info = helper.make_tensor_value_info
    node = helper.make_node(operator, ["x"], ["y"], kernel_shape=[3, 3], auto_pad=pad, dilations=[dilation] * 2, strides=[1, 1])
    graph = helper.make_graph(
        [node], "g", [info("x", TensorProto.FLOAT, [1, 1, 7, 7])], [info("y", TensorProto.FLOAT, [1, 1, None, None])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    x = np.arange(49, dtype=np.float32).reshape(1, 1, 7, 7)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0].shape[2], ReferenceEvaluator(model).run(None, {"x": x})[0].shape[2]


print(onnxruntime.__version__, onnx.__version__)
same = True
for operator in ("MaxPool", "AveragePool"):
    for pad in ("SAME_UPPER", "SAME_LOWER"):
        for dilation, runtime in ((1, 7), (2, 5)):
            result = lengths(operator, pad, dilation)
            print(operator, pad, "dilation", dilation, "onnxruntime", result[0], "reference", result[1])
            same &= result == (runtime, 7)
sys.exit(not same)
PYTHON
