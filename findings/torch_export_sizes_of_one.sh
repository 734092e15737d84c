#!/usr/bin/env bash
# torch 2.14.1 and 2.13.0: an exported program takes a size of 1 that its own range allows, and gives what was traced for 2
# and more; the answer to a question about two sizes is checked instead.
#
# `x.sum(0, keepdim=True) if x.shape[0] > 1 else x * 3`, exported with 4 rows and Dim("b", min=1), gives the sum for 1 row as
# well: 1 in the place of 3, no guard, no error, and a range that begins at 1. Where the question is `x.shape[0] > 3` the export
# is refused ("not all values ... satisfy the generated guard 4 <= ..."), and where it is `x.shape[0] != y.shape[0]` the program
# refuses equal sizes ("Guard failed").
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.14.1 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import sys
import warnings

import torch
from torch.export import Dim, export

warnings.simplefilter("ignore")


class Question(torch.nn.Module):
    def __init__(self, question):
        super().__init__()
        self.question = question

    def forward(self, x, y):
        return x.sum(0, keepdim=True) if self.question(x.shape[0], y.shape[0]) else x * 3


def result(module, *sizes):
    try:
        return module(*(torch.ones(n, 2) for n in sizes)).ravel().tolist()
    except AssertionError as error:
        return "guard" if "Guard failed" in str(error) else str(error)


CASES = {
    "more than 1": (lambda a, b: a > 1, (1, 5)),
    "not 1": (lambda a, b: a != 1, (1, 5)),
    "more than 3": (lambda a, b: a > 3, (3, 5)),
    "other than the second": (lambda a, b: a != b, (5, 5)),
}
got = {}
for name, (question, sizes) in CASES.items():
    eager = Question(question)
    shapes = ({0: Dim("a", min=1)}, {0: Dim("b", min=1)})
    try:
        program = export(eager, (torch.ones(4, 2), torch.ones(5, 2)), dynamic_shapes=shapes)
    except Exception as error:
        got[name] = "refused" if "4 <=" in str(error) else str(error)
        continue
    least = min(int(r.lower) for r in program.range_constraints.values())
    got[name] = least, result(program.module(), *sizes) == result(eager, *sizes), result(program.module(), *sizes)
print(torch.__version__, got)
wanted = {
    "more than 1": (1, False, [1.0, 1.0]),
    "not 1": (1, False, [1.0, 1.0]),
    "more than 3": "refused",
    "other than the second": (1, False, "guard"),
}
sys.exit(got != wanted)
PYTHON
