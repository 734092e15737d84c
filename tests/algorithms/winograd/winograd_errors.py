"""Errors of a Winograd convolution's outputs, each as a multiple of what `plan/errors.py` expects of it."""

from __future__ import annotations

from math import ceil

import numpy as np

from tilewright.algorithms.winograd.plan.errors import deviations
from tilewright.algorithms.winograd.plan.tiles import part_of

MAX_DEVIATIONS = 5.0
"""Standard deviations that no error exceeds. Of 10,000 normal ones one would in one run of 170; as roundings are up to
u^2 / 3, in the mean half of it, these are 7 true ones."""


def errors(
    got: np.ndarray,
    want: np.ndarray,
    tile: int,
    window: int,
    channels: int,
    lanes: int,
    stride: int = 1,
    dilation: int = 1,
) -> np.ndarray:
    """The error of each output, in standard deviations, where channels are in blocks of `lanes`.

    Inputs have variance 1, filters 1 / (window^2 channels).
    """
    blocks = ceil(channels / lanes)
    part = part_of(blocks, lanes)
    each = np.array(deviations(tile, window, stride, part * lanes, ceil(blocks / part)))
    down, across = (each[np.arange(n) // dilation % tile] for n in want.shape[2:])
    return np.asarray(np.abs(got - want) / np.sqrt(np.outer(down, across)))
