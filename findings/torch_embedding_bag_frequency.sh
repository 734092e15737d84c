#!/usr/bin/env bash
# torch 2.13.0 (CPU): EmbeddingBag(scale_grad_by_freq=True) divides rows by the counts of other rows.
#
# The gradient of each row is to be divided by how often its index occurs in the batch. For indices
# [[0, 1, 2, 1], [3, 0, 8, 8], [2, 2, 1, 0]], mode "sum" and a gradient of ones, every row that occurs at all has
# gradient count / count = 1, and nn.Embedding gives that. EmbeddingBag gives 1/3 for row 3, which occurs once, and 2/3
# for row 8, which occurs twice: both are divided by 3.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
"$folder/env/bin/python" - <<'PYTHON'
import sys

import torch

indices = torch.tensor([[0, 1, 2, 1], [3, 0, 8, 8], [2, 2, 1, 0]])
got = {}
for name, layer in (
    ("Embedding", torch.nn.Embedding(9, 2, scale_grad_by_freq=True)),
    ("EmbeddingBag", torch.nn.EmbeddingBag(9, 2, mode="sum", scale_grad_by_freq=True)),
):
    layer(indices).sum().backward()
    got[name] = [round(v, 3) for v in layer.weight.grad[:, 0].tolist()]
    print("torch", torch.__version__, name, got[name])
sys.exit(
    got
    != {
        "Embedding": [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0],
        "EmbeddingBag": [1.0, 1.0, 1.0, 0.333, 0.0, 0.0, 0.0, 0.0, 0.667],
    }
)
PYTHON
