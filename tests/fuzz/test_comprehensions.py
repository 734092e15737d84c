"""Random comprehensions: compiled, interpreted and evaluated by NumPy, all three give the same.

`make test` runs some; `make fuzz` runs TILEWRIGHT_FUZZ_COMPREHENSIONS (600).
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

import tilewright as tw
from tests.fuzz.comprehensions import generate
from tests.fuzz.texts import damaged
from tests.ops.oracle import by_expression, type_of
from tilewright.ir.graph import Graph
from tilewright.ops.interpret import run_graph

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
COUNT = int(os.environ.get("TILEWRIGHT_FUZZ_COMPREHENSIONS", "600")) if LONG else 80
FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))
PARTS = 8


def loops(graph: Graph, arrays: list[np.ndarray]) -> np.ndarray:
    """The result of a graph of comprehensions by the interpreter of loops, node by node."""
    known = dict(zip(graph.inputs, arrays, strict=True))
    for node in graph.nodes:
        inputs = [None if v is None else known[v] for v in node.inputs]
        known.update(zip(node.outputs, by_expression(node.op, inputs, node.attrs.values()), strict=True))
    return known[graph.outputs[0]]


def assert_same(got: np.ndarray, want: np.ndarray, text: str, terms: np.ndarray) -> None:
    """Equal to the bit for integers; floats to the rounding of a sum of `terms`, the sums of absolute values."""
    assert got.shape == want.shape and got.dtype == want.dtype, text
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, err_msg=text)
        return
    eps = {2: 1e-2, 4: 3e-5, 8: 3e-13}[got.dtype.itemsize]
    a, b, scale = (np.asarray(x).astype(np.float64) for x in (got, want, terms))
    finite = np.isfinite(b)
    np.testing.assert_array_equal(a[~finite], b[~finite], err_msg=text)
    bound = eps * (1 + np.abs(b[finite]) + np.where(np.isfinite(scale), scale, 0)[finite])
    assert np.all(np.abs(a[finite] - b[finite]) <= bound), text


def check(seed: int) -> None:
    case = generate(seed)
    function = tw.comprehension(case.text)
    graph = function.graph([type_of(a) for a in case.arrays])
    (want,) = run_graph(graph, dict(zip(function.inputs, case.arrays, strict=True))).values()
    text = f"seed {seed}: {case.text}"
    magnitudes = [np.abs(a) if a.dtype.kind not in "iub" else a for a in case.arrays]
    with np.errstate(all="ignore"):
        (terms,) = run_graph(graph, dict(zip(function.inputs, magnitudes, strict=True))).values()
    assert_same(loops(graph, case.arrays), np.asarray(want), text, np.abs(terms))
    assert_same(np.asarray(function(*case.arrays)), np.asarray(want), text, np.abs(terms))


@pytest.mark.daily(3)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_comprehensions(part: int) -> None:
    for seed in range(FIRST + part, FIRST + COUNT, PARTS):
        check(seed)


GOOD = [
    "C[m, n] +! A[m, k] * B[k, n] where k in 0:7, m <= k",
    "X: f32[N, D]\nM[n] = sum(X[n, d]) / f32(D)  # a mean\nreturn M",
    "P[i, j] = exp(S[i, j] - max(S[i, k])) / sum(exp(S[i, l]))",
    "Y[i] = pad(X[2 * i - 1], -inf) if not (X[i] > 0 and i % 2 == 0) else T[I[i], 3]",
    "b c (h p) ... -> b h (c p) ...",
    "ij,...jk->...ik",
    "a [b], [b] c",
]


def test_damaged_texts_are_refused_or_understood() -> None:
    """Never another exception than an error that names the place."""
    outcomes = {"read": 0, "refused": 0}
    for seed in range(FIRST, FIRST + (20000 if LONG else 400)):
        rng = random.Random(seed)
        text = damaged(rng.choice(GOOD), rng.choice(GOOD), rng)
        try:
            tw.comprehension(text)
            outcomes["read"] += 1
        except tw.Error as error:
            assert str(error), text
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 0.05 * sum(outcomes.values()), outcomes
