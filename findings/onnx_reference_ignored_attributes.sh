#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator's LSTM takes no notice of `clip` and `input_forget`, without an error.
#
# By the operator's text `clip` bounds the activations' arguments and `input_forget` couples the two gates. ONNX Runtime does
# both; the evaluator's numbers are those of the same node without the attributes. Its LRN goes over as many channels as the
# batch has images: with a batch of 1 only the first channel is normalized, with more images than channels it is an IndexError;
# and its LpNormalization with p = 1 divides by the sum, not by the sum of magnitudes: [1, -2, 3] becomes [0.5, -1, 1.5].
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

rng = np.random.default_rng(0)
WEIGHTS = {"w": rng.standard_normal((1, 20, 4)), "r": rng.standard_normal((1, 20, 5)), "b": rng.standard_normal((1, 40))}


def both(operator, x, weights=(), **attributes):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *weights], ["y"], **attributes)],
        "g",
        [info("x", TensorProto.FLOAT, x.shape)],
        [info("y", TensorProto.FLOAT, [None] * (4 if operator == "LSTM" else x.ndim))],
        [numpy_helper.from_array(WEIGHTS[n].astype(np.float32), n) for n in weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    try:
        reference = ReferenceEvaluator(model).run(None, {"x": x})[0]
    except IndexError:
        reference = None
    return session.run(None, {"x": x})[0], reference


def close(a, b):
    return b is not None and bool(np.allclose(a, b, atol=1e-5))


print(onnx.__version__, onnxruntime.__version__)
same = True
x = rng.standard_normal((3, 2, 4)).astype(np.float32)
usual = both("LSTM", x, ("w", "r", "b"), hidden_size=5)
for attributes in ({}, {"clip": 0.2}, {"input_forget": 1}):
    runtime, reference = both("LSTM", x, ("w", "r", "b"), hidden_size=5, **attributes)
    got = close(runtime, reference), close(reference, usual[1])
    print("LSTM", attributes, "as onnxruntime:", got[0], "as without:", got[1])
    same &= got == (not attributes, True)
for images, channels, wanted in ((1, 5, [True] + [False] * 4), (2, 5, [True] * 2 + [False] * 3), (5, 5, [True] * 5), (4, 2, None)):
    x = 1 + rng.random((images, channels, 3, 3), np.float32)
    runtime, reference = both("LRN", x, size=3, alpha=3.0, beta=0.75, bias=1.0)
    got = None if reference is None else [close(runtime[:, c], reference[:, c]) for c in range(channels)]
    print("LRN", images, "images,", channels, "channels; right channels:", got)
    same &= got == wanted
runtime, reference = both("LpNormalization", np.float32([[1, -2, 3]]), p=1, axis=1)
print("LpNormalization", runtime.tolist(), reference.tolist())
same &= close(runtime, [[1 / 6, -1 / 3, 1 / 2]]) and close(reference, [[0.5, -1, 1.5]])
sys.exit(not same)
PYTHON
