#!/usr/bin/env bash
# onnx 1.23.2: of two local functions that differ in `overload` the reference evaluator runs the last one for both; a Loop
# without a condition takes no step there, and one that gathers numbers gives a matrix.
#
# A node names a function by domain, name and overload (IR version 10). The evaluator leaves out the overload: with d.f:one =
# Neg and d.f:two = Abs both nodes give Abs, or both Neg, by the order of the functions in the file.
#
# The operator's text has a Loop with a trip count and an empty condition as a `for`. The evaluator returns the initial
# values. With a condition that is true it goes round, and gathers outputs of rank 0 to [steps, 1] in the place of [steps].
# ONNX Runtime 1.32.0 is right in all of them.
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
from onnx.reference import ReferenceEvaluator

info, node, opset = helper.make_tensor_value_info, helper.make_node, helper.make_opsetid("", 20)


def both(graph, feeds, functions=()):
    opsets = [opset, helper.make_opsetid("d", 1)] if functions else [opset]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    runs = (session.run(None, feeds), ReferenceEvaluator(model).run(None, feeds))
    return tuple([np.asarray(a).tolist() for a in results] for results in runs)


def function(overload, operator):
    return helper.make_function("d", "f", ["a"], ["b"], [node(operator, ["a"], ["b"])], [opset], overload=overload)


def calls():
    nodes = [node("f", ["x"], [y], domain="d", overload=name) for y, name in (("p", "one"), ("q", "two"))]
    outputs = [info(y, TensorProto.FLOAT, [3]) for y in "pq"]
    return helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, [3])], outputs)


def loop(condition, gathers):
    outputs = [info("goes", TensorProto.BOOL, []), *(info(n, TensorProto.FLOAT, []) for n in ["t", "each"][: 1 + gathers])]
    body = helper.make_graph(
        [
            node("Identity", ["again"], ["goes"]),
            node("Add", ["s", "one"], ["t"]),
            node("Identity", ["t"], ["each"]),
        ],
        "body",
        [info("k", TensorProto.INT64, []), info("again", TensorProto.BOOL, []), info("s", TensorProto.FLOAT, [])],
        outputs,
        [numpy_helper.from_array(np.float32(1), "one")],
    )
    return helper.make_graph(
        [node("Loop", ["n", condition, "x"], ["last", "all"][: 1 + gathers], body=body)],
        "g",
        [info("x", TensorProto.FLOAT, [])],
        [info("last", TensorProto.FLOAT, []), info("all", TensorProto.FLOAT, [3])][: 1 + gathers],
        [numpy_helper.from_array(np.array(3), "n"), numpy_helper.from_array(np.array(True), "true")],
    )


print(onnx.__version__, onnxruntime.__version__)
x, functions = np.float32([1, -2, 3]), [function("one", "Neg"), function("two", "Abs")]
got = [both(calls(), {"x": x}, order) for order in (functions, functions[::-1])]
neg, size = (-x).tolist(), np.abs(x).tolist()
print("overloads", got)
same = got == [([neg, size], [size, size]), ([neg, size], [neg, neg])]
start = {"x": np.array(0, np.float32)}
got = [both(loop(condition, gathers), start) for condition, gathers in (("", False), ("true", False), ("true", True))]
print("Loop", got)
same &= got == [([3], [0]), ([3], [3]), ([3, [1, 2, 3]], [3, [[1], [2], [3]]])]
sys.exit(not same)
PYTHON
