#!/usr/bin/env bash
# openvino 2026.4.1: reading an ONNX file drops four attributes without a word, and what is computed is the node without them.
#
#   Resize(antialias=1)                      the windows stay as narrow as for enlarging
#   Resize(exclude_outside=1)                taps outside of the image are not left out
#   Resize(keep_aspect_ratio_policy=...)     sizes are stretched: 9 x 7 in the place of 7 x 7 (not_larger), 9 x 9 (not_smaller)
#   LSTM(input_forget=1)                     the two gates are not coupled
#
# ONNX Runtime 1.32.0 does all of them. Reading refuses other things by name, such as a coordinate transformation that it
# does not have ("half_pixel_symmetric").
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet openvino==2026.4.1 onnx==1.23.2 onnxruntime==1.32.0 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper

CORE = openvino.Core()
ROW = np.arange(8, dtype=np.float32).reshape(1, 1, 1, 8) ** 2
IMAGE = np.random.default_rng(0).standard_normal((1, 1, 6, 6)).astype(np.float32)
STEPS = np.ones((3, 1, 2), np.float32)
WEIGHTS = {"w": np.linspace(-1, 1, 16).reshape(1, 8, 2), "r": np.linspace(-0.5, 0.5, 16).reshape(1, 8, 2)}


def both(operator, x, inputs, shape, arrays, **attributes):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, ["y"], **attributes)],
        "g",
        [info("x", TensorProto.FLOAT, x.shape)],
        [info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    precise = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = CORE.compile_model(CORE.read_model(model.SerializeToString()), "CPU", precise)
    return session.run(None, {"x": x})[0], compiled({"x": x})[compiled.outputs[0]]


def halved(**attributes):
    scales = {"scales": np.float32([1, 1, 1, 0.5])}
    return both("Resize", ROW, ["x", "", "scales"], [1, 1, 1, 4], scales, **attributes)


def sized(policy, shape):
    attributes = {"mode": "nearest", "axes": [2, 3], "keep_aspect_ratio_policy": policy}
    return both("Resize", IMAGE, ["x", "", "", "sizes"], [1, 1, *shape], {"sizes": np.array([9, 7])}, **attributes)


def recurrent(**attributes):
    arrays = {n: a.astype(np.float32) for n, a in WEIGHTS.items()}
    return both("LSTM", STEPS, ["x", "w", "r"], [3, 1, 1, 2], arrays, hidden_size=2, **attributes)


def close(a, b):
    return a.shape == b.shape and bool(np.allclose(a, b, atol=1e-4))


print(openvino.__version__, onnxruntime.__version__)
CASES = {
    "antialias": (halved(mode="linear"), halved(mode="linear", antialias=1)),
    "exclude_outside": (halved(mode="cubic"), halved(mode="cubic", exclude_outside=1)),
    "not_larger": (sized("stretch", (9, 7)), sized("not_larger", (7, 7))),
    "not_smaller": (sized("stretch", (9, 7)), sized("not_smaller", (9, 9))),
    "input_forget": (recurrent(), recurrent(input_forget=1)),
}
same = True
for name, (without, those) in CASES.items():
    got = close(*without), close(*those), close(without[1], those[1])
    print(name, "onnxruntime", those[0].shape, those[0].ravel()[:4], "openvino", those[1].shape, those[1].ravel()[:4])
    same &= got == (True, False, True)
sys.exit(not same)
PYTHON
