#!/usr/bin/env bash
# torch 2.14.1: the gradients of torch.fmax and torch.fmin go to an operand that is NaN, as to the other one.
#
# fmax(NaN, 1) is 1, whatever the NaN was: its derivative is 0 by the first operand and 1 by the second, and so it was in
# torch 2.13.0. 2.14 gave fmax the formula of maximum, whose result is NaN there, and both operands get 1:
#   operands                   (NaN, 1), (1, NaN), (1, 1)
#   gradients of the first     1,        1,        1/2
#   gradients of the second    1,        1,        1/2
# The halves at equal operands are meant (pytorch/pytorch#191142); the NaN is mended after 2.14.1 (#193035). Until then a
# mask by NaN, as of missing values, lets gradients into what was left out.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.14.1 numpy
"$folder/env/bin/python" - <<'PYTHON'
import sys

import torch

nan = float("nan")
got = {}
for function in (torch.fmax, torch.fmin):
    x, y = torch.tensor([nan, 1.0, 1.0]).requires_grad_(), torch.tensor([1.0, nan, 1.0]).requires_grad_()
    result = function(x, y)
    result.sum().backward()
    got[function.__name__] = [result.tolist(), x.grad.tolist(), y.grad.tolist()]
    print("torch", torch.__version__, function.__name__, "result and gradients", got[function.__name__])
sys.exit(any(v != [[1.0, 1.0, 1.0], [1.0, 1.0, 0.5], [1.0, 1.0, 0.5]] for v in got.values()))
PYTHON
