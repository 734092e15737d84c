"""Expressions by NumPy: every result is in the type of its expression."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.dtype import i8, i64, u8
from tilewright.ir.evaluate import values_of
from tilewright.ir.expr import Buffer, Expr, Load, Var, cast, const, lookup, select

X, Y = Var("x", u8), Var("y", u8)
N = Var("n")
B = Buffer("b", i8, (const(4),))


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (X + Y, 44),  # 200 + 100 in 8 bits
        (cast(X, i8), -56),
        (cast(cast(X, i8), i64) + N, -51),
        (X < Y, False),
        (select(X < Y, X, Y), 100),
        (lookup(N, [const(v, i8) for v in (3, -4)]), -4),
        (const(7, u8), 7),
        ((N + 3) // 2 % 3, 1),
    ],
    ids=range(8),
)
def test_numbers(e: Expr, expected: object) -> None:
    got = values_of(e, {X: 200, Y: 100, N: 5}.__getitem__)
    assert got.dtype == e.dtype.numpy and got.shape == () and got.item() == expected


def test_arrays_and_loads() -> None:
    i, j = Var("i"), Var("j")
    memory = np.array([1, -128, 3, 4], np.int8)

    def leaf(e: Expr) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        if isinstance(e, Load):
            return memory[values_of(e.indices[0], leaf)]
        return np.arange(2)[:, None] if e is i else np.arange(2)[None, :]

    got = values_of(B[i * 2 + j] - const(1, i8), leaf)
    assert got.dtype == np.int8 and got.tolist() == [[0, 127], [2, 3]]
