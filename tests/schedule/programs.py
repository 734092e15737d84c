"""Random small programs, their arrays, and a check that two functions do the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.expr import as_int
from tilewright.ir.loops import PrimFunc
from tilewright.ir.rewrite import substitute

Arrays = dict[str, np.ndarray[Any, Any]]


def matmul(rng: random.Random) -> PrimFunc:
    """A product of matrices with a pointwise epilogue; the rows may be symbolic."""
    m: Any = te.var("m", hi=9) if rng.random() < 0.3 else rng.choice([4, 6, 9])
    n, k = rng.choice([4, 5, 8]), rng.choice([3, 4, 6])
    if rng.random() < 0.2:
        m, n = rng.choice([5, 8]), rng.choice([32, 37])
    a, b, bias = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B"), te.placeholder((n,), name="bias")
    r = te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), name="C")
    d = te.compute((m, n), lambda i, j: c[i, j] + bias[j], name="D")
    e = te.compute((m, n), lambda i, j: te.maximum(d[i, j], 0.0), name="E")
    return te.create_prim_func([a, b, bias, e], "matmul")


def batched(rng: random.Random) -> PrimFunc:
    """Two products one after the other, as in attention."""
    b, m, n, k = 2, rng.choice([3, 4]), rng.choice([4, 5]), rng.choice([2, 4])
    q, w, v = (te.placeholder(s, name=x) for s, x in (((b, m, k), "Q"), ((b, n, k), "W"), ((b, n, k), "V")))
    r1, r2 = te.reduce_axis(k, "r"), te.reduce_axis(n, "s")
    scores = te.compute((b, m, n), lambda x, i, j: te.sum(q[x, i, r1] * w[x, j, r1], r1), name="S")
    half = te.compute((b, m, n), lambda x, i, j: scores[x, i, j] * 0.5, name="H")
    out = te.compute((b, m, k), lambda x, i, j: te.sum(half[x, i, r2] * v[x, r2, j], r2), name="O")
    return te.create_prim_func([q, w, v, out], "batched")


def conv(rng: random.Random) -> PrimFunc:
    """A padded, strided, dilated convolution in one dimension or two."""
    two = rng.random() < 0.5
    ci, co, size, kernel = rng.choice([1, 2]), rng.choice([2, 4]), rng.choice([5, 6]), rng.choice([2, 3])
    stride, dilation, pad = rng.choice([1, 2]), rng.choice([1, 2]), rng.choice([0, 1, 2])
    span = (kernel - 1) * dilation + 1
    size = max(size, span)
    out = (size + 2 * pad - span) // stride + 1
    height = 1 if two else None
    if height is None:
        x, w = te.placeholder((ci, size), name="X"), te.placeholder((co, ci, kernel), name="W")
        p = te.compute(
            (ci, size + 2 * pad),
            lambda c, i: te.if_then_else(te.all_of([i >= pad, i < size + pad]), x[c, i - pad], 0.0),
            name="P",
        )
        rc, rk = te.reduce_axis(ci, "rc"), te.reduce_axis(kernel, "rk")
        t = te.compute(
            (co, out), lambda o, i: te.sum(p[rc, i * stride + rk * dilation] * w[o, rc, rk], [rc, rk]), name="T"
        )
        u = te.compute((co, out), lambda o, i: te.maximum(t[o, i], 0.0), name="U")
        return te.create_prim_func([x, w, u], "conv1d")
    x, w = te.placeholder((ci, size, size), name="X"), te.placeholder((co, ci, 2, kernel), name="W")
    rows = size + 2 * pad - 1
    p = te.compute(
        (ci, size + 2 * pad, size + 2 * pad),
        lambda c, i, j: te.if_then_else(
            te.all_of([i >= pad, i < size + pad, j >= pad, j < size + pad]), x[c, i - pad, j - pad], 0.0
        ),
        name="P",
    )
    rc, rh, rw = te.reduce_axis(ci, "rc"), te.reduce_axis(2, "rh"), te.reduce_axis(kernel, "rw")
    t = te.compute(
        (co, rows, out),
        lambda o, i, j: te.sum(p[rc, i + rh, j * stride + rw * dilation] * w[o, rc, rh, rw], [rc, rh, rw]),
        name="T",
    )
    u = te.compute((co, rows, out), lambda o, i, j: t[o, i, j] * 2.0 + 1.0, name="U")
    return te.create_prim_func([x, w, u], "conv2d")


def softmax(rng: random.Random) -> PrimFunc:
    """Two reductions over rows with pointwise stages between."""
    m, n = rng.choice([3, 4, 6]), rng.choice([4, 7, 8])
    a = te.placeholder((m, n), name="A")
    r1, r2 = te.reduce_axis(n, "r"), te.reduce_axis(n, "s")
    high = te.compute((m,), lambda i: te.max(a[i, r1], r1), name="M")
    e = te.compute((m, n), lambda i, j: te.exp(a[i, j] - high[i]), name="E")
    total = te.compute((m,), lambda i: te.sum(e[i, r2], r2), name="S")
    out = te.compute((m, n), lambda i, j: e[i, j] / total[i], name="O")
    return te.create_prim_func([a, out], "softmax")


def pointwise(rng: random.Random) -> PrimFunc:
    """Stages that transpose, broadcast, shift, reverse strides and read several neighbours; sizes may be symbolic."""
    n: Any = te.var("n", hi=13) if rng.random() < 0.4 else rng.choice([5, 8, 13])
    m = rng.choice([3, 4, 6, 37])
    a, b = te.placeholder((n, m), name="A"), te.placeholder((m,), name="B")
    stage = te.compute((n, m), lambda i, j: a[i, j] + b[j], name="S0")
    for k in range(rng.randint(1, 3)):
        kind = rng.choice(["square", "neighbours", "twice", "edge"])
        previous = stage
        if kind == "square":
            stage = _square(previous, n, m, f"S{k + 1}")
        elif kind == "neighbours":
            stage = _neighbours(previous, n, m, f"S{k + 1}")
        elif kind == "twice":
            stage = _double_transpose(previous, n, m, f"S{k + 1}")
        else:
            stage = _edge(previous, n, m, f"S{k + 1}")
    return te.create_prim_func([a, b, stage], "pointwise")


def _square(p: Any, n: Any, m: int, name: str) -> Any:
    return te.compute((n, m), lambda i, j: p[i, j] * p[i, j], name=name)


def _neighbours(p: Any, n: Any, m: int, name: str) -> Any:
    return te.compute((n, m), lambda i, j: p[i, j] + te.if_then_else(i >= 1, p[i - 1, j], 0.0), name=name)


def _double_transpose(p: Any, n: Any, m: int, name: str) -> Any:
    t = te.compute((m, n), lambda j, i: p[i, j] + 1.0, name=f"{name}_t")
    return te.compute((n, m), lambda i, j: t[j, i] * 2.0, name=name)


def _edge(p: Any, n: Any, m: int, name: str) -> Any:
    return te.compute((n, m), lambda i, j: p[i, m - 1 - j] - p[i, j], name=name)


def rows(rng: random.Random) -> PrimFunc:
    """A sum along rows, an argmax along columns (two outputs), both of one input stage."""
    m, n = rng.choice([3, 5]), rng.choice([4, 6])
    a = te.placeholder((m, n), name="A")
    x = te.compute((m, n), lambda i, j: a[i, j] * 3.0, name="X")
    r, s = te.reduce_axis(n, "r"), te.reduce_axis(m, "s")
    total = te.compute((m,), lambda i: te.sum(x[i, r], r), name="T")
    best = te.comm_reducer(
        lambda p, q: (
            te.if_then_else(_beats(q, p), q[0], p[0]),
            te.if_then_else(_beats(q, p), q[1], p[1]),
        ),
        lambda t, u: (te.const(-1e30, t), te.const(1 << 30, u)),
        "argmax",
    )
    value, where = te.compute((n,), lambda j: best((x[s, j], s.var), s), name="best")
    return te.create_prim_func([a, total, value, where], "rows")


def _beats(q: Any, p: Any) -> Any:
    """Greater, or equal and earlier: so the reducer does not depend on the order."""
    return (q[0] > p[0]) | (te.equal(q[0], p[0]) & (q[1] < p[1]))


def grouped(rng: random.Random) -> PrimFunc:
    """A grouped convolution in integers, whose channels index by quotients, then a rescaling."""
    groups, each, size, kernel = rng.choice([1, 2, 3]), rng.choice([1, 2]), rng.choice([4, 5]), rng.choice([1, 2])
    x = te.placeholder((groups * 2, size), "u8", name="X")
    w = te.placeholder((groups * each, 2, kernel), "i8", name="W")
    wide = te.compute((groups * 2, size), lambda c, i: te.cast(x[c, i], "i32") - 1, name="Z")
    rc, rk = te.reduce_axis(2, "rc"), te.reduce_axis(kernel, "rk")
    t = te.compute(
        (groups * each, size - kernel + 1),
        lambda o, i: te.sum(wide[o // each * 2 + rc, i + rk] * te.cast(w[o, rc, rk], "i32"), [rc, rk]),
        name="T",
    )
    u = te.compute(t.shape, lambda o, i: te.maximum(t[o, i], -5) * 3, name="U")
    return te.create_prim_func([x, w, u], "grouped")


def lookup(rng: random.Random) -> PrimFunc:
    """Rows of a table chosen by an array, then summed: which elements are read is not known before."""
    count, width = rng.choice([3, 5]), rng.choice([4, 6])
    table = te.placeholder((8, width), name="A")
    index = te.placeholder((count,), "i64", name="I")
    scaled = te.compute((8, width), lambda i, j: table[i, j] * 2.0, name="B")
    rows_ = te.compute((count, width), lambda i, j: scaled[te.maximum(te.minimum(index[i], 7), 0), j], name="R")
    r = te.reduce_axis(count, "r")
    total = te.compute((width,), lambda j: te.sum(rows_[r, j], r), name="T")
    return te.create_prim_func([table, index, total], "lookup")


def several_symbols(rng: random.Random) -> PrimFunc:
    """A product whose three dimensions are symbolic, of known divisibility or not."""
    m, n = te.var("m", hi=9), te.var("n", lo=4, hi=12, multiple=rng.choice([1, 4]))
    k = te.var("k", lo=2, hi=6, multiple=rng.choice([1, 2]))
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), name="C")
    d = te.compute((m, n), lambda i, j: c[i, j] - 1.0, name="D")
    return te.create_prim_func([a, b, d], "several_symbols")


def transforms(rng: random.Random) -> PrimFunc:
    """Two products with constant matrices, rows and columns of tiles, as in fast convolutions; edges are padded."""
    n, rows = rng.choice([2, 3, 4]), rng.choice([2, 3, 4])
    table = te.const_matrix([[rng.choice([0, 0, 1, 1, -1, 2, -2]) for _ in range(n)] for _ in range(rows)])
    tiles: Any = te.var("t", hi=5) if rng.random() < 0.3 else rng.choice([1, 3])
    lanes, shift = rng.choice([1, 4, 8]), rng.choice([0, 1])
    x = te.placeholder((tiles, n, n, lanes), name="X")

    def element(t: Any, i: Any, j: Any, c: Any) -> Any:
        value = x[t, i, j - shift, c]
        return te.if_then_else(j >= shift, value, 0.0) if shift else value

    r1, r2 = te.reduce_axis(n, "r"), te.reduce_axis(n, "s")
    half = te.compute(
        (tiles, rows, n, lanes),
        lambda t, i, j, c: te.sum(table[i, r1] * element(t, r1.var, j, c), r1),
        name="H",
    )
    whole = te.compute(
        (tiles, rows, rows, lanes), lambda t, i, j, c: te.sum(table[j, r2] * half[t, i, r2, c], r2), name="V"
    )
    out = te.compute((tiles, lanes, rows, rows), lambda t, c, i, j: te.maximum(whole[t, i, j, c], 0.0), name="Y")
    return te.create_prim_func([x, out], "transforms")


def recurrence(rng: random.Random) -> PrimFunc:
    """A recurrence with a product and a pointwise stage in each step, and what reads it."""
    width, start = rng.choice([3, 4, 8]), rng.choice([1, 1, 2])
    length: Any = te.var("n", lo=start, hi=7) if rng.random() < 0.3 else rng.choice([start, 4, 6])
    x, w = te.placeholder((length, width), name="X"), te.placeholder((width, width), name="W")
    wide = te.compute((length, width), lambda t, i: x[t, i] + 1.0, name="B")
    state, r = te.placeholder((length, width), name="state"), te.reduce_axis(width, "r")
    first = te.compute((start, width), lambda t, i: te.cast(t - i, "f32"), name="first")
    if rng.random() < 0.5:
        gate = te.compute((length, width), lambda t, i: te.sum(state[t - 1, r] * w[r, i], r), name="G")
    else:
        gate = te.compute((length, width), lambda t, i: state[t - start, width - 1 - i] * w[i, 0], name="G")
    after = te.compute(
        (length, width), lambda t, i: te.maximum(te.minimum(gate[t, i] + wide[t, i], 3.0), -3.0), name="U"
    )
    rows_ = te.scan(first, after, state, name="H")
    out = te.compute((length, width), lambda t, i: rows_[t, i] * 2.0 - x[t, i], name="D")
    return te.create_prim_func([x, w, out, rows_] if rng.random() < 0.5 else [x, w, out], "recurrence")


PROGRAMS: tuple[Callable[[random.Random], PrimFunc], ...] = (
    matmul,
    batched,
    conv,
    softmax,
    pointwise,
    rows,
    grouped,
    lookup,
    several_symbols,
    transforms,
    recurrence,
)


def random_program(rng: random.Random) -> PrimFunc:
    return rng.choice(PROGRAMS)(rng)


def random_arrays(func: PrimFunc, rng: random.Random) -> Arrays:
    """Small whole numbers, so that sums are exact in any order; symbols get random values."""
    values = {
        v: te.const(v.multiple * rng.randint(-(-(v.lo or 1) // v.multiple), (v.hi or 12) // v.multiple))
        for v in func.symbols
    }
    generator = np.random.default_rng(rng.randrange(1 << 30))
    arrays: Arrays = {}
    for buffer in func.params:
        shape = [as_int(substitute(x, values)) or 0 for x in buffer.shape]
        low = 0 if buffer.dtype.kind == "uint" else -3
        arrays[buffer.name] = generator.integers(low, 4, shape).astype(buffer.dtype.numpy)
    return arrays


def assert_same(func: PrimFunc, scheduled: PrimFunc, rng: random.Random, run: Callable[..., None] = interpret) -> None:
    """Both functions give the same arrays."""
    arrays = random_arrays(func, rng)
    copies = {name: a.copy() for name, a in arrays.items()}
    interpret(func, arrays)
    run(scheduled, copies)
    for name, expected in arrays.items():
        np.testing.assert_allclose(copies[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
