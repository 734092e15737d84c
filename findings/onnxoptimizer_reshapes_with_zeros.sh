#!/usr/bin/env bash
# onnxoptimizer 0.4.2: of two Reshapes the first one is removed, also where the second one's shape has a 0, which means a
# dimension of the first one's result.
#
# [2, 3, 4] reshaped to [6, 4] and then to [0, -1] is [6, 4]; after `onnxoptimizer.optimize` with its default passes
# (eliminate_consecutive_idempotent_ops) it is [2, 12], whose declared shape is still [6, 4]. The shapes [-1, 2, 6] and
# [0, 0, -1], as exporters write a split of heads with an open batch, go from [2, 2, 6] to [2, 3, 4] for 24 numbers.
# onnxsim 0.8.1, onnxslim 0.1.98 and onnxscript 0.7.2 leave such pairs right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 onnxoptimizer==0.4.2 onnxsim==0.8.1 onnxslim==0.1.98 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import onnx
import onnxoptimizer
import onnxruntime
import onnxsim
import onnxslim
from onnx import TensorProto, helper, numpy_helper


def model(first, second, batch):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "s"], ["a"]), helper.make_node("Reshape", ["a", "t"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, [batch, 3, 4])],
        [info("y", TensorProto.FLOAT, [None] * len(second))],
        [numpy_helper.from_array(np.array(v), n) for n, v in (("s", first), ("t", second))],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(built, full_check=True)
    return built


def shape(built):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(built.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.zeros((2, 3, 4), np.float32)})[0].shape


print({name: importlib.metadata.version(name) for name in ("onnxoptimizer", "onnxsim", "onnxslim")})
same = True
for first, second, batch, right, wrong in (
    ([6, 4], [0, -1], 2, (6, 4), (2, 12)),
    ([-1, 2, 6], [0, 0, -1], "batch", (2, 2, 6), (2, 3, 4)),
):
    got = {
        "before": shape(model(first, second, batch)),
        "onnxsim": shape(onnxsim.simplify(model(first, second, batch))[0]),
        "onnxslim": shape(onnxslim.slim(model(first, second, batch))),
        "onnxoptimizer": shape(onnxoptimizer.optimize(model(first, second, batch))),
    }
    print(first, second, got)
    same &= got == {name: wrong if name == "onnxoptimizer" else right for name in got}
sys.exit(not same)
PYTHON
