"""Conditional vectorized loops of many vectors."""

from __future__ import annotations

import time

import numpy as np
import pytest

import tilewright as tw
from tilewright import te


@pytest.mark.parametrize("factor", [64, 1 << 31])
def test_a_tail_of_thousands_of_vectors_is_not_written_out(factor: int) -> None:
    n = te.var("n", lo=0)
    a = te.placeholder((n, 4), name="A")
    c = te.compute((n, 4), lambda i, j: a[i, j] * 2.0, name="C")
    s = te.create_schedule(c)
    _, inner = s[c].split(c.axis[0], factor=factor)
    s[c].vectorize(inner)
    start = time.process_time()
    double = tw.build(s, [a, c])
    assert time.process_time() - start < 20
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.empty_like(x)
    double(x, out)
    np.testing.assert_array_equal(out, 2 * x)
