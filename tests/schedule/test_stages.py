"""Schedules by tensors and axes."""

from __future__ import annotations

import random

import pytest

from tests.schedule.checks import check_schedule
from tests.schedule.programs import assert_same
from tilewright import te
from tilewright.ir.notes import Streaming, Unroll
from tilewright.support.errors import ScheduleError


def add(n):
    a, b = te.placeholder((n,), name="A"), te.placeholder((n,), name="B")
    return a, b, te.compute((n,), lambda i: a[i] + b[i], name="C")


def product(n=16):
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis(n, "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    d = te.compute((n, n), lambda i, j: c[i, j] + 1.0, name="D")
    return a, b, c, d, k


def test_vector_add(golden):
    a, b, c = add(te.var("n"))
    s = te.create_schedule(c)
    _, inner = s[c].split(c.axis[0], factor=32)
    s[c].vectorize(inner)
    golden(str(te.lower(s, [a, b, c])))


def test_matmul(golden):
    a, b, c, d, k = product()
    s = te.create_schedule(d)
    before = s.func
    _, j_0, _, j_1 = s[d].tile(d.axis[0], d.axis[1], 8, 4)
    s[c].compute_at(s[d], j_0)
    s[c].set_scope("local")
    k_0, k_1 = s[c].split(k, factor=4)
    s[c].reorder(k_0, k_1, *c.axis)
    s[c].vectorize(c.axis[1])
    s[c].unroll(c.axis[0])
    init = s[c].decompose_reduction(k_0)
    s[d].vectorize(j_1)
    assert init.name == "C_init"
    check_schedule(before, s.schedule)
    golden(str(te.lower(s, [a, b, d])))


def test_every_primitive_on_stages():
    a, _, c, d, k = product()
    s = te.create_schedule(d)
    before = s.func
    copy_in = s[c].cache_read(a, "global")
    s[c].pad(1, 32, 1)
    s[c].transform_layout(lambda i, j: (j, i))
    partial = s[c].rfactor(s[c].split(k, nparts=2)[0])
    s[partial].annotate(Streaming(), s[partial].loops[-1])
    s[c].annotate(Unroll(2), s[c].loops[0])
    copy_out = s[d].cache_write("local")
    s[copy_out].reverse_compute_at(s[d], d.axis[0])
    s[copy_in].parallel(s[copy_in].loops[0])
    fused = s[d].fuse(s[d].loops[1]) if False else s[d].loops[0]
    s[d].bind(fused, "blockIdx.x")
    check_schedule(before, s.schedule)


def test_inlining_on_stages():
    x = te.placeholder((8,), name="X")
    y = te.compute((8,), lambda i: x[i] + 1.0, name="Y")
    z = te.compute((8,), lambda i: y[i] * 2.0, name="Z")
    w = te.compute((8,), lambda i: z[i] - 3.0, name="W")
    s = te.create_schedule(w)
    before = s.func
    s[y].compute_inline()
    s[w].reverse_compute_inline()
    check_schedule(before, s.schedule)
    assert len(s.schedule.blocks()) == 1


def test_arguments_in_any_order_and_inner_results():
    a, b, c, d, _ = product(4)
    s = te.create_schedule(d)
    func = te.lower(s, [d, c, b, a], name="other")
    assert [p.name for p in func.params] == ["D", "C", "B", "A"] and func.buffers == ()
    assert_same(te.create_prim_func([d, c, b, a]), func, random.Random(0))


def test_errors():
    a, b, c, d, k = product(4)
    s = te.create_schedule(d)
    with pytest.raises(ScheduleError, match="not computed by this schedule"):
        s[a]
    outer, _ = s[d].split(d.axis[0], factor=2)
    with pytest.raises(ScheduleError, match="axis 'i_1' of 'D' is gone: split took it"):
        s[d].split(d.axis[0], factor=2)
    with pytest.raises(ScheduleError, match="does not belong"):
        s[d].vectorize(te.reduce_axis(4))
    with pytest.raises(ScheduleError, match="drives reduction iterator"):
        s[c].parallel(k)
    with pytest.raises(ValueError, match="not among the arguments: B"):
        te.lower(s, [a, d])
    unused = te.lower(s, [a, te.placeholder((3,), name="B"), b, d]).params[1]
    assert unused.name == "B_1" and unused.shape == (3,)
    s[c].compute_at(s[d], outer)
    s[c].set_scope("local")
    with pytest.raises(ValueError, match="neither inputs nor global results"):
        te.lower(s, [a, b, c, d])


def test_what_different_iterations_complete_stays_after_the_loop() -> None:
    """A consumer of neighbours, or of rows and columns, has points whose inputs no single iteration completes."""
    a = te.placeholder((65,), name="A")
    b = te.compute((65,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((64,), lambda i: b[i] + b[i + 1], name="C")
    s = te.create_schedule(c)
    outer, _ = s[b].split(b.axis[0], factor=5)
    with pytest.raises(ScheduleError, match="different iterations complete what one point of it reads"):
        s[c].reverse_compute_at(s[b], outer)
    x = te.placeholder((4, 4), name="X")
    p, q = te.compute((4, 4), lambda i, j: (x[i, j], x[j, i]), name="P")
    k = te.reduce_axis(4, "k")
    t = te.compute((4,), lambda i: te.sum(p[i, k] * q[k, i], k), name="T")
    s = te.create_schedule(t)
    with pytest.raises(ScheduleError, match="different iterations complete what one point of it reads"):
        s[t].reverse_compute_at(s["P"], s["P"].loops[0])
