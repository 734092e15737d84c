#!/usr/bin/env bash
# torch 2.14.1 and 2.13.0: `pixel_unshuffle` of a batch of 0 images returns the shape that it was called with, on the CPU and
# under torch.compile with the backends "eager" and "aot_eager"; meta tensors and the batch of 1 have the divided one.
#
# (0, 3, 8, 8) by a factor of 2 stays (0, 3, 8, 8), where (1, 3, 8, 8) becomes (1, 12, 4, 4) and a meta tensor of (0, 3, 8, 8)
# becomes (0, 12, 4, 4). A convolution of 12 channels that follows works for every batch but the empty one, for which it raises
# "expected input[0, 3, 8, 8] to have 12 channels". The inverse, `pixel_shuffle`, makes (0, 3, 8, 8) of (0, 12, 4, 4) everywhere.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.14.1 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import sys

import torch
from torch.nn.functional import pixel_shuffle, pixel_unshuffle


def apart(x):
    return pixel_unshuffle(x, 2)


def convolved(batch):
    try:
        return tuple(torch.nn.Conv2d(12, 5, 1)(apart(torch.zeros(batch, 3, 8, 8))).shape)
    except RuntimeError as error:
        return "expected input[0, 3, 8, 8] to have 12 channels" in str(error)


empty = torch.zeros(0, 3, 8, 8)
got = {
    "eager": tuple(apart(empty).shape),
    "one image": tuple(apart(torch.zeros(1, 3, 8, 8)).shape),
    "meta": tuple(apart(empty.to("meta")).shape),
    "compiled, eager": tuple(torch.compile(apart, backend="eager")(empty).shape),
    "compiled, aot_eager": tuple(torch.compile(apart, backend="aot_eager")(empty).shape),
    "inverse": tuple(pixel_shuffle(torch.zeros(0, 12, 4, 4), 2).shape),
    "convolution of 1": convolved(1),
    "convolution of 0 raises": convolved(0),
}
wanted = {
    "eager": (0, 3, 8, 8),
    "one image": (1, 12, 4, 4),
    "meta": (0, 12, 4, 4),
    "compiled, eager": (0, 3, 8, 8),
    "compiled, aot_eager": (0, 3, 8, 8),
    "inverse": (0, 3, 8, 8),
    "convolution of 1": (1, 5, 4, 4),
    "convolution of 0 raises": True,
}
print(torch.__version__, got)
sys.exit(got != wanted)
PYTHON
