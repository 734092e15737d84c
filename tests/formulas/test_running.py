"""Sums up to one's own place become running sums: the same numbers, one addition for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import TensorType

X = np.random.default_rng(0).integers(-9, 9, (5, 33))
BACK = np.cumsum(X[:, ::-1], 1)[:, ::-1]

RUNNING = [
    ("Y[n, i] +! X[n, j] where j <= i, i in 0:33", np.cumsum(X, 1), 1),
    ("Y[n, i] +! X[n, j] where i > j, i in 0:33", np.cumsum(X, 1) - X, 1),
    ("Y[n, i] +! X[n, j] where j >= i, i in 0:33", BACK, 1),
    ("Y[n, i] +! X[n, j] where i < j, i in 0:33", BACK - X, 1),
    ("Y[i, j] +! X[k, j] where k <= i, i in 0:5", np.cumsum(X, 0), 1),
    ("Y[i, n] +! 2 * X[n, j] * X[n, j] where j <= i, i in 0:33", 2 * np.cumsum(X * X, 1).T, 2),
]


def operators(text: str, *arguments: np.ndarray[Any, Any]) -> list[str]:
    f = tw.comprehension(text)
    types = [TensorType(dtype(a.dtype), tuple(map(as_expr, a.shape))) for a in arguments]
    return [n.op for n in f.graph(types).nodes]


@pytest.mark.daily(4)
@pytest.mark.parametrize("kind", [np.float32, np.int32])
@pytest.mark.parametrize(("text", "wanted", "count"), RUNNING, ids=[r[0] for r in RUNNING])
def test_sums_up_to_ones_own_place(text: str, wanted: np.ndarray[Any, Any], count: int, kind: Any) -> None:
    supplied = X.astype(kind)
    np.testing.assert_array_equal(tw.comprehension(text)(supplied), wanted)
    created = operators(text, supplied)
    assert len(created) == count and created[-1] == "cumsum"


@pytest.mark.parametrize(
    "text",
    [
        "Y[n, i] +! X[n, j] where j <= i, i in 0:20",  # fewer places than terms
        "Y[n, i] +! X[n, j] * X[n, i] where j <= i",  # the terms know the place
        "Y[n, i] max! X[n, j] where j <= i, i in 0:33",
        "Y[n, i] +! X[n, j] where j <= i, j > 2, i in 0:33",
        "Y[n, i] +! X[n, j] where j < i, i in 0:34, j in 0:34",  # a term that no sum has lies outside
    ],
)
def test_other_sums_stay(text: str) -> None:
    inputs = X.astype(np.float32)
    assert "cumsum" not in operators(text, inputs)
    i = np.arange(34)
    below = {"<= i, i in 0:20": i[:20, None] >= i, "< i, i in 0:34": i[:, None] > i}
    for end, seen in below.items():
        if f"where j {end}" in text:
            padded = np.pad(inputs, ((0, 0), (0, 1)))
            np.testing.assert_array_equal(tw.comprehension(text)(inputs), padded @ seen.T)


def test_sixteen_bits_are_summed_in_single_precision() -> None:
    x = np.full((1, 3000), 1.0, np.float16)
    got = tw.comprehension("Y[n, i] +! X[n, j] where j <= i, i in 0:3000")(x)
    np.testing.assert_array_equal(got, np.arange(1, 3001, dtype=np.float32)[None].astype(np.float16))


def test_any_number_of_elements() -> None:
    f = tw.comprehension("Y[n, i] +! X[n, j] where j <= i, i in 0:X.shape[1]", dynamic=True)
    for n in (1, 7, 33):
        inputs = X[:, :n].astype(np.float32)
        np.testing.assert_array_equal(f(inputs), np.cumsum(inputs, 1))


def test_gradients_run_the_other_way() -> None:
    inputs, g = X.astype(np.float32), X[:, ::-1].astype(np.float32)
    (result,) = tw.comprehension("Y[n, i] +! X[n, j] where j <= i, i in 0:33").backward(inputs, g)
    np.testing.assert_array_equal(result, np.cumsum(g[:, ::-1], 1)[:, ::-1])
