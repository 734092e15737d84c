#!/usr/bin/env bash
# torch 2.13.0: where a graph is made functional, a write through windows that leave elements out sets those to zero.
#
# `x.unfold(0, 2, 2)[..., 0] = 5` on 7 elements is no concern of the last one, which eager PyTorch leaves alone. Under
# torch.compile (with "aot_eager" as with every backend of AOTAutograd) and in a decomposed exported program it is 0: the
# view's inverse is `unfold_backward`, which begins with zeros.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import sys

import torch


class Written(torch.nn.Module):
    def forward(self, x):
        x = x.clone()
        x.unfold(0, 2, 2)[..., 0] = 5
        return x


x, module = torch.ones(7), Written()
program = torch.export.export(module, (x,)).run_decompositions()
results = {
    "eager": module(x),
    "aot_eager": torch.compile(module, backend="aot_eager")(x),
    "decomposed program": program.module()(x),
}
for name, y in results.items():
    print(f"{name:20} {y.tolist()}")
sys.exit([float(y[-1]) for y in results.values()] != [1, 0, 0])
PYTHON
