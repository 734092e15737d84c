"""The texts of tensors and stages."""

from __future__ import annotations

import numpy as np

from tilewright import te


def test_texts_of_tensors_and_stages() -> None:
    n = te.var("n")
    a, b, k = te.placeholder((n, 4), name="A"), te.placeholder((4, n), "float64", name="B"), te.reduce_axis(4, "k")
    c = te.compute((n, 4), lambda i, j: te.sum(a[i, k] * 2.0, axis=k, where=k < j), name="C")
    d = te.compute((n,), lambda i: te.if_then_else(c[i, 0] > 0.0, c[i, 1], 0.0), name="D")
    one = te.compute((), lambda: te.const(1.0), name="one")
    assert [str(a), str(b), str(c), str(one)] == ["A: f32[n, 4]", "B: f64[4, n]", "C: f32[n, 4]", "one: f32[]"]
    assert str([a, d]) == "[A: f32[n, 4], D: f32[n]]"
    assert str(c.op) == "C[i, j] = sum(A[i, k] * 2.0 for k in 0..4 where k < j) for i in 0..n, j in 0..4"
    assert str(d.op) == "D[i] = select(C[i, 0] > 0.0, C[i, 1], 0.0) for i in 0..n"
    assert str(one.op) == "one[] = 1.0"


def test_texts_of_stages_of_several_values() -> None:
    a, k = te.placeholder((5,), name="A"), te.reduce_axis(5, "k")
    best = te.comm_reducer(
        lambda x, y: (te.maximum(x[0], y[0]), te.if_then_else(x[0] >= y[0], x[1], y[1])),
        lambda value, at: (te.const(-1e30, value), te.const(0, at)),
        "best",
    )
    value, _ = te.compute((), lambda: best((a[k], k), axis=k), name="M")
    assert str(value.op).splitlines() == [
        "M_0[] = best((A[k], k) for k in 0..5)[0]",
        "M_1[] = best((A[k], k) for k in 0..5)[1]",
    ]
    called = te.extern((5,), [a], lambda x, y: np.copyto(y, x), name="E")
    assert str(called.op) == "E = function(A)"
    state = te.placeholder((7,), name="S")
    rows = te.scan(
        te.compute((1,), lambda t: a[0], name="I"),
        te.compute((7,), lambda t: state[t - 1] + a[0], name="U"),
        state,
        name="R",
    )
    assert str(rows.op).splitlines() == [
        "R: rows 0..1 are I; each further one:",
        "    U[t] = S[t - 1] + A[0] for t in 0..7",
    ]


def test_text_of_a_scheduled_stage() -> None:
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((8,), lambda i: b[i] * 2.0, name="C")
    s = te.create_schedule(c)
    s[b].vectorize(s[b].split(b.axis[0], 4)[1])
    text = str(s[b])
    assert "for i_0 in 0..2" in text and "vectorized" in text and "B[vi] = A[vi] + 1.0" in text and "C[" not in text
