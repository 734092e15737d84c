#!/usr/bin/env bash
# onnxscript 0.7.2: two Clips, one after the other, whose ranges do not meet become one with another result; so does a Clip
# to negative numbers before a Relu.
#
# Clip(Clip(x, -1, 1), 2, 3) is 2 everywhere. The optimizer intersects the ranges, which gives a minimum of 2 and a maximum
# of 1, and ONNX's Clip takes the maximum then: 1 everywhere. Relu(Clip(x, -2, -1)) is 0; the optimizer raises the minimum
# to 0, leaves the maximum, and the result is -1. Ranges that overlap are right.
#
# `onnxscript.rewriter.rewrite` of two Clips whose bounds are initializers ends in an error, also where the ranges overlap
# ('NoneType' object has no attribute 'numpy'); `onnxscript.optimizer.optimize` does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 onnxscript==0.7.2 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import onnx
import onnxruntime
import onnxscript.optimizer
import onnxscript.rewriter
from onnx import TensorProto, helper, numpy_helper


def model(*nodes, **bounds):
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    arrays = [numpy_helper.from_array(np.float32(v), n) for n, v in bounds.items()]
    graph = helper.make_graph(list(nodes), "g", info[:1], info[1:], arrays)
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(built, full_check=True)
    return built


def results(built):
    session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.float32([-5, -0.5, 0.5, 5])})[0].tolist()


def clips(a, b, c, d):
    first, second = (helper.make_node("Clip", names, [y]) for names, y in ((["x", "a", "b"], "p"), (["p", "c", "d"], "y")))
    return model(first, second, a=a, b=b, c=c, d=d)


def rectified(a, b):
    return model(helper.make_node("Clip", ["x", "a", "b"], ["p"]), helper.make_node("Relu", ["p"], ["y"]), a=a, b=b)


print("onnxscript", importlib.metadata.version("onnxscript"))
CASES = {
    "ranges that overlap": (clips(-1, 1, 0, 3), [0, 0, 0.5, 1], [0, 0, 0.5, 1]),
    "ranges that do not": (clips(-1, 1, 2, 3), [2, 2, 2, 2], [1, 1, 1, 1]),
    "Relu of -1 to 1": (rectified(-1, 1), [0, 0, 0.5, 1], [0, 0, 0.5, 1]),
    "Relu of -2 to -1": (rectified(-2, -1), [0, 0, 0, 0], [-1, -1, -1, -1]),
}
same = True
for name, (built, right, seen) in CASES.items():
    before, after = results(built), results(onnxscript.optimizer.optimize(built))
    print(name, "before", before, "after", after)
    same &= np.allclose(before, right) and np.allclose(after, seen)
try:
    onnxscript.rewriter.rewrite(clips(-1, 1, 0, 3))
    said = "no error"
except Exception as error:
    while error.__cause__ is not None:
        error = error.__cause__
    said = str(error)
print("rewrite:", said)
sys.exit(not same or "has no attribute 'numpy'" not in said)
PYTHON
