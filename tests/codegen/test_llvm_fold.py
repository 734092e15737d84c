"""Reductions across lanes of several rows at once: `codegen/llvm/fold.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.codegen.llvm.fold import folded


@pytest.mark.parametrize(("lanes", "part"), [(16, 4), (8, 4), (4, 4), (8, 2), (4, 2), (2, 2)])
def test_each_lane_holds_a_row_s_total(lanes: int, part: int) -> None:
    for rows in (n for n in (1, 2, 4, 8, 16) if n <= lanes):
        values = np.random.default_rng(rows).integers(0, 1000, (rows, lanes))
        vectors = {f"row{k}": v for k, v in enumerate(values)}
        counts = {"operations": 0, "shuffles": 0}

        def named(value: np.ndarray, kind: str, vectors=vectors, counts=counts) -> str:  # type: ignore[no-untyped-def]
            counts[kind] += 1
            name = f"{kind}{counts[kind]}"
            vectors[name] = value
            return name

        def shuffle(a: str, b: str, picks: Sequence[int], vectors=vectors, named=named) -> str:  # type: ignore[no-untyped-def]
            return named(np.concatenate([vectors[a], vectors[b]])[list(picks)], "shuffles")

        def combine(a: str, b: str, vectors=vectors, named=named) -> str:  # type: ignore[no-untyped-def]
            return named(vectors[a] + vectors[b], "operations")

        result = folded(list(vectors), lanes, part, combine, shuffle)
        np.testing.assert_array_equal(vectors[result][:rows], values.sum(axis=1))
        assert counts["shuffles"] == 2 * counts["operations"]
        if rows == lanes:
            assert counts["operations"] == lanes - 1
