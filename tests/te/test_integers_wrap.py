"""Arithmetic of integers that a tensor expression reads: it wraps, as NumPy's does, also where its result is compared,
divided or bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.ir.expr import Expr, equal, maximum

Array = np.ndarray[Any, Any]
FORMS: dict[str, tuple[Callable[[Expr, Expr], Expr], Callable[[Array, Array], Array]]] = {
    "x + 1 > x": (lambda x, y: x + 1 > x, lambda x, y: x + 1 > x),
    "x - y < 5": (lambda x, y: x - y < 5, lambda x, y: x - y < 5),
    "(x + 10) % 10": (lambda x, y: (x + 10) % 10, lambda x, y: (x + 10) % 10),
    "(x + y) // 4": (lambda x, y: (x + y) // 4, lambda x, y: (x + y) // 4),
    "x * 4 // 4": (lambda x, y: x * 4 // 4, lambda x, y: x * 4 // 4),
    "x * y % 7": (lambda x, y: x * y % 7, lambda x, y: x * y % 7),
    "x * 6 == y * 6": (lambda x, y: equal(x * 6, y * 6), lambda x, y: x * 6 == y * 6),
    "max(x + 1, x)": (lambda x, y: maximum(x + 1, x), lambda x, y: np.maximum(x + 1, x)),
}


@pytest.mark.parametrize("t", [np.int8, np.uint8, np.int32, np.int64], ids=lambda t: t.__name__)
def test_integers_wrap(t: type) -> None:
    lo, hi = int(np.iinfo(t).min), int(np.iinfo(t).max)
    x, y = np.array([lo, lo + 1, lo + 9, hi, hi - 1, hi - 9, hi // 2 + 1, 0, 1, 3, 10]).astype(t), None
    x, y = (g.ravel() for g in np.meshgrid(x, x))
    n, dtype = te.var("n"), np.dtype(t).name
    a, b = te.placeholder((n,), dtype=dtype, name="A"), te.placeholder((n,), dtype=dtype, name="B")
    outs = [te.compute((n,), lambda i, f=f: f(a[i], b[i]), name=f"C{k}") for k, (f, _) in enumerate(FORMS.values())]
    func = tw.build(te.create_schedule(outs), [a, b, *outs])
    with np.errstate(over="ignore"):
        want = [g(x, y) for _, g in FORMS.values()]
    got = [np.empty_like(w) for w in want]
    func(x, y, *got)
    for name, result, expected in zip(FORMS, got, want, strict=True):
        np.testing.assert_array_equal(result, expected, err_msg=name)
