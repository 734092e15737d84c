#!/usr/bin/env bash
# torch 2.13.0 on processors: torch.igamma and torch.igammac have fewer digits than their type in two places.
#
#   igammac(1e-8, 0.5) in float32 is 1.14e-8, twice the right 5.60e-9: for small a it is a difference of a logarithm's
#   gamma, of 1 + a, which is rounded to 1, so that what is left is another number.
#   igamma(25, 20) in float64 is 1.4e-9 from the right value, relatively, (30, 25) 1.2e-9 and (1000, 990) 1.5e-10, where
#   (10, 8) and (20, 17) have all their digits: from a = 20 on, for x near a, an asymptotic series with a fixed number of
#   terms takes over. float64 has 2e-16.
#
# The right values are mpmath's 1.3.0, with 50 digits.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 mpmath==1.3.0 numpy
"$folder/env/bin/python" - <<'PYTHON'
import sys

import mpmath
import torch

mpmath.mp.dps = 50


def error(function, dtype, a, x):
    """The relative error of PyTorch's value, of the numbers as the type has them."""
    a, x = (torch.tensor(v, dtype=dtype) for v in (a, x))
    bounds = (0, float(x)) if function is torch.igamma else (float(x), mpmath.inf)
    right = mpmath.gammainc(float(a), *bounds, regularized=True)
    value = function(a, x).item()
    print(function.__name__, dtype, float(a), float(x), "PyTorch", value, "mpmath", mpmath.nstr(right, 12))
    return abs(float((value - right) / right))


print(torch.__version__, mpmath.__version__)
small = error(torch.igammac, torch.float32, 1e-8, 0.5)
usual = error(torch.igammac, torch.float32, 0.1, 0.5)
middle = [error(torch.igamma, torch.float64, a, x) for a, x in ((20.0, 17.0), (25.0, 20.0), (1000.0, 990.0))]
print("relative errors", small, usual, middle)
sys.exit(not (small > 0.5 and usual < 1e-5 and middle[0] < 1e-14 and middle[1] > 1e-10 and middle[2] > 1e-11))
PYTHON
