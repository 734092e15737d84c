"""Errors about comprehensions that are wrong: the whole text, as a golden file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

f32 = np.float32


def zeros(*shape: int, dtype: Any = f32) -> np.ndarray:
    return np.zeros(shape, dtype)


# What is wrong with a text by itself.
TEXTS: list[str] = [
    "",
    "C[m, n]",
    "C[m, n] += A[m, k] * B[k, n]",
    "C[m, n] +! A[m, k * B[k, n]",
    "C[m, n] +! A[m, k] * B[k, n",
    "C[m + 1] = A[m]",
    "C[m] = A[m] @ 2",
    "C[m] = A[m] * 99999999999999999999",
    "C[m] = foo(A[m])",
    "C[m] = exp(A[m], 2)",
    "C[m] = pad(A[m] + 1, 0)",
    "C[m] +! A[m, k] where k in 10",
    "C[m] +! A[m, k] where k in 0:K",
    "C[m] +! A[m, k] where k in 4:2",
    "C[m] +! A[m, k] where q in 0:3",
    "C[m] +! A[m, k] where k in 0:3, k in 0:4",
    "C[m] = A[m, k]",
    "C[m] +! A[m]",
    "C[m, m] = A[m]",
    "C[i] = C[i - 1] + A[i]",
    "C[i] = D[i]\nD[i] = A[i]",
    "C[i] = A[i]\nC[i] = B[i]",
    "C[i] = A[i] + A[i, 0]",
    "C[i] = argmax(A[i, j, k])",
    "C[i, j] = A[i + j]",
    "C[i] = A[i - 1]",
    "C[i] = A[2 * i] * s",
    "C[i] +! A[i, j] if j else 0",
    "C[i] = sum[i](A[i])",
    "C[i] = A[i] where A[i] > 0",
    "A: f32[N]\nA[i] = B[i]",
    "A: f32[N]\nC[i] = A[i]\nreturn D",
    "A: [N, M]\nC[N] = A[N, 0]",
    "C[i] = A.shape[2] * B[i] + A[i, 0]",
    "a b -> a c",
    "a b -> a",
    "a (b c -> a b",
    "a [b] -> a b",
    "C[i] = " + "(" * 70 + "A[i]" + ")" * 70,
]

# What is wrong with a text for given arrays.
CALLS: list[tuple[str, list[np.ndarray]]] = [
    ("C[m, n] +! A[m, k] * B[k, n]", [zeros(2, 5), zeros(6, 3)]),
    ("C[m, n] +! A[m, k] * B[k, n]", [zeros(2, 5), zeros(6)]),
    ("A: f32[M, K]\nB: f32[K, N]\nC[m, n] +! A[m, k] * B[k, n]", [zeros(2, 5), zeros(6, 3)]),
    ("A: f64[M]\nC[m] = A[m]", [zeros(3)]),
    ("C[m] = A[m] + B[m]", [zeros(3), zeros(3, dtype=np.float64)]),
    ("C[m] = A[m] / 2", [zeros(3, dtype=np.int32)]),
    ("C[m] = A[m] + 0.5", [zeros(3, dtype=np.int32)]),
    ("C[m] = A[m] * m", [zeros(3)]),
    ("C[m] = A[m] + 300", [zeros(3, dtype=np.uint8)]),
    ("C[m] any! A[m, k]", [zeros(3, 2)]),
    ("C[m] = A[B[m]]", [zeros(3), zeros(3)]),
    ("O[h] +! I[h + r] * W[r]", [zeros(2), zeros(5)]),
    ("C[i] = A[i + 1] where i in 0:5", [zeros(5)]),
    ("C[i] = A[i] if i < 9 else 0 where i in 0:9", [zeros(5)]),
    ("C[i] = exp(A[i])", [zeros(5, dtype=np.int64)]),
    ("C[i] argmax! A[i, k]", [zeros(5, 0)]),
    ("a (b c) -> a b c", [zeros(2, 6)]),
    ("ij,jk->ik", [zeros(2, 5), zeros(6, 3)]),
]


def said(act: Callable[[], Any], shown: str) -> str:
    with pytest.raises(tw.Error) as caught:
        act()
    return f"{shown[:80]!r}\n{caught.value}\n"


def test_messages(golden: Callable[..., None]) -> None:
    """Forty and more, each naming the thing, with line, column and a mark below it."""
    parts = [said(lambda t=text: tw.comprehension(t), text) for text in TEXTS]
    for text, arrays in CALLS:
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays)
        parts.append(said(lambda t=text, a=arrays: tw.comprehension(t)(*a), f"{text} of {shapes}"))
    assert len(parts) >= 40
    golden("\n".join(parts))


def test_python_functions(golden: Callable[..., None]) -> None:
    def not_a_statement(A):
        print(A)

    def no_range(A):
        C[i] = sum(A[i, k] for k in A)  # noqa: F821
        return C  # noqa: F821

    def wrong_type(A: "f32[M"):  # noqa: F722
        C[i] = A[i]  # noqa: F821
        return C  # noqa: F821

    def not_an_operator(A):
        C[i] = ~A[i]  # noqa: F821
        return C  # noqa: F821

    def keywords(A):
        C[i] = max(A[i], key=3)  # noqa: F821
        return C  # noqa: F821

    functions = [not_a_statement, no_range, wrong_type, not_an_operator, keywords]
    texts = [said(lambda f=f: tw.comprehension(f), f.__name__) for f in functions]
    for text, function in zip(texts, functions, strict=True):
        line = function.__code__.co_firstlineno
        assert f"test_errors.py:{line + (function is not wrong_type)}:" in text, text
    lines = "\n".join(texts).splitlines()
    golden("\n".join(line.partition("test_errors.py:")[2].partition(":")[2] or line for line in lines) + "\n")


@pytest.mark.parametrize(
    "text",
    ["A" * 70000, "C[i] = " + "A[i] + " * 5000 + "A[i]", "C[i] = " + "-" * 5000 + "A[i]", "C[i] = " + "(" * 5000]
    + ["C[i] = " + "not " * 5000 + "A[i]", "C[i] = " + "A[" * 5000, "C[" + "i," * 9000 + "] = 1", "\n" * 60000]
    + ["C[i] = A[i] ** " * 3000, "C[i] = " + "1 if A[i] > 0 else " * 3000 + "1", "a " * 3000 + "-> a", "(" * 3000],
    ids=range(12),
)
def test_large_texts_are_refused(text: str) -> None:
    with pytest.raises(tw.Error):
        tw.comprehension(text)
