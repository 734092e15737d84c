"""Columns of register tiles by shuffles."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.llvm.transpose import SIZES, column


@pytest.mark.parametrize("n", SIZES)
def test_every_column_by_few_shuffles(n: int) -> None:
    values = {f"r{i}": np.arange(n) + n * i for i in range(n)}
    made: dict[tuple[object, ...], str] = {}

    def shuffle(a: str, b: str, picks: tuple[int, ...]) -> str:
        name = made.setdefault((a, b, picks), f"s{len(made)}")
        values[name] = np.concatenate([values[a], values[b]])[list(picks)]
        return name

    rows = [f"r{i}" for i in range(n)]
    for j in range(n):
        assert values[column(rows, j, shuffle)].tolist() == [j + n * i for i in range(n)]
    assert len(made) == n * (n.bit_length() - 1)
