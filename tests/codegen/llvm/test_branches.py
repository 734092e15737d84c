"""Loops that divide in a branch: LLVM's vectoriser miscompiles them, so it leaves them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.codegen.llvm.stmt import divides_in_branches
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Buffer, Var, const, select
from tilewright.ir.loops import If, Store

N = 40
Formula = Callable[[Any, Any, Any, Any], Any]
FORMULAS: dict[str, tuple[Formula, Formula]] = {
    # In a branch that needs no more than one quotient for all lanes: as a condition by data, and by the loop.
    "remainder": (
        lambda a, b, i, n: te.if_then_else(b[i] > 0, a[5 % n], -1.0),
        lambda a, b, i, n: np.where(b > 0, a[5 % n], -1),
    ),
    "quotient": (
        lambda a, b, i, n: te.if_then_else(b[i] > 0, a[3 // n], -1.0),
        lambda a, b, i, n: np.where(b > 0, a[3 // n], -1),
    ),
    "one place": (
        lambda a, b, i, n: te.if_then_else((i < 3) & (i >= 2), a[i % n] - b[(i - 1) % N], -1.0),
        lambda a, b, i, n: np.where(i == 2, a[2 % n] - b[1], -1),
    ),
    "each lane's": (
        lambda a, b, i, n: te.if_then_else(b[i] > 0, a[(i + 1) % n], -1.0),
        lambda a, b, i, n: np.where(b > 0, a[(i + 1) % n], -1),
    ),
}


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("n", [2, 3, 7, 16, 33])
def test_divisions_in_branches(formula: str, parallel: bool, n: int) -> None:
    n_ = te.var("n")
    a, b = te.placeholder((n_,), name="A"), te.placeholder((N,), name="B")
    body, meant = FORMULAS[formula]
    c = te.compute((N,), lambda i: body(a, b, i, n_), name="C")
    s = te.create_schedule(c)
    if parallel:
        s[c].parallel(c.axis[0])
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal(n, np.float32), np.full(N, -1, np.float32)
    y[[2, 3, 9, 21, 30, 39]] = 1  # seldom the first of a vector's lanes
    out = np.zeros(N, np.float32)

    tw.build(s, [a, b, c])(x, y, out)
    np.testing.assert_array_equal(out, meant(x, y, np.arange(N), n).astype(np.float32))


def test_which_loops_divide_in_branches() -> None:
    i, n = Var("i"), Var("n")
    a, out = Buffer("A", f32, (const(64),)), Buffer("out", f32, (const(64),))
    inside, always = a[i % n], select(i < 3, a[i], const(0.0, f32)) + a[i % n]
    assert divides_in_branches(Store(out, (i,), select(i < 3, inside, const(0.0, f32))))
    assert divides_in_branches(If(i < 3, Store(out, (i,), inside)))
    assert divides_in_branches(If(i < 3, If(i % n < 2, Store(out, (i,), a[i]))))
    assert not divides_in_branches(If(i % n < 2, Store(out, (i,), a[i])))
    assert not divides_in_branches(Store(out, (i,), always))
    assert not divides_in_branches(Store(out, (i,), select(i < 3, a[i % 7], const(0.0, f32))))
