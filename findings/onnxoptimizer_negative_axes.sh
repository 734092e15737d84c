#!/usr/bin/env bash
# onnxoptimizer 0.4.2: two Squeezes of which the first has a negative axis become a model that is not valid; and a Transpose
# without `perm` before a Gemm is an error there and in onnxsim 0.8.1.
#
# Squeeze by -1 and then by 1 of [3, 1, 4, 1, 1] is [3, 4, 1]. onnxoptimizer counts a negative axis as one before all others,
# so that the second becomes 2, whose size is 4: "Dimension of input 2 must be 1 instead of 4". With the axis 4 for -1 it is
# right; onnxsim leaves these Squeezes alone.
#
# Without `perm` a Transpose reverses the dimensions. Both ask for the attribute: "required undefined attribute 'perm'".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 onnxoptimizer==0.4.2 onnxsim==0.8.1 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import onnx
import onnxoptimizer
import onnxruntime
import onnxsim
from onnx import TensorProto, helper, numpy_helper


def model(nodes, shape, result, **arrays):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, shape)],
        [info("y", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(built, full_check=True)
    return built


def squeezes(axis):
    nodes = [helper.make_node("Squeeze", ["x", "a"], ["p"]), helper.make_node("Squeeze", ["p", "b"], ["y"])]
    return model(nodes, [3, 1, 4, 1, 1], [3, 4, 1], a=np.array([axis]), b=np.array([1]))


def transposed(**attributes):
    nodes = [helper.make_node("Transpose", ["x"], ["p"], **attributes), helper.make_node("Gemm", ["p", "w"], ["y"])]
    return model(nodes, [5, 3], [3, 4], w=np.ones((5, 4), np.float32))


def outcome(optimize, built):
    shape = [d.dim_value for d in built.graph.input[0].type.tensor_type.shape.dim]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    def run(one):
        session = onnxruntime.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, {"x": x})[0]

    right = run(built)
    try:
        got = run(optimize(built))
    except Exception as error:
        known = ("Dimension of input 2 must be 1 instead of 4", "required undefined attribute 'perm'")
        return next((text for text in known if text in str(error)), str(error))
    return "right" if got.shape == right.shape and np.allclose(got, right) else "wrong"


tools = {"onnxoptimizer": onnxoptimizer.optimize, "onnxsim": lambda built: onnxsim.simplify(built)[0]}
print({name: importlib.metadata.version(name) for name in tools})
invalid, missing = "Dimension of input 2 must be 1 instead of 4", "required undefined attribute 'perm'"
same = True
for name, optimize in tools.items():
    models = squeezes(4), squeezes(-1), transposed(perm=[1, 0]), transposed()
    got = [outcome(optimize, built) for built in models]
    print(name, got)
    same &= got == ["right", invalid if name == "onnxoptimizer" else "right", "right", missing]
sys.exit(not same)
PYTHON
