"""Checks that every schedule test makes: verify, interpret both, replay the trace from its text."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.schedule.programs import assert_same
from tilewright import te
from tilewright.ir.loops import PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ir.verify import verify_func
from tilewright.schedule import Schedule, parse_trace
from tilewright.support.errors import ScheduleError

Apply = Callable[[Schedule], Any]


def scheduled(func: PrimFunc, apply: Apply, *, same: bool = True) -> str:
    """Apply primitives; the program before and after, and the trace, as text for a golden file."""
    schedule = Schedule(func)
    apply(schedule)
    check_schedule(func, schedule, same=same)
    return f"{func}\n\n# becomes\n\n{schedule.func}\n\n# by\n\n{schedule.trace}\n"


def check_schedule(func: PrimFunc, schedule: Schedule, *, same: bool = True, seed: int = 0) -> None:
    """The function is well formed and means the same (unless its signature changed); text and trace round-trip."""
    verify_func(schedule.func)
    assert parse_func(str(schedule.func)) == schedule.func
    if same:
        assert_same(func, schedule.func, random.Random(seed))
    trace = parse_trace(str(schedule.trace))
    assert trace == schedule.trace
    replayed = trace.replay(func)
    assert replayed.func == schedule.func
    assert replayed.trace == schedule.trace


def refused(func: PrimFunc, apply: Apply) -> str:
    """The message with which the last primitive is refused; the schedule stays as it was before."""
    schedule = Schedule(func)
    with pytest.raises(ScheduleError) as caught:
        apply(schedule)
    assert caught.value.loops
    check_schedule(func, schedule)
    return str(caught.value)


def copy(n: Any = 64) -> PrimFunc:
    """B = A * 2 over `n` elements."""
    a = te.placeholder((n,), name="A")
    return te.create_prim_func([a, te.compute((n,), lambda i: a[i] * 2.0, name="B")], "copy")


def chain(n: Any = 20, halo: int = 0) -> PrimFunc:
    """B = A + 1, then C = B * 2, or a sum of neighbours of B."""
    a = te.placeholder((n + halo,), name="A")
    b = te.compute((n + halo,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((n,), lambda i: b[i] + b[i + halo] if halo else b[i] * 2.0, name="C")
    return te.create_prim_func([a, c], "chain")


def matmul(m: Any = 8, n: int = 12, k: int = 6, epilogue: bool = True) -> PrimFunc:
    """C = A @ B and, as an epilogue, D = max(C, 0)."""
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), name="C")
    if not epilogue:
        return te.create_prim_func([a, b, c], "matmul")
    d = te.compute((m, n), lambda i, j: te.maximum(c[i, j], 0.0), name="D")
    return te.create_prim_func([a, b, d], "matmul")


def conv(size: int = 14, channels: int = 16) -> PrimFunc:
    """A padded 3x3 convolution with bias and relu as stages of their own."""
    x = te.placeholder((4, size, size), name="X")
    w, bias = te.placeholder((channels, 4, 3, 3), name="W"), te.placeholder((channels,), name="bias")
    p = te.compute(
        (4, size + 2, size + 2),
        lambda c, h, w: te.if_then_else(te.all_of([h >= 1, h <= size, w >= 1, w <= size]), x[c, h - 1, w - 1], 0.0),
        name="P",
    )
    rc, rh, rw = te.reduce_axis(4, "rc"), te.reduce_axis(3, "rh"), te.reduce_axis(3, "rw")
    t = te.compute(
        (channels, size, size),
        lambda o, h, v: te.sum(p[rc, h + rh, v + rw] * w[o, rc, rh, rw], [rc, rh, rw]),
        name="T",
    )
    u = te.compute((channels, size, size), lambda o, h, v: t[o, h, v] + bias[o], name="U")
    r = te.compute((channels, size, size), lambda o, h, v: te.maximum(u[o, h, v], 0.0), name="R")
    return te.create_prim_func([x, w, bias, r], "conv")


def row_sum(m: int = 6, n: int = 32) -> PrimFunc:
    """S = the sum of each row of A."""
    a = te.placeholder((m, n), name="A")
    r = te.reduce_axis(n, "k")
    return te.create_prim_func([a, te.compute((m,), lambda i: te.sum(a[i, r], r), name="S")], "row_sum")
