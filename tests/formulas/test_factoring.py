"""Sums of products in steps: the same numbers by less work; left alone where a step might read outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import TensorType

LETTERS = {"i": 5, "j": 6, "k": 7, "l": 3, "a": 4, "b": 9, "r": 8}


def arrays(*operands: str, kind: Any = np.float64) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, [LETTERS[x] for x in o]).astype(kind) for o in operands]


def steps(text: str, inputs: list[np.ndarray[Any, Any]]) -> int:
    """Operators that a comprehension becomes."""
    f = tw.comprehension(text)
    types = [TensorType(dtype(a.dtype), tuple(map(as_expr, a.shape))) for a in inputs]
    return len(f.graph(types).nodes)


PRODUCTS = [
    ("C[i, r] +! X[i, j, k] * A[j, r] * B[k, r]", "ijk,jr,kr->ir", 2),
    ("C[a, b, r] +! X[i, j, k] * A[i, a] * B[j, b] * D[k, r]", "ijk,ia,jb,kr->abr", 3),
    ("C[i, l] +! A[i, j] * B[j, k] * D[k, l]", "ij,jk,kl->il", 2),
    ("C[i] +! A[i, j] * B[j, k] * D[i, k]", "ij,jk,ik->i", 2),
    ("C[] +! A[i] * B[i, j] * D[j]", "i,ij,j->", 2),
    ("C[i, j] +! A[k, i] * B[k] * D[k, j]", "ki,k,kj->ij", 1),  # one index: a single sum
]


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize(("text", "einsum", "count"), PRODUCTS, ids=[p[1] for p in PRODUCTS])
def test_products_of_several_tensors(text: str, einsum: str, count: int, kind: Any) -> None:
    """Small integers: every order of the sum is exact."""
    inputs = arrays(*einsum.split("->")[0].split(","), kind=kind)
    np.testing.assert_array_equal(tw.comprehension(text)(*inputs), np.einsum(einsum, *inputs))
    assert steps(text, inputs) == count


def test_a_condition_goes_with_the_sum_that_it_is_about() -> None:
    q, k, v = arrays("ia", "ia", "ib")
    text = "O[t, e] +! Q[t, d] * K[s, d] * V[s, e] where s <= t"
    np.testing.assert_array_equal(tw.comprehension(text)(q, k, v), np.tril(q @ k.T) @ v)
    assert steps(text, [q, k, v]) == 2


def test_a_condition_that_keeps_reads_inside_stays() -> None:
    """A[i + j] is inside only where the condition holds, so that no step may leave it out."""
    a, b, d = (np.arange(1.0, 6.0) for _ in range(3))
    text = "C[i] +! A[i + j] * B[j] * D[k] where i in 0:5, j in 0:5, i + j < 5"
    assert steps(text, [a, b, d]) == 1
    want = [sum(a[i + j] * b[j] for j in range(5 - i)) * d.sum() for i in range(5)]
    np.testing.assert_allclose(tw.comprehension(text)(a, b, d), want)


def test_ranges_that_begin_elsewhere_and_narrow_types_stay() -> None:
    a, b, d = arrays("ij", "jk", "kl", kind=np.float32)
    assert steps("C[i, l] +! A[i, j] * B[j, k] * D[k, l] where j in 1:4", [a, b, d]) == 1
    half = [x.astype(np.float16) for x in (a, b, d)]
    assert steps("C[i, l] +! A[i, j] * B[j, k] * D[k, l]", half) == 1


def test_a_result_may_have_the_name_of_a_step() -> None:
    x = arrays("ij", "jk", "kl")
    got = tw.comprehension("C[i, l] +! C_0[i, j] * B[j, k] * D[k, l]")(*x)
    np.testing.assert_array_equal(got, x[0] @ x[1] @ x[2])


def test_sizes_that_are_symbols() -> None:
    f = tw.comprehension("C[i, l] +! A[i, j] * B[j, k] * D[k, l]", dynamic=True)
    for n in (1, 4, 13):
        x = [np.ones((n, n + 1)), np.ones((n + 1, n + 2)), np.ones((n + 2, n))]
        np.testing.assert_array_equal(f(*x), x[0] @ x[1] @ x[2])
