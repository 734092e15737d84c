"""Fourier's matrices against linear correlation, and the operations that they take."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tilewright.algorithms.winograd.operators.correlation import products, transforms
from tilewright.algorithms.winograd.operators.fourier import fourier_matrices
from tilewright.algorithms.winograd.operators.toomcook import winograd_matrices
from tilewright.arith.straight import Straight, straight_line


@pytest.mark.parametrize(("m", "r"), [(6, 7), (4, 9), (10, 7), (1, 16), (10, 11), (10, 15)])
def test_correlation(m: int, r: int) -> None:
    at, g, bt = (np.array(t, np.float64) for t in transforms(m, r))
    n, count = m + r - 1, products(m, r)
    assert (at.shape, g.shape, bt.shape) == ((m, count), (count, r), (count, n))
    rng = np.random.default_rng(n)
    d, w = rng.standard_normal(n), rng.standard_normal(r)
    want = [d[i : i + r] @ w for i in range(m)]
    np.testing.assert_allclose(at @ ((g @ w) * (bt @ d)), want, atol=1e-13)
    assert max(np.abs(at).max(), np.abs(bt).max()) <= 2**0.5 + 1e-12


def test_small_tiles_are_those_of_points() -> None:
    assert transforms(4, 3) == winograd_matrices(4, 3)


@pytest.mark.parametrize(("m", "r"), [(0, 4), (4, 4), (1, 2)])
def test_sizes_are_checked(m: int, r: int) -> None:
    with pytest.raises(ValueError, match="no Fourier transform"):
        fourier_matrices(m, r)


@pytest.mark.parametrize("n", [8, 12, 16, 20, 24])
def test_equal_magnitudes_are_equal_numbers(n: int) -> None:
    """Equality tells which terms a sum cancels or shares: no two numbers differ by rounding, and zero is zero."""
    _, _, bt = fourier_matrices(3, n - 2)
    result = sorted({abs(x) for row in bt for x in row})
    assert all(b - a > 1e-9 for a, b in pairwise(result))
    assert (result[0] == 0) == (n % 4 == 0)


def value(program: Straight, x: np.ndarray) -> np.ndarray:
    values = list(x)
    for terms in program.variables:
        values.append(sum(float(factor) * values[k] for factor, k in terms))
    return np.array([sum(float(factor) * values[k] for factor, k in terms) for terms in program.rows])


@pytest.mark.parametrize(("n", "inward", "outward"), [(12, 53, 51), (16, 82, 75), (20, 126, 119), (24, 154, 125)])
def test_operations(n: int, inward: int, outward: int) -> None:
    """A multiplication by the whole matrix would take 23 x 16 = 368 where n is 16."""
    m = 6 if n == 12 else 10
    at, _, bt = fourier_matrices(m, n + 1 - m)
    rng = np.random.default_rng(n)
    for matrix, most in ((bt, inward), (at, outward)):
        program = straight_line(matrix)
        assert program.operations <= most
        x = rng.standard_normal(program.inputs)
        np.testing.assert_allclose(value(program, x), np.array(matrix, np.float64) @ x, atol=1e-13)
