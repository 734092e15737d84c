#!/usr/bin/env bash
# torch 2.13.0: the ONNX exporter by torch.export (dynamo=True) drops the projection of `nn.LSTM(proj_size=...)` without a
# word, and what it writes is no valid LSTM; the TorchScript exporter refuses the module by name.
#
# ONNX's LSTM has no projection. The exporter writes the operator with hidden_size equal to the projection (4 here, for 16),
# the cell's initial state keeps 16 columns, and the five weights of each direction become four. torch.export itself and its
# decomposed program are right: the loss is in the ONNX rule. ONNX Runtime 1.32.0 loads the file with a warning and fails
# at the first call:
#   Input initial_c must have shape {1,2,4}. Actual:{1,2,16}
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 onnx==1.23.2 onnxscript onnxruntime==1.32.0 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import sys
import warnings

import onnx
import onnxruntime
import torch

warnings.simplefilter("ignore")
module = torch.nn.LSTM(8, 16, proj_size=4).eval()
x = torch.randn(5, 2, 8)
with torch.no_grad():
    want, (_, cell) = module(x)
    exported = torch.export.export(module, (x,)).run_decompositions().module()(x)[0]
    torch.onnx.export(module, (x,), "lstm.onnx", dynamo=True, verbose=False)
    try:
        torch.onnx.export(module, (x,), "old.onnx", dynamo=False)
        old = "exports"
    except Exception as error:
        old = "refused by name" if "proj" in str(error) else str(error)

nodes = [node for node in onnx.load("lstm.onnx").graph.node if node.op_type == "LSTM"]
hidden = [a.i for node in nodes for a in node.attribute if a.name == "hidden_size"]
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
session = onnxruntime.InferenceSession("lstm.onnx", options, providers=["CPUExecutionProvider"])
try:
    session.run(None, {session.get_inputs()[0].name: x.numpy()})
    call = "runs"
except Exception as error:
    call = "fails" if "initial_c must have shape" in str(error) else str(error)

got = {
    "hidden_size": hidden,
    "columns of the cell": cell.shape[-1],
    "export equals eager": torch.equal(exported, want),
    "ONNX Runtime": call,
    "TorchScript exporter": old,
}
print(torch.__version__, got)
sys.exit(
    got
    != {
        "hidden_size": [4],
        "columns of the cell": 16,
        "export equals eager": True,
        "ONNX Runtime": "fails",
        "TorchScript exporter": "refused by name",
    }
)
PYTHON
