"""Sizes that data decides have the room of the greatest that they can be."""

from __future__ import annotations

import pytest

from tilewright.ir.dtype import i64
from tilewright.ir.expr import Buffer, Expr, Load, Var, const, maximum, minimum
from tilewright.support.errors import UnsupportedError
from tilewright.transform.graph.memory import bounded

N, K, J = Var("n", lo=0), Var("k", lo=0), Var("j", lo=0)


@pytest.mark.parametrize(
    ("size", "greatest"),
    [
        (K, N),
        (K * 4 + 2, N * 4 + 2),
        (N - K, N),
        (K * N, N * N),
        (K * 3 - K, N * 2),
        (minimum(K, 7), minimum(N, 7)),
        (maximum(K, 7) + 1, maximum(N, 7) + 1),
        (K // 2 * 2, N // 2 * 2),
        (J + 1, N * 2 + 1),  # whose bound is said by another that data decides
        (N + 5, N + 5),
        (const(12), const(12)),
    ],
    ids=str,
)
def test_the_greatest_size(size: Expr, greatest: Expr) -> None:
    assert str(bounded(size, {K: N, J: K * 2})) == str(greatest)


def test_sizes_without_a_bound_are_refused() -> None:
    place = Load(Buffer("I", i64, (const(4),)), (K,))
    with pytest.raises(UnsupportedError, match="has no bound that is known"):
        bounded(place * K, {K: N})
