"""Several lanes as an element type: the last dimension in memory, one vector in code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.te.conformance import close
from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.support.errors import CallError, ExpressionError, ScheduleError

N = te.var("n", lo=0)
RNG = np.random.default_rng(0)


def check(c: Any, inputs: list[Any], arrays: list[Any], expected: Any, s: Any = None) -> Any:
    s = s or te.create_schedule(c)
    f = tw.build(s, [*inputs, c])
    native, oracle = np.empty_like(expected), np.empty_like(expected)
    f(*arrays, native)
    interpret(te.lower(s, [*inputs, c]), [*arrays, oracle])
    close(native, expected)
    close(oracle, expected)
    return f


@pytest.mark.parametrize("kind", ["float32x4", "f32x8", "float64x2", "int32x16", "int8x3"])
def test_elements(kind: str) -> None:
    a, b = (te.placeholder((N,), kind, name=x) for x in "AB")
    c = te.compute(a.shape, lambda i: a[i] * b[i] + 1, name="C")
    assert (c.lanes, str(c)) == (a.lanes, f"C: {a.dtype}x{a.lanes}[n]")
    for size in (0, 1, 5):
        u, v = (RNG.integers(-5, 6, (size, a.lanes)).astype(a.dtype.numpy) for _ in range(2))
        f = check(c, [a, b], [u, v], u * v + 1)
    if kind == "float32x4":
        assert "<4 x float>" in f.source("llvm")


def test_schedules() -> None:
    a, b = te.placeholder((N, 6), "float32x4", name="A"), te.placeholder((N,), "float32", name="B")
    twice = te.compute((N, 6), lambda i, j: a[i, j] * 2.0, name="twice")
    c = te.compute((N, 6), lambda i, j: te.maximum(twice[i, j], b[i]) + te.const(1.0, "float32x4"), name="C")
    s = te.create_schedule(c)
    i_0, i_1 = s[c].split(c.axis[0], factor=3)
    s[c].reorder(i_0, c.axis[1], i_1)
    s[twice].compute_at(s[c], i_1)
    u, v = RNG.standard_normal((7, 6, 4)).astype(np.float32), RNG.standard_normal(7).astype(np.float32)
    check(c, [a, b], [u, v], np.maximum(2 * u, v[:, None, None]) + 1, s)
    inlined = te.create_schedule(c)
    inlined[twice].compute_inline()
    check(c, [a, b], [u, v], np.maximum(2 * u, v[:, None, None]) + 1, inlined)


def test_sums_casts_and_single_lanes() -> None:
    a = te.placeholder((N, 5), "float32x4", name="A")
    k = te.reduce_axis(5, "k")
    total = te.compute((N,), lambda i: te.sum(a[i, k], axis=k), name="total")
    u = RNG.standard_normal((3, 5, 4)).astype(np.float32)
    check(total, [a], [u], u.sum(1))
    whole = te.compute((N, 5), lambda i, j: te.cast(a[i, j], "int32x4"), name="whole")
    check(whole, [a], [10 * u], (10 * u).astype(np.int32))
    last = te.compute((N, 5), lambda i, j: a[i, j, 3] - a[i, j, 0], name="last")
    assert last.lanes == 1
    check(last, [a], [u], u[..., 3] - u[..., 0])
    r = te.reduce_axis(4, "r")
    across = te.compute((N, 5), lambda i, j: te.max(a[i, j, r], axis=r), name="across")
    check(across, [a], [u], u.max(-1))


def test_several_outputs_and_recurrences() -> None:
    a = te.placeholder((N,), "float32x2", name="A")
    one, two = te.compute((N,), lambda i: (a[i] + 1.0, te.cast(a[i], "float64x2")), name="C")
    s = te.create_schedule([one, two])
    u = RNG.standard_normal((4, 2)).astype(np.float32)
    v, w = np.empty((4, 2), np.float32), np.empty((4, 2))
    tw.build(s, [a, one, two])(u, v, w)
    close(v, u + 1)
    close(w, u.astype(np.float64))
    m = te.var("m", lo=1)
    x = te.placeholder((m,), "float32x4", name="X")
    state = te.placeholder((m,), "float32x4", name="state")
    first = te.compute((1,), lambda t: x[t], name="first")
    step = te.compute((m,), lambda t: state[t - 1] + x[t], name="step")
    sums = te.scan(first, step, state, name="S")
    assert sums.lanes == 4
    p = RNG.standard_normal((6, 4)).astype(np.float32)
    out = np.empty_like(p)
    tw.build(te.create_schedule(sums), [x, sums])(p, out)
    close(out, np.cumsum(p, 0))


A4, A8 = te.placeholder((N,), "float32x4", name="A4"), te.placeholder((N,), "float32x8", name="A8")
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "two numbers of lanes": (
        lambda: te.compute((N,), lambda i: A4[i] + A8[i]),
        "different numbers of lanes: got 4 and 8",
    ),
    "another shape": (lambda: te.compute((N, 5), lambda i: A4[i]), "has another shape"),
    "no lanes": (lambda: te.placeholder((N,), "float32x0"), "no number of lanes: expected 1 to 1024, got 0"),
    "too many": (lambda: te.placeholder((N,), "float32x4096"), "no number of lanes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(ExpressionError, match=message):
        call()
    c = te.compute((N,), lambda i: A4[i] * 2.0, name="C")
    s = te.create_schedule(c)
    with pytest.raises(ScheduleError):
        s[c].vectorize(c.axis[0])
    f = tw.build(s, [A4, c])
    with pytest.raises(CallError, match="A4"):
        f(np.ones(4, np.float32), np.ones(4, np.float32))
