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


@pytest.mark.parametrize("factor", [1, 16])
@pytest.mark.parametrize("size", [0, 1])
def test_init_runs_where_a_reduction_has_one_element_at_most(size: int, factor: int) -> None:
    """Moved into the loop of its copy, the block reads 0 in place of the loop of the reduction, and no condition names
    that loop."""
    n = te.var("n", lo=0, hi=1)
    a = te.placeholder((3, n), name="A")
    k = te.reduce_axis(n, "k")
    c = te.compute((3,), lambda i: te.prod(a[i, k], axis=k), name="C")
    s = Schedule(te.create_prim_func([a, c]))
    _, reduced = s.loops("C")
    s.split(reduced, factor=factor)
    copy = s.cache_write("C", "local")
    s.compute_at("C", s.loops(copy)[0])
    flat = lower_loops(s.func, Target.parse("znver4"))
    x = np.arange(2, 2 + 3 * size, dtype=np.float32).reshape(3, size)
    out = np.full(3, np.nan, np.float32)
    interpret(flat, [x, out])
    np.testing.assert_array_equal(out, x.prod(axis=1))


@pytest.mark.parametrize(("size", "rows"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_init_writes_no_result_that_does_not_exist(size: int, rows: int) -> None:
    """The loop of the results has one iteration at most as well: the init in front of both is bound to it."""
    n, m = te.var("n", lo=0, hi=1), te.var("m", lo=0, hi=1)
    a = te.placeholder((m, n, 3), name="A")
    k = te.reduce_axis(n, "k")
    c = te.compute((m, 3), lambda i, j: te.sum(a[i, k, j], axis=k), name="C")
    s = Schedule(te.create_prim_func([a, c]))
    copy = s.cache_write("C", "local")
    s.reorder(*s.loops(copy)[::-1])
    s.compute_at("C", s.loops(copy)[0])
    s.reorder(*s.loops("C")[:0:-1])
    flat = lower_loops(s.func, Target.parse("znver4"))
    x = np.full((rows, size, 3), 7, np.float32)
    out = np.full((rows, 3), np.nan, np.float32)
    interpret(flat, [x, out])
    np.testing.assert_array_equal(out, x.sum(axis=1))
