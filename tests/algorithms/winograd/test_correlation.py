"""Fast correlation of any stride: exact arithmetic against the definition, products and operations of its matrices."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from tests.algorithms.winograd.test_toomcook import product
from tilewright.algorithms.winograd.operators.correlation import MAX_POINTS, points, products, reach, transforms
from tilewright.arith.straight import straight_line


@pytest.mark.daily(5)
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("window", range(1, 9))
@pytest.mark.parametrize("m", range(1, 8))
def test_correlation(m: int, window: int, stride: int) -> None:
    if points(m, window, stride) > MAX_POINTS:
        return
    at, g, bt = transforms(m, window, stride)
    length, size = reach(m, window, stride), products(m, window, stride)
    assert (len(at), len(at[0])) == (m, size)
    assert (len(g), len(g[0])) == (size, window)
    assert (len(bt), len(bt[0])) == (size, length)
    assert size == length or window < stride
    rng = random.Random(m * 100 + window * 10 + stride)
    d, f = ([Fraction(rng.randrange(-99, 99), rng.randrange(1, 99)) for _ in range(k)] for k in (length, window))
    products_ = [a * b for a, b in zip(product(g, f), product(bt, d), strict=True)]
    assert product(at, products_) == [sum(d[i * stride + k] * f[k] for k in range(window)) for i in range(m)]


@pytest.mark.parametrize(("m", "inward", "outward"), [(2, 2, 4), (3, 4, 7), (4, 9, 12), (5, 12, 16)])
def test_operations_of_a_window_of_three_with_a_stride_of_two(m: int, inward: int, outward: int) -> None:
    at, _, bt = transforms(m, 3, 2)
    assert straight_line(bt).operations <= inward and straight_line(at).operations <= outward


def test_a_phase_of_one_tap_is_copied() -> None:
    at, g, bt = transforms(2, 3, 2)
    assert at == ((1, 1, 0, 1, 0), (0, 1, 1, 0, 1))
    assert g == ((-1, 0, 0), (1, 0, 1), (0, 0, 1), (0, 1, 0), (0, 1, 0))
    assert bt == ((-1, 0, 1, 0, 0), (0, 0, 1, 0, 0), (0, 0, -1, 0, 1), (0, 1, 0, 0, 0), (0, 0, 0, 1, 0))


def test_phases_that_fourier_cannot_take_are_refused() -> None:
    with pytest.raises(ValueError, match="no Fourier transform for 7 outputs of a window of 3: 9 inputs"):
        transforms(7, 5, 2)
