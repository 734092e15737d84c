#!/usr/bin/env bash
# torch 2.13.0: the ONNX exporter by torch.export (dynamo=True) leaves `divisor_override` out of average pools without a word,
# and a LogSigmoid of -50 is minus infinity in its file.
#
# AvgPool2d(3, divisor_override=5) divides sums of nine by 5; the file has an AveragePool, which divides by 9. The exported
# program of torch.export has the divisor: the loss is in the ONNX rule.
#
# LogSigmoid becomes Log(Sigmoid(x)). PyTorch has -50 for -50; in float32 the logarithm has lost all digits where the sigmoid
# has, and ONNX Runtime 1.32.0's sigmoid is zero there. For 20 it is 0 in the place of -2e-9.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import sys
import warnings

import numpy as np
import onnxruntime
import torch

warnings.simplefilter("ignore")


def results(module, x):
    program = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [node.op_type for node in program.model_proto.graph.node]
    return names, module(x).numpy(), session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


print(torch.__version__, onnxruntime.__version__)
image = torch.arange(36.0).reshape(1, 1, 6, 6)
module = torch.nn.AvgPool2d(3, divisor_override=5)
names, eager, model = results(module, image)
exported = torch.export.export(module, (image,)).module()(image).numpy()
print("AvgPool2d", names, eager.ravel().tolist(), "exported", exported.ravel().tolist(), "ONNX", model.ravel().tolist())
same = "AveragePool" in names and np.allclose(eager, exported) and np.allclose(model, eager * 5 / 9)

names, eager, model = results(torch.nn.LogSigmoid(), torch.tensor([-1.0, -50.0, -120.0, 20.0]))
print("LogSigmoid", names, eager.tolist(), "ONNX", model.tolist())
same &= names == ["Sigmoid", "Log"] and np.allclose(eager, [-1.3132617, -50, -120, -2.0611537e-9], rtol=1e-5)
same &= bool(np.isclose(model[0], eager[0])) and model[2] == -np.inf and model[3] == 0
sys.exit(not same)
PYTHON
