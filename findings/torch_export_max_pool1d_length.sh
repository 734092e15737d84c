#!/usr/bin/env bash
# torch 2.13.0: torch.export makes the length that `max_pool1d` pools over a constant, though the shape that comes out needs
# none; max_pool1d that also returns indices, avg_pool1d and max_pool2d over a length of its own keep it open.
#
# A length marked Dim.AUTO becomes 16 without a word in the exported program, which then refuses every other length; marked
# Dim.DYNAMIC it is an error ("your code specialized it to be a constant (16)"). Pooling with `return_indices=True` and
# dropping the indices, or pooling rows of height 1 by max_pool2d, gives the same numbers with an open length.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import sys
import warnings

import torch
import torch.nn.functional as F
from torch.export import Dim, export

warnings.simplefilter("ignore")


class Pool(torch.nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def forward(self, x):
        return self.pool(x)


FORMS = {
    "max_pool1d": lambda x: F.max_pool1d(x, 2),
    "max_pool1d with indices": lambda x: F.max_pool1d(x, 2, return_indices=True)[0],
    "max_pool2d of height 1": lambda x: F.max_pool2d(x.unsqueeze(2), (1, 2)).squeeze(2),
    "avg_pool1d": lambda x: F.avg_pool1d(x, 2),
}
x, longer = torch.randn(2, 3, 16), torch.randn(2, 3, 20)
got = {}
for name, form in FORMS.items():
    program = export(Pool(form), (x,), dynamic_shapes=({2: Dim.AUTO},))
    try:
        same = torch.equal(program.module()(longer), form(longer))
        auto = "open" if same else "wrong"
    except Exception as error:
        auto = "refuses 20" if "20" in str(error) or "16" in str(error) else str(error)
    try:
        export(Pool(form), (x,), dynamic_shapes=({2: Dim.DYNAMIC},))
        dynamic = "open"
    except Exception as error:
        dynamic = "error" if "specialized it to be a constant (16)" in str(error) else str(error)
    got[name] = auto, dynamic
print(torch.__version__, got)
wanted = {name: ("open", "open") for name in FORMS} | {"max_pool1d": ("refuses 20", "error")}
sys.exit(got != wanted)
PYTHON
