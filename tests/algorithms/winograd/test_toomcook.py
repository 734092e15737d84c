"""The matrices of fast correlation, with exact arithmetic."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from tilewright.algorithms.winograd.operators.toomcook import Matrix, winograd_matrices


def product(matrix: Matrix, x: list[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, x, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.parametrize("m", range(1, 9))
@pytest.mark.parametrize("r", range(1, 6))
def test_correlation(m: int, r: int) -> None:
    if m + r - 2 > 11:
        return
    at, g, bt = winograd_matrices(m, r)
    rng = random.Random(m * 10 + r)
    d, f = ([Fraction(rng.randrange(-99, 99), rng.randrange(1, 99)) for _ in range(k)] for k in (m + r - 1, r))
    products = [a * b for a, b in zip(product(g, f), product(bt, d), strict=True)]
    assert product(at, products) == [sum(d[i + k] * f[k] for k in range(r)) for i in range(m)]


def test_classic_matrices() -> None:
    at, g, bt = winograd_matrices(2, 3)
    assert at == ((1, 1, 1, 0), (0, 1, -1, 1))
    assert bt == ((-1, 0, 1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1))
    assert g[1] == (Fraction(1, 2),) * 3
    assert winograd_matrices(4, 3, [0, 1, -1, 2, -2])[2][0] == (4, 0, -5, 0, 1, 0)


def test_coefficients_of_the_transforms_are_exact_in_f32() -> None:
    for m in (2, 4, 6):
        at, _, bt = winograd_matrices(m, 3)
        for x in [x for row in (*at, *bt) for x in row]:
            assert x.denominator & (x.denominator - 1) == 0 and abs(x.numerator) < 1 << 24


def test_points_are_checked() -> None:
    with pytest.raises(ValueError, match=r"F\(4, 3\) takes 5 different points, got 0, 1, 1"):
        winograd_matrices(4, 3, [0, 1, 1])
    with pytest.raises(ValueError, match=r"no points for F\(20, 3\)"):
        winograd_matrices(20, 3)
