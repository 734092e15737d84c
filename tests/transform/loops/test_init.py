"""The init of a reduction whose split depends on a symbol."""

from __future__ import annotations

import numpy as np

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
