#!/usr/bin/env bash
# onnxruntime 1.32.0: two convolutions whose weights (i8, a scale a channel) share one zero point make a session of a valid
# model fail when it is asked to be precise, on a processor with AVX2 and without VNNI.
#
# The option "session.x64quantprecision" turns weights of i8 into u8, which also changes their zero points. Two
# DequantizeLinear that name the same initializer as their zero point have it changed twice:
#   FAIL: ... AddInitializedOrtValue Attempt to replace the existing tensor
# With a zero point of its own for each weight the same model loads; without the option both load. The model is what
# exporters write that share equal constants.
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
from onnx import TensorProto, helper, numpy_helper


def model(zero_points):
    rng = np.random.default_rng(0)
    nodes, arrays = [], {"sx": np.float32(0.05), "zx": np.uint8(128)}
    for k, zero in enumerate(zero_points):
        arrays[f"w{k}"] = rng.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8)
        arrays[f"s{k}"] = np.full(8, 0.01, np.float32)
        arrays[zero] = np.zeros(8, np.int8)
        x = "x" if k == 0 else f"y{k - 1}"
        nodes += [
            helper.make_node("QuantizeLinear", [x, "sx", "zx"], [f"q{k}"]),
            helper.make_node("DequantizeLinear", [f"q{k}", "sx", "zx"], [f"d{k}"]),
            helper.make_node("DequantizeLinear", [f"w{k}", f"s{k}", zero], [f"v{k}"], axis=0),
            helper.make_node("Conv", [f"d{k}", f"v{k}"], [f"y{k}"], pads=[1] * 4),
        ]
    nodes += [
        helper.make_node("QuantizeLinear", ["y1", "sx", "zx"], ["last"]),
        helper.make_node("DequantizeLinear", ["last", "sx", "zx"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    shape = [1, 8, 6, 6]
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, shape)],
        [info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made.SerializeToString()


def loads(zero_points, precise):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if precise:
        options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        onnxruntime.InferenceSession(model(zero_points), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return "replace the existing tensor" in str(error) and "refused"
    return "loads"


got = {
    "shared, precise": loads(("z", "z"), True),
    "shared": loads(("z", "z"), False),
    "own, precise": loads(("z0", "z1"), True),
}
print(onnxruntime.__version__, got)
wanted = {"shared, precise": "refused", "shared": "loads", "own, precise": "loads"}
sys.exit(got != wanted)
PYTHON
