"""Fast correlation in one dimension, of any stride: which products a tile takes, and its three constant matrices.

    y = A^T ((G g) * (B^T d))        y[i] = sum over k of d[stride i + k] g[k],   0 <= i < m,  0 <= k < window

A tile of m outputs reads `(m - 1) stride + window` inputs. With a stride the sum falls into phases: tap k meets inputs
that are k away from a multiple of the stride, so the taps k = p, p + stride, p + 2 stride ... and the inputs p, p +
stride ... are a correlation of stride one among themselves. The products of all phases stand beside each other: rows of
G and of B^T that belong to a phase have entries for its taps and inputs alone, and A^T adds the phases up. A phase of
one tap uses its inputs untransformed. A 3x3 window of stride 2 and 4x4 outputs so takes 81 products, not 144.

A phase is computed with polynomials' values at points (`toomcook.py`) or, where that would lose digits, by Fourier's
transform (`fourier.py`).
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from tilewright.algorithms.winograd.operators.fourier import fourier_matrices
from tilewright.algorithms.winograd.operators.toomcook import Matrix, winograd_matrices

MAX_POINTS = 8
"""The largest number of inputs of a tile's phase per side for which polynomials are evaluated at points; larger ones
use Fourier's transform."""


def reach(m: int, window: int, stride: int = 1) -> int:
    """The number of inputs, along one side, that a tile of `m` outputs reads with windows of `window` inputs and the
    step `stride` between windows."""
    return (m - 1) * stride + window


def points(m: int, window: int, stride: int = 1) -> int:
    """The number of inputs, along one side, of the largest phase of a tile of `m` outputs of windows of `window` inputs
    with `stride`: a phase is every `stride`-th input. Where polynomials are evaluated at points, it is the number of
    points, infinity included."""
    return m + _taps(window, stride)[0] - 1


def products(m: int, window: int, stride: int = 1) -> int:
    """The number of products, along one side, that a tile of `m` outputs takes, summed over the phases of the
    stride."""
    sizes = [m + taps - 1 for taps in _taps(window, stride)]
    return sum(n if n <= MAX_POINTS else 3 * n // 2 - 1 for n in sizes)


def _taps(window: int, stride: int) -> list[int]:
    """The number of taps of each phase of the stride that has any, the largest first."""
    return [len(range(phase, window, stride)) for phase in range(min(stride, window))]


@lru_cache(maxsize=64)
def transforms(m: int, window: int, stride: int = 1) -> tuple[Matrix, Matrix, Matrix]:
    """The matrices `(A^T, G, B^T)` for `m` outputs of a window with `stride`, of shapes [m, p], [p, window], [p, n]: n
    = `reach`, p = `products`. Raises ValueError where a phase of more than `MAX_POINTS` inputs has an odd number of
    them (see `fourier_matrices`)."""
    if stride == 1:
        return _dense(m, window)
    n = reach(m, window, stride)
    at: list[tuple[Fraction, ...]] = [()] * m
    g: list[tuple[Fraction, ...]] = []
    bt: list[tuple[Fraction, ...]] = []
    for phase, taps in enumerate(_taps(window, stride)):
        outputs, filters, inputs = _identity(m) if taps == 1 else _dense(m, taps)
        at = [a + b for a, b in zip(at, outputs, strict=True)]
        g += [_spread(row, phase, stride, window) for row in filters]
        bt += [_spread(row, phase, stride, n) for row in inputs]
    return tuple(at), tuple(g), tuple(bt)


def _dense(m: int, taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """The matrices `(A^T, G, B^T)` for `m` outputs of a window of `taps` elements and stride 1: by Toom-Cook's points
    or, for long tiles, by Fourier's transform."""
    return winograd_matrices(m, taps) if m + taps - 1 <= MAX_POINTS else fourier_matrices(m, taps)


def _identity(m: int) -> tuple[Matrix, Matrix, Matrix]:
    """`(A^T, G, B^T)` for a window of one tap: each output is a product of an input and the tap."""
    each = tuple(tuple(Fraction(i == j) for j in range(m)) for i in range(m))
    return each, ((Fraction(1),),) * m, each


def _spread(row: tuple[Fraction, ...], phase: int, stride: int, length: int) -> tuple[Fraction, ...]:
    """A row of `length` entries with those of `row` at steps of `stride` from `phase` on, and zeros between."""
    result = [Fraction(0)] * length
    result[phase : phase + stride * len(row) : stride] = row
    return tuple(result)
