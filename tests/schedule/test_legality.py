"""Legality checks that the tests of single primitives do not meet: each refuses, names why, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.ir.loops import PrimFunc
from tilewright.schedule import Schedule
from tilewright.schedule.in_place import in_place
from tilewright.schedule.intrinsics import DOT_4X4X4_F32
from tilewright.support.errors import CallError, ExpressionError, ScheduleError


def chain(n: Any = 8, m: int = 4) -> PrimFunc:
    """Two pointwise stages."""
    a = te.placeholder((n, m), name="A")
    b = te.compute((n, m), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((n, m), lambda i, j: b[i, j] * 2.0, name="C")
    return te.create_prim_func([a, c])


def product() -> PrimFunc:
    a, b, k = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B"), te.reduce_axis(8, "k")
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    d = te.compute((8, 8), lambda i, j: c[i, j] * 2.0, name="D")
    return te.create_prim_func([a, b, d])


def two_outputs() -> PrimFunc:
    a = te.placeholder((8,), name="A")
    p, q = te.compute((8,), lambda i: (a[i], a[i] + 1.0), name="P")
    r = te.compute((8,), lambda i: p[i] * 2.0, name="R")
    x, y = te.compute((8,), lambda i: (r[i], r[i] + 1.0), name="X")
    return te.create_prim_func([a, q, x, y])


def shifted(extent: int, index: Callable[[Any], Any]) -> PrimFunc:
    """A stage that reads another one at an index."""
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((extent,), lambda i: te.if_then_else(index(i) < 8, b[index(i)], 0.0), name="C")
    return te.create_prim_func([a, c])


def _parallel_inside(s: Schedule) -> None:
    i, j = s.loops("B")
    s.parallel(j)
    s.parallel(i)


def _rfactor_shared(s: Schedule) -> None:
    """The factored loop is around another block too."""
    s.reverse_compute_at("D", s.loops("C")[0])
    s.rfactor("C", s.loops("C")[0])


def _rfactor_parallel(s: Schedule) -> None:
    k = s.loops("C")[2]
    s.vectorize(k)
    s.rfactor("C", k)


def _cached_inside(s: Schedule) -> None:
    s.compute_at("B", s.loops("C")[0])
    s.cache_write("B", "global")


CASES: dict[str, tuple[Callable[[], PrimFunc], Callable[[Schedule], Any], str]] = {
    "unroll": (lambda: chain(8000), lambda s: s.unroll(s.loops("B")[0]), "8000 copies are too many: expected <= 4096"),
    "parallel around parallel": (chain, _parallel_inside, "it contains parallel 'j'"),
    "gaps": (chain, lambda s: s.transform_layout("C", lambda i, j: (i // 3, i % 3, j)), "would get gaps"),
    "many gaps": (chain, lambda s: s.transform_layout("B", lambda i, j: (i * 100000, j)), "too many gaps"),
    "buffer": (
        chain,
        lambda s: s.transform_layout("B", lambda i, j: (j, i), "X"),
        "block 'B' uses .*name one",
    ),
    "multiple": (chain, lambda s: s.pad("B", (0, 1)), "a multiple must be between 1 and"),
    "cache of what is read": (chain, _cached_inside, "'C' reads 'B' in the same loops"),
    "nothing made there": (
        chain,
        lambda s: s.reverse_compute_at("B", s.loops("C")[0]),
        "no block under this loop computes",
    ),
    "tile of a symbol": (
        lambda: chain(te.var("n")),
        lambda s: s.sample_perfect_tile(s.loops("B")[0], 2),
        "perfectly: its extent is not constant",
    ),
    "tile of nothing": (lambda: chain(0), lambda s: s.sample_perfect_tile(s.loops("B")[0], 2), "it has no iterations"),
    "tile into none": (chain, lambda s: s.sample_perfect_tile(s.loops("B")[0], 0), "into 0 parts"),
    "choice": (chain, lambda s: s.sample_categorical([1, 2], 5), "decision 5 is not among 2 candidates"),
    "inline of a result": (chain, lambda s: s.compute_inline("C"), "a parameter of the function"),
    "inline several": (two_outputs, lambda s: s.reverse_compute_inline("X"), "it writes several buffers"),
    "inline behind several": (
        two_outputs,
        lambda s: s.reverse_compute_inline("R"),
        "its producer 'P' writes several buffers",
    ),
    "inline outside": (
        lambda: shifted(12, lambda i: i),
        lambda s: s.reverse_compute_inline("C"),
        "some of its points lie outside of 'B'|more than one store|several elements",
    ),
    "inline of quotients": (
        lambda: shifted(16, lambda i: i // 2),
        lambda s: s.reverse_compute_inline("C"),
        "its read of 'B' does not determine",
    ),
    "rfactor shared": (product, _rfactor_shared, "the loop is not around this block alone"),
    "rfactor vectorized": (product, _rfactor_parallel, "the loop is already vectorized"),
    "tensorize": (
        chain,
        lambda s: s.tensorize(s.block("B"), DOT_4X4X4_F32.name),
        "cannot tensorize block 'B' with 'dot_4x4x4_f32': it has 2 loops",
    ),
    "trace": (chain, lambda s: s.pad("B", (1, {})), "a multiple must be between 1 and"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("what", CASES)
def test_refused(what: str) -> None:
    make, step, message = CASES[what]
    s = Schedule(make())
    with pytest.raises(ScheduleError, match=message):
        step(s)


def test_outputs_in_the_place_of_inputs() -> None:
    a, b = te.placeholder((4,), name="A"), te.placeholder((4,), name="B")
    c = te.compute((4,), lambda i: a[i] * 2.0, name="C")
    d = te.compute((4,), lambda i: c[3 - i] + a[i], name="D")
    func = te.create_prim_func([a, b, c, d])
    for output, source, message in (
        ("X", "A", "'X' is no parameter"),
        ("C", "X", "'X' is no parameter"),
        ("C", "D", "'D' is written already"),
        ("B", "A", "nothing writes 'B'"),
        ("C", "A", "block 'D' reads 'A' after that"),
    ):
        with pytest.raises(ScheduleError, match=message):
            in_place(func, output, source)
    in_place(func, "C", "B")
    in_place(func, "D", "A")


def test_a_reduction_does_not_stand_in_its_input() -> None:
    a, k = te.placeholder((4, 4), name="A"), te.reduce_axis(4, "k")
    c = te.compute((4, 4), lambda i, j: te.sum(a[i, k], k), name="C")
    with pytest.raises(ScheduleError, match="reads elements of 'A' that may be overwritten"):
        in_place(te.create_prim_func([a, c]), "C", "A")


def test_the_language() -> None:
    x = te.placeholder((4,), name="x")
    with pytest.raises(ExpressionError, match="not an integer of 8 bits or more"):
        te.clz(x[0])
    state = te.placeholder((4, 2), name="state")
    first = te.compute((1, 2), lambda t, i: 0.0)
    after = te.compute((4, 2), lambda t, i: state[t - 1, i])
    with pytest.raises(ExpressionError, match="as many inits and updates as states"):
        te.scan([first, first], [after], [state])
    n = te.var("n")
    y = te.placeholder((n,), name="y")
    z = te.compute((n,), lambda i: y[i], name="z")
    with pytest.raises(ExpressionError, match="'n' is a dimension, which is read off the arrays"):
        tw.build(te.create_schedule(z), [y, n, z])


def test_views_that_do_not_fit() -> None:
    n, o = te.var("n"), te.var("o", lo=0)
    a = te.placeholder((n, 3), name="A", strides=(4, 1))
    c = te.placeholder((n,), name="C")
    b = te.compute((n, 3), lambda i, j: a[i, j] + c[i], name="B")
    memory = np.zeros((6, 4), np.float32)
    f = tw.build(te.create_schedule(b), [a, c, b])
    with pytest.raises(CallError, match=r"wrong shape|disagree|wrong dimension"):
        f(memory[:, :2], np.zeros(6, np.float32), np.zeros((6, 3), np.float32))
    with pytest.raises(CallError, match=r"wrong shape|disagree|wrong dimension"):
        f(memory[:5, :3], np.zeros(6, np.float32), np.zeros((5, 3), np.float32))
    d = te.placeholder((2,), name="D", strides=(-4,), offset=o)
    e = te.placeholder((2,), name="E", strides=(1,), offset=o)
    g = te.compute((2,), lambda i: d[i] + e[i], name="G")
    f = tw.build(te.create_schedule(g), [e, d, g])
    line = np.arange(24, dtype=np.float32)
    with pytest.raises(CallError, match="'D': elements lie before the memory: expected an offset of 4, got 0"):
        f(line[:2], line[8:0:-4][:2], np.zeros(2, np.float32))
