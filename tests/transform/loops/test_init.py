"""The init of a reduction whose split depends on a symbol."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops


def test_init_runs_although_the_reduction_is_bound_by_a_symbol() -> None:
    n = te.var("n", lo=1, hi=9)
    a = te.placeholder((3, n), name="A")
    k = te.reduce_axis(n, "k")
    c = te.compute((3,), lambda i: te.sum(a[i, k], axis=k), name="C")
    s = Schedule(te.create_prim_func([a, c]))
    i, reduced = s.loops("C")
    outer, inner = s.split(reduced, nparts=4)
    s.reorder(outer, inner, i)
    flat = lower_loops(s.func, Target.parse("znver4"))
    x = np.arange(21, dtype=np.float32).reshape(3, 7)
    out = np.full(3, np.nan, np.float32)
    interpret(flat, [x, out])
    np.testing.assert_array_equal(out, x.sum(axis=1))


@pytest.mark.parametrize("size", [0, 1, 9])
def test_init_runs_where_a_split_reduction_has_no_elements(size: int) -> None:
    """The outer loop has one iteration at most, so that only the condition on the reduction names it; with no element
    it has none, and the condition holds nowhere."""
    n = te.var("n", lo=0, hi=9)
    a = te.placeholder((3, n), name="A")
    k = te.reduce_axis(n, "k")
    c = te.compute((3,), lambda i: te.prod(a[i, k], axis=k), name="C")
    s = Schedule(te.create_prim_func([a, c]))
    _, reduced = s.loops("C")
    s.split(reduced, factor=16)
    flat = lower_loops(s.func, Target.parse("znver4"))
    x = np.arange(1, 1 + 3 * size, dtype=np.float32).reshape(3, size)
    out = np.full(3, np.nan, np.float32)
    interpret(flat, [x, out])
    np.testing.assert_array_equal(out, x.prod(axis=1))
