#!/usr/bin/env bash
# onnxruntime 1.32.0: TreeEnsemble (ai.onnx.ml 5) has the numbers of `post_transform` in another order than its text: 1, by
# the text SOFTMAX, is the logistic function, and 2, LOGISTIC, is softmax.
#
# The order of the text is NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO, PROBIT; ONNX Runtime's has LOGISTIC second. The older
# TreeEnsembleClassifier and -Regressor, whose attribute is a text, are right. onnx 1.23.2's reference evaluator applies none
# of them to a TreeEnsemble, so that a test against it sees a third result.
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

X = np.float32([[0], [1]])
SCORES = np.float32([[0.3, 0.0], [0.0, 0.7]])
LOGISTIC, SOFTMAX = 1 / (1 + np.exp(-SCORES)), np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)


def results(number):
    node = helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=2,
        aggregate_function=1,
        post_transform=number,
        tree_roots=[0],
        nodes_featureids=[0],
        nodes_modes=helper.make_tensor("modes", TensorProto.UINT8, [1], [0]),
        nodes_splits=helper.make_tensor("splits", TensorProto.FLOAT, [1], [0.5]),
        nodes_truenodeids=[0],
        nodes_trueleafs=[1],
        nodes_falsenodeids=[1],
        nodes_falseleafs=[1],
        leaf_targetids=[0, 1],
        leaf_weights=helper.make_tensor("weights", TensorProto.FLOAT, [2], [0.3, 0.7]),
    )
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [info("x", TensorProto.FLOAT, [2, 1])], [info("y", TensorProto.FLOAT, [2, 2])])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0], ReferenceEvaluator(model).run(None, {"x": X})[0]


schema = onnx.defs.get_schema("TreeEnsemble", 5, "ai.onnx.ml")
text = schema.attributes["post_transform"].description
print(onnxruntime.__version__, onnx.__version__, text)
same = "'SOFTMAX' (1), 'LOGISTIC' (2)" in text
for number, seen in enumerate((SCORES, LOGISTIC, SOFTMAX)):
    runtime, reference = results(number)
    print(number, "onnxruntime", runtime.tolist(), "reference", reference.tolist())
    same &= np.allclose(runtime, seen, atol=1e-6) and np.allclose(reference, SCORES, atol=1e-6)
sys.exit(not same)
PYTHON
