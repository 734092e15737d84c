"""Comparisons of elements: expressions like any other, and no truth values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.ir.expr import Var, const
from tilewright.support.errors import ExpressionError

VALUES = np.array([0, 1, -1, 1, np.nan, np.inf, -0.0, 2], np.float32)


def evaluated(condition: Callable[..., Any], dtype: str = "float32", values: Any = VALUES) -> list[int]:
    """Where a condition on `(A, i)` holds."""
    a = te.placeholder((len(values),), dtype, name="A")
    b = te.compute((len(values),), lambda i: te.if_then_else(condition(a, i), const(1), const(0)), name="B")
    out = np.full(len(values), -1, np.int64)
    tw.build(te.create_schedule(b), [a, b])(np.asarray(values, dtype), out)
    return np.flatnonzero(out).tolist()


@pytest.mark.parametrize(
    ("condition", "meant"),
    [
        (lambda a, i: a[i] == 1, VALUES == 1),
        (lambda a, i: a[i] == 1.0, VALUES == 1),
        (lambda a, i: a[i] == np.float32(1), VALUES == 1),
        (lambda a, i: np.float32(1) == a[i], VALUES == 1),
        (lambda a, i: a[i] != 1, VALUES != 1),
        (lambda a, i: a[i] != a[i], np.isnan(VALUES)),
        (lambda a, i: a[i] == a[i], ~np.isnan(VALUES)),
        (lambda a, i: a[i] + 1 == a[0] + 2.0, VALUES == 1),
        (lambda a, i: i == 3, np.arange(8) == 3),
        (lambda a, i: i != 3, np.arange(8) != 3),
        (lambda a, i: i == i, np.full(8, True)),
        (lambda a, i: i % 3 == 0, np.arange(8) % 3 == 0),
        (lambda a, i: (i == 1) | ~(a[i] != 2), (np.arange(8) == 1) | (VALUES == 2)),
        (lambda a, i: (a[i] == 1) & (i != 1), (VALUES == 1) & (np.arange(8) != 1)),
        (lambda a, i: te.not_equal(a[i], 1.0) & te.any_of([i == 0, i == 7]), np.isin(np.arange(8), (0, 7))),
    ],
)
def test_comparisons(condition: Callable[..., Any], meant: Any) -> None:
    assert evaluated(condition) == np.flatnonzero(meant).tolist()


def test_integers_and_booleans() -> None:
    numbers = np.array([3, -3, 0, 127, -128], np.int8)
    assert evaluated(lambda a, i: a[i] == -3, "int8", numbers) == [1]
    truths = np.array([True, False, True])
    assert evaluated(lambda a, i: a[i] == (i == 2), "bool", truths) == [1, 2]
    with pytest.raises(ExpressionError, match="no i8 has this value: expected -128 to 127"):
        evaluated(lambda a, i: a[i] == 128, "int8", numbers)
    with pytest.raises(ExpressionError, match="the number is no integer"):
        evaluated(lambda a, i: a[i] == 0.5, "int8", numbers)


def test_symbols() -> None:
    """A comparison of dimensions serves as an element too; as a truth value it says whether they are the same."""
    n, m = te.var("n"), te.var("m")
    a, b = te.placeholder((n, m), name="A"), te.placeholder((n, m), name="B")
    c = te.compute((n, m), lambda i, j: te.if_then_else(n == m, a[i, j], b[i, j]), name="C")
    d = te.compute((n, m), lambda i, j: te.if_then_else(n != 3, c[i, j], 0.0), name="D")
    f = tw.build(te.create_schedule(d), [a, b, d])
    for shape in ((2, 2), (2, 5), (3, 3)):
        x, y, z = np.ones(shape, np.float32), np.full(shape, 2, np.float32), np.empty(shape, np.float32)
        f(x, y, z)
        assert (z == (0 if shape[0] == 3 else 1 if shape[0] == shape[1] else 2)).all()
    assert a.shape == b.shape and not bool(n == m) and n == Var("n", lo=1) and n != m
    assert te.placeholder((4,)).shape[0] == 4 and te.placeholder((4,)).shape[0] != 5
    with pytest.raises(ExpressionError, match="n == 4 has no truth value"):
        bool(n == 4)


def test_axes_of_reductions() -> None:
    a, k = te.placeholder((4, 6), name="A"), te.reduce_axis(6, "k")
    s = te.compute((4,), lambda i: te.sum(te.if_then_else(k == i, a[i, k], 0.0), k), name="S")
    t = te.compute((4,), lambda i: te.sum(te.if_then_else(i != k, a[i, k], 0.0), k), name="T")
    x = np.random.default_rng(0).standard_normal((4, 6), np.float32)
    for stage, meant in ((s, np.diagonal(x)), (t, x.sum(1) - np.diagonal(x))):
        y = np.empty(4, np.float32)
        tw.build(te.create_schedule(stage), [a, stage])(x, y)
        np.testing.assert_allclose(y, meant, rtol=1e-5, atol=1e-5)


TRUTHS: list[Callable[..., Any]] = [
    lambda a, i: a[i] if a[i] > 0 else 0.0,
    lambda a, i: a[i] if a[i] == 0 else 0.0,
    lambda a, i: te.if_then_else(i > 0 and i < 3, a[i], 0.0),
    lambda a, i: te.if_then_else(not (i > 0), a[i], 0.0),
    lambda a, i: te.if_then_else(0 < i < 3, a[i], 0.0),
    lambda a, i: min(a[i], a[0]),
    lambda a, i: 1.0 if a[i] in (1.0, 2.0) else 0.0,
    lambda a, i: 1.0 if i else 0.0,
]


@pytest.mark.parametrize("body", TRUTHS, ids=range(len(TRUTHS)))
def test_no_truth_value(body: Callable[..., Any]) -> None:
    a = te.placeholder((8,), name="A")
    with pytest.raises(ExpressionError, match="has no truth value") as caught:
        te.compute((8,), lambda i: body(a, i))
    assert (caught.value.where or "").endswith(f"{Path(__file__).name}:{body.__code__.co_firstlineno}")
    assert "te.if_then_else" in str(caught.value)


def test_no_truth_value_in_any_module() -> None:
    """Modules of Tilewright have the same law as others."""
    n, m = te.var("n"), te.var("m")
    a, i = te.placeholder((n,), name="A"), Var("i", axis=True)
    own = FunctionType((lambda e: bool(e)).__code__, {"__name__": "tilewright.compiler", "bool": bool})
    for comparison in (n == 4, a[i] == 1.0, i != 0, i == m):
        with pytest.raises(ExpressionError, match="has no truth value"):
            own(comparison)
    assert own(n == n) and not own(n == m) and (n, m) == (n, m)
