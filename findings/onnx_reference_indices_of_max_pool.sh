#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator's MaxPool has wrong indices where strides and dilations are 1, which is their default.
#
# The text numbers the elements of the whole input, batch and channels first. With a stride or a dilation of 2 the evaluator
# does so. With 1 in all dimensions it goes another way, which numbers the windows' places in the row of the result: in a
# map of 4 x 5 a window of 2 x 2 whose largest element is number 6 gets 3, padding makes negative numbers, one dimension
# begins at 0 again in each channel, and storage_order=1 is as wrong. The values are right. ONNX Runtime 1.32.0's indices
# point to them in all cases.
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
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


def both(shape, **attributes):
    x = np.random.default_rng(1).permutation(int(np.prod(shape))).reshape(shape).astype(np.float32)
    info, rank = helper.make_tensor_value_info, [None] * len(shape)
    graph = helper.make_graph(
        [helper.make_node("MaxPool", ["x"], ["y", "i"], **attributes)],
        "g",
        [info("x", TensorProto.FLOAT, shape)],
        [info("y", TensorProto.FLOAT, rank), info("i", TensorProto.INT64, rank)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return x, session.run(None, {"x": x}), ReferenceEvaluator(model).run(None, {"x": x})


def point(x, values, indices, columns_first):
    """Whether the indices point to the values."""
    flat = (np.swapaxes(x, -1, -2) if columns_first else x).ravel()
    inside = (indices >= 0) & (indices < flat.size)
    return bool(inside.all() and (flat[indices] == values).all())


CASES = {
    "strides of 2": ([2, 3, 5, 6], {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}, True),
    "dilations of 2": ([2, 3, 5, 6], {"kernel_shape": [2, 2], "dilations": [2, 2]}, True),
    "default": ([1, 1, 4, 5], {"kernel_shape": [2, 2]}, False),
    "padding": ([1, 1, 5, 5], {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}, False),
    "one dimension": ([2, 3, 7], {"kernel_shape": [2]}, False),
    "three dimensions": ([1, 2, 4, 5, 6], {"kernel_shape": [2, 2, 2]}, False),
    "columns first": ([1, 1, 5, 5], {"kernel_shape": [2, 2], "storage_order": 1}, False),
}
print(onnx.__version__, onnxruntime.__version__)
same = True
for name, (shape, attributes, wanted) in CASES.items():
    x, (values, runtime), (again, reference) = both(shape, **attributes)
    columns = bool(attributes.get("storage_order"))
    got = point(x, values, runtime, columns), point(x, values, reference, columns)
    print(name, "onnxruntime", runtime.ravel()[:4].tolist(), "reference", reference.ravel()[:4].tolist(), "right:", got)
    same &= got == (True, wanted) and np.array_equal(values, again)
sys.exit(not same)
PYTHON
