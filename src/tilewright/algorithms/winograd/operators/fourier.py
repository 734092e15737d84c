"""Matrices of cyclic correlation by the discrete Fourier transform of real numbers, for windows that are large.

    y = A^T ((G g) * (B^T d))        y[i] = sum over k of d[i + k] g[k],   0 <= i < m,  0 <= k < r

The transform of `n = m + r - 1` real numbers, n even, is real at two frequencies and complex at n / 2 - 1 others, where
a product is made of three real ones (Karatsuba): (a + ib)(c + ie) = k1 - k3 + i(k1 + k2) with k1 = c(a + b),
k2 = a(e - c), k3 = b(c + e). That is 3n / 2 - 1 products in place of n for Toom-Cook's points (`toomcook.py`), but all
coefficients are at most sqrt(2), so that n may be large: what is lost in f32 does not grow as it does there.
The first m results of a cyclic correlation are those of a linear one (overlap-save).
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import cos, pi, sin

from tilewright.algorithms.winograd.operators.toomcook import Matrix


@lru_cache(maxsize=64)
def fourier_matrices(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """The matrices `(A^T, G, B^T)` of the module's text for `m` outputs of a window of `r` elements; cosines and sines
    are rounded to f64, and equal where they are by symmetry.

    Raises ValueError when the number of inputs, m + r - 1, is odd or less than 4.
    """
    n = m + r - 1
    if m < 1 or r < 1 or n % 2 or n < 4:
        raise ValueError(f"no Fourier transform for {m} outputs of a window of {r}: {n} inputs")
    ends = [(Fraction(1),) * n, tuple(Fraction((-1) ** j) for j in range(n))]
    bt = list(ends)
    g = [tuple(x / n for x in row[:r]) for row in ends]
    at = [row[:m] for row in ends]
    for k in range(1, n // 2):
        c = tuple(_cosine(j * k, n) for j in range(n))
        s = tuple(_cosine(4 * j * k - n, 4 * n) for j in range(n))
        # The input's transform is a + ib = sum of d (c - is), the filter's, conjugated, c + ie = sum of g (c + is).
        bt += [tuple(x - y for x, y in zip(c, s, strict=True)), c, tuple(-y for y in s)]
        twice = Fraction(2, n)
        g += [
            tuple(twice * x for x in c[:r]),
            tuple(twice * (y - x) for x, y in zip(c[:r], s, strict=False)),
            tuple(twice * (x + y) for x, y in zip(c[:r], s, strict=False)),
        ]
        at += [tuple(x - y for x, y in zip(c[:m], s, strict=False)), tuple(-y for y in s[:m]), tuple(-x for x in c[:m])]
    return tuple(zip(*at, strict=True)), tuple(g), tuple(bt)


def _cosine(j: int, n: int) -> Fraction:
    """cos(2 pi j / n), computed in the first octant: equal magnitudes are equal numbers."""
    j = abs(j) % n
    j = min(j, n - j)
    if 4 * j > n:
        return -_cosine(n // 2 - j, n) if n % 2 == 0 else Fraction(cos(2 * pi * j / n))
    if 8 * j > n:
        return Fraction(sin(2 * pi * (n - 4 * j) / (4 * n)))
    return Fraction(cos(2 * pi * j / n))
