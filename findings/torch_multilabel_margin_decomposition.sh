#!/usr/bin/env bash
# torch 2.13.0: multilabel_margin_loss gives another value once an exported program is decomposed.
#
# A row's targets end at the first -1; what stands behind it is not read (documented, and so in eager mode). The
# decomposition of aten.multilabel_margin_loss_forward in `ExportedProgram.run_decompositions()` goes by the row's other
# entries too. For x = [[0.1, 0.2, 0.4, 0.8]] and targets [[3, -1, 0, 1]]:
#   eager mode and the exported program as it is: 0.325
#   the same program decomposed:                  2.875
# Who reads decomposed programs (most compilers do) gets the second value without a word.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
"$folder/env/bin/python" - <<'PYTHON'
import sys
import warnings

import torch

warnings.simplefilter("ignore")


class Loss(torch.nn.Module):
    def forward(self, x, y):
        return torch.nn.functional.multilabel_margin_loss(x, y)


x, y = torch.tensor([[0.1, 0.2, 0.4, 0.8]]), torch.tensor([[3, -1, 0, 1]])
exported = torch.export.export(Loss(), (x, y))
got = [round(f(x, y).item(), 4) for f in (Loss(), exported.module(), exported.run_decompositions().module())]
print("torch", torch.__version__, "eager, exported, decomposed:", got)
sys.exit(got != [0.325, 0.325, 2.875])
PYTHON
