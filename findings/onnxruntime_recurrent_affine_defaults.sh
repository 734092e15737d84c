#!/usr/bin/env bash
# onnxruntime 1.32.0: RNN with the activation Affine or ScaledTanh and no activation_alpha gives zeros; with the numbers
# 1 and 0 (1 and 1 for ScaledTanh) it gives x and tanh(x).
#
# The text of RNN, GRU and LSTM says that the defaults of the numbers are those of the operators of the same names.
# Affine and ScaledTanh are in the list of activations, yet onnx 1.23.2 has no operators of these names, so that
# no default is written down; ONNX Runtime takes 0 for all that it does not know. LeakyRelu (0.01), Elu (1) and
# HardSigmoid (0.2, 0.5) have theirs. No warning is logged: a layer whose file leaves the numbers out is zero.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/env/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper


def state(activation, **numbers):
    info = helper.make_tensor_value_info
    node = helper.make_node("RNN", ["x", "w", "r"], ["", "h"], hidden_size=1, activations=[activation], **numbers)
    inputs = {"x": np.full((1, 1, 1), 2, np.float32), "w": np.full((1, 1, 1), 0.25, np.float32)}
    inputs["r"] = np.zeros((1, 1, 1), np.float32)
    types = [info(n, TensorProto.FLOAT, a.shape) for n, a in inputs.items()]
    graph = helper.make_graph([node], "g", types, [info("h", TensorProto.FLOAT, [1, 1, 1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return float(session.run(None, inputs)[0].ravel()[0])


print(onnxruntime.__version__, onnx.__version__)
cases = [
    ("Affine", {}, 0.0),
    ("Affine", {"activation_alpha": [1.0], "activation_beta": [0.0]}, 0.5),
    ("ScaledTanh", {}, 0.0),
    ("ScaledTanh", {"activation_alpha": [1.0], "activation_beta": [1.0]}, float(np.tanh(0.5))),
    ("LeakyRelu", {}, 0.5),
    ("HardSigmoid", {}, 0.6),
]
same = True
for activation, numbers, expected in cases:
    got = state(activation, **numbers)
    print(activation, numbers, "gives", got)
    same &= abs(got - expected) < 1e-6
sys.exit(not same)
PYTHON
