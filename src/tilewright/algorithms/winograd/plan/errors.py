"""A model of the error of a Winograd convolution in f32, from the roundings of each of its steps.

Each rounding adds an error of its own: up to u = 2^-24 of what is rounded, in the mean square u^2 / 3 at most. With
inputs of variance 1 and filters of variance 1 / (window^2 channels), so that outputs have variance 1, the variance of
an element of a tile, of the filters and of their product, summed over the channels, is known from the norms of the
matrices' rows, one factor a dimension:

    V = B^T d B    b[i] b[j]                      b[i] = sum of B^T[i, :]^2
    U = G g G^T    g[i] g[j] / channels           g[i] = sum of G[i, :]^2 / window
    M              b[i] g[i] b[j] g[j]

The variance of an error in M is multiplied by sum A^T[p, i]^2 A^T[q, j]^2 in output p, q: relative to M's own, all
roundings before and in the transform of the output are amplified alike, by

    a[p] a[q]      a[p] = sum over i of A^T[p, i]^2 b[i] g[i]

and their numbers add up: 1 of U; of V and of the output's transform as many as a row of B^T, or of A^T, has entries, in
each of two passes; and of the products half as many as are summed in a row (the k-th rounding is of a sum of k), where
parts of the channels are summed separately half of a part's and half of the parts. (Barabasz et al. 2020, "Error
Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", bound the worst case by the same
factors; independent roundings are the model of Higham and Mary 2019, "A New Approach to Probabilistic Rounding Error
Analysis".)
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from math import ceil, sqrt

from tilewright.algorithms.winograd.operators.correlation import transforms
from tilewright.algorithms.winograd.operators.toomcook import Matrix
from tilewright.algorithms.winograd.plan.tiles import part_of

LARGEST_ERROR = 7.0
"""The number of standard deviations (in this model of largest roundings) that no error of a million outputs exceeds. It
is larger than for a million normal numbers, since errors are proportional to the elements of their tile. F(6, 3) of 128
channels reaches 6.4 among 800,000 outputs, on any machine that takes it (`python -m benchmarks.bench_layers --only
conv3x3-128-256-56 --peers onnxruntime`, Zen 4, 2026-11-22)."""

LARGEST_OUTPUT = 4.8
"""The number of standard deviations of the largest of a million outputs: 4.83 in that layer."""


def largest_error(tile: int, window: int, stride: int, channels: int, lanes: int) -> float:
    """The largest error that is expected in the outputs of a convolution by F(tile, window) with the step `stride`
    between outputs, relative to its largest output. It sums over `channels` channels, in blocks of `lanes`."""
    blocks = ceil(channels / lanes)
    part = part_of(blocks, lanes)
    return LARGEST_ERROR / LARGEST_OUTPUT * max(deviations(tile, window, stride, part * lanes, ceil(blocks / part)))


def largest_error_of_sums(tile: int, window: int, part: int, parts: int) -> float:
    """The largest error that is expected of a convolution's gradient by its weight, as a share of the largest weight's:
    the weights are the outputs of F(window, tile); sums are over `part` tiles at once, and then over `parts` such sums.
    Both operands are transformed in single precision."""
    _, g, _ = transforms(window, tile)
    result = deviations(window, tile, 1, part, parts, filters=1 + 2 * longest(g))
    return LARGEST_ERROR / LARGEST_OUTPUT * max(result)


@lru_cache(maxsize=1024)
def deviations(tile: int, window: int, stride: int, part: int, parts: int, *, filters: int = 1) -> tuple[float, ...]:
    """For each output p along a side of a tile, the standard deviation of its rounding error if outputs have variance
    1; the deviation of output (p, q) is the geometric mean of the ones of p and q. `tile`, `window` and `stride` say
    which transform it is. `part` channels are summed at once, and then `parts` such sums. `filters` is the number of
    roundings of an element of the transformed filters."""
    at, g, bt = transforms(tile, window, stride)
    products = [squares(b) * squares(k) / window for b, k in zip(bt, g, strict=True)]
    rows = [sum(float(x) ** 2 * p for x, p in zip(row, products, strict=True)) for row in at]
    roundings = filters + 2 * longest(bt) + part / 2 + parts / 2 + 2 * longest(at)
    return tuple(2.0**-24 * sqrt(roundings / 3) * row for row in rows)


def squares(row: Iterable[Fraction]) -> float:
    """The sum of the squares of a row of a matrix."""
    return sum(float(x) ** 2 for x in row)


def longest(matrix: Matrix) -> int:
    """The most non-zero entries that a row of a matrix has."""
    return max(sum(x != 0 for x in row) for row in matrix)
