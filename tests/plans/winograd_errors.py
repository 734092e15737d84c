"""How far a Winograd convolution in f32 is from the exact one, followed through the algorithm.

Each rounding adds an error of its own: up to u = 2^-24 of what is rounded, in the mean square u^2 / 3 at most. With
inputs of variance 1 and filters of variance 1 / (window^2 channels), so that outputs have variance 1, the variance of
an element of a tile, of the filters and of their product, summed over the channels, is known from the norms of the
matrices' rows, one factor a dimension:

    V = B^T d B    b[i] b[j]                      b[i] = sum of B^T[i, :]^2
    U = G g G^T    g[i] g[j] / channels           g[i] = sum of G[i, :]^2 / window
    M              b[i] g[i] b[j] g[j]

What is off in M reaches the output p, q as sum A^T[p, i]^2 A^T[q, j]^2 of its variance: relative to M's own, all
roundings before and in the transform of the output are amplified alike, by

    a[p] a[q]      a[p] = sum over i of A^T[p, i]^2 b[i] g[i]

and their numbers add up: 1 of U; of V and of the output's transform as many as a row of B^T, or of A^T, has entries, in
each of two passes; and of the products half as many as are summed in a row (the k-th rounding is of a sum of k), where
parts of the channels are summed apart half of a part's and half of the parts.
(Barabasz et al. 2020, "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks",
bound the worst case by the same factors; independent roundings are the model of Higham and Mary 2019, "A New Approach
to Probabilistic Rounding Error Analysis".)
"""

from __future__ import annotations

from math import ceil

import numpy as np

from tilewright.ops.lowered.correlation import transforms
from tilewright.plans.winograd.tiles import part_of

MOST = 5.0
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
    unit = deviation(tile, window, want.shape[2:], part * lanes, ceil(blocks / part), stride, dilation)
    return np.asarray(np.abs(got - want) / unit)


def deviation(
    tile: int, window: int, shape: tuple[int, ...], part: int, parts: int, stride: int = 1, dilation: int = 1
) -> np.ndarray:
    """The standard deviation of the error of each output of a map of `shape`, where outputs have variance 1.

    `part` channels are summed at once, and so many `parts` then.
    """
    at, g, bt = (np.array(matrix, np.float64) for matrix in transforms(tile, window, stride))
    rows = at**2 @ ((bt**2).sum(1) * (g**2).sum(1) / window)
    roundings = 1 + 2 * longest(bt) + part / 2 + parts / 2 + 2 * longest(at)
    down, across = (rows[np.arange(n) // dilation % tile] for n in shape)
    return 2.0**-24 * np.sqrt(roundings / 3 * np.outer(down, across))


def longest(matrix: np.ndarray) -> int:
    """Entries of the row that has most."""
    return int((matrix != 0).sum(1).max())
