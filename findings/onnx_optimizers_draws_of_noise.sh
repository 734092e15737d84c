#!/usr/bin/env bash
# onnxoptimizer 0.4.2, onnxsim 0.8.1 and onnxslim 0.1.98: two draws of noise become one, and onnxslim makes a draw a constant.
#
# Two RandomNormalLike of one tensor (`torch.randn_like` twice: the noise of a sampler's steps, a latent that is drawn again)
# have equal inputs and attributes, and all three merge them as common subexpressions: their difference, which is noise
# before, is zero. onnxslim also computes a RandomNormal, which has no inputs, once and for all: every call of the file that
# it writes adds the same numbers. onnxscript 0.7.2 and ONNX Runtime's own optimizations leave both alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 onnxoptimizer==0.4.2 onnxsim==0.8.1 onnxslim==0.1.98 onnxscript==0.7.2 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import onnx
import onnx_ir
import onnxoptimizer
import onnxruntime
import onnxscript.optimizer
import onnxsim
import onnxslim
from onnx import TensorProto, helper


def model(*nodes):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes), "g", [info("x", TensorProto.FLOAT, [4, 4])], [info("y", TensorProto.FLOAT, [4, 4])]
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(built, full_check=True)
    return built


def twice():
    return model(
        helper.make_node("RandomNormalLike", ["x"], ["a"]),
        helper.make_node("RandomNormalLike", ["x"], ["b"]),
        helper.make_node("Sub", ["a", "b"], ["y"]),
    )


def alone():
    return model(helper.make_node("RandomNormal", [], ["a"], shape=[4, 4]), helper.make_node("Add", ["x", "a"], ["y"]))


def script(built):
    program = onnx_ir.from_proto(built)
    onnxscript.optimizer.optimize(program)
    return onnx_ir.to_proto(program)


def noisy(built):
    session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    return bool(np.abs(session.run(None, {"x": np.zeros((4, 4), np.float32)})[0]).max() > 0)


def draws(built):
    return any(node.op_type.startswith("Random") for node in built.graph.node)


OPTIMIZERS = {
    "before": lambda built: built,
    "onnxscript": script,
    "onnxoptimizer": onnxoptimizer.optimize,
    "onnxsim": lambda built: onnxsim.simplify(built)[0],
    "onnxslim": onnxslim.slim,
}
print({name: importlib.metadata.version(name) for name in OPTIMIZERS if name != "before"})
got = {name: (noisy(optimize(twice())), draws(optimize(alone()))) for name, optimize in OPTIMIZERS.items()}
print("a difference of draws is noise, a draw is drawn:", got)
wanted = {
    "before": (True, True),
    "onnxscript": (True, True),
    "onnxoptimizer": (False, True),
    "onnxsim": (False, True),
    "onnxslim": (False, False),
}
sys.exit(got != wanted)
PYTHON
