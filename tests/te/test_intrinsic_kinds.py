"""Intrinsics with scalars, with symbolic extents, with a reduction of their own: loops, LLVM text and C text agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.c.c_run import needs_compiler, run_c
from tests.te.conformance import close
from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.support.errors import ExpressionError, ScheduleError

AXPY = """
define internal void @tw.intrin.NAME(ptr %a, ptr %x, ptr %y, ptr %z) alwaysinline {
  %s = load float, ptr %a, align 4
  %i = insertelement <4 x float> poison, float %s, i64 0
  %v = shufflevector <4 x float> %i, <4 x float> poison, <4 x i32> zeroinitializer
  %p = load <4 x float>, ptr %x, align 4
  %q = load <4 x float>, ptr %y, align 4
  %m = fmul <4 x float> %v, %p
  %r = fadd <4 x float> %m, %q
  store <4 x float> %r, ptr %z, align 4
  ret void
}
"""
DOT = """
define internal void @tw.intrin.NAME(ptr %a, i64 %as, ptr %x, ptr %y, i64 %m, i64 %k) alwaysinline {
entry:
  br label %rows
rows:
  %i = phi i64 [ 0, %entry ], [ %i1, %end ]
  %more = icmp slt i64 %i, %m
  br i1 %more, label %row, label %done
row:
  %o = mul i64 %i, %as
  %p = getelementptr float, ptr %a, i64 %o
  br label %sum
sum:
  %j = phi i64 [ 0, %row ], [ %j1, %add ]
  %t = phi float [ 0.0, %row ], [ %t1, %add ]
  %left = icmp slt i64 %j, %k
  br i1 %left, label %add, label %end
add:
  %pp = getelementptr float, ptr %p, i64 %j
  %xp = getelementptr float, ptr %x, i64 %j
  %u = load float, ptr %pp, align 4
  %v = load float, ptr %xp, align 4
  %w = fmul float %u, %v
  %t1 = fadd float %t, %w
  %j1 = add i64 %j, 1
  br label %sum
end:
  %yp = getelementptr float, ptr %y, i64 %i
  store float %t, ptr %yp, align 4
  %i1 = add i64 %i, 1
  br label %rows
done:
  ret void
}
"""
C_DOT = """static void tw_intrin_NAME(const float *a, int64_t row, const float *x, float *y, int64_t m, int64_t k) {
    for (int64_t i = 0; i < m; ++i) {
        y[i] = 0;
        for (int64_t j = 0; j < k; ++j) y[i] += a[i * row + j] * x[j];
    }
}"""


def texts(name: str, llvm: str | None, c: str | None = None) -> dict[str, Any]:
    return {"llvm": llvm and llvm.replace("NAME", name), "c": c and c.replace("NAME", name)}


def check(s: Any, args: list[Any], arrays: list[Any], want: Callable[..., Any], name: str, called: bool) -> None:
    """The built function, the interpreter and the C code agree with NumPy."""
    f = tw.build(s, args)
    assert (f"call void @tw.intrin.{name}" in f.source("llvm")) == called
    expected = want(*arrays[:-1])
    oracle, native = ([np.array(a) for a in arrays] for _ in range(2))
    interpret(te.lower(s, args), oracle)
    f(*native)
    close(oracle[-1], expected)
    close(native[-1], expected)


@pytest.mark.parametrize("called", [True, False])
def test_scalars(called: bool) -> None:
    name = f"test_axpy_{called}"
    a, x, y = (te.placeholder(shape, name=n) for shape, n in (((), "a"), ((4,), "x"), ((4,), "y")))
    te.intrinsic(
        name,
        te.compute((4,), lambda i: a[()] * x[i] + y[i], name="z"),
        [a, x, y],
        **texts(name, AXPY if called else None),
    )
    n, alpha = te.var("n", multiple=4), te.var("alpha", "float32")
    p, q = te.placeholder((n,), name="P"), te.placeholder((n,), name="Q")
    scales = te.placeholder((3,), name="scales")
    numbers = np.random.default_rng(0)
    # A scalar of the call, and an element that stays where it is in the tile.
    one = te.compute((n,), lambda i: p[i] + alpha * q[i], name="one")
    s = te.create_schedule(one)
    s[one].tensorize(s[one].split(one.axis[0], factor=4)[1], name)
    v = numbers.standard_normal(12).astype(np.float32)
    u = numbers.standard_normal(12).astype(np.float32)
    inputs = [np.float32(0.5), u, v, np.empty_like(v)]
    check(s, [alpha, p, q, one], inputs, lambda a, u, v: u + a * v, name, called)
    rows = te.compute((3, n), lambda j, i: p[i] + q[i] * scales[j], name="rows")
    s = te.create_schedule(rows)
    s[rows].tensorize(s[rows].split(rows.axis[1], factor=4)[1], name)
    w = numbers.standard_normal(3).astype(np.float32)
    out = np.empty((3, 12), np.float32)
    check(s, [p, q, scales, rows], [u, v, w, out], lambda u, v, w: u + v * w[:, None], name, called)


@pytest.mark.parametrize("called", [True, False])
def test_symbols_and_a_reduction_of_its_own(called: bool) -> None:
    name = f"test_whole_dot_{called}"
    m, k = te.var("m"), te.var("k")
    a, x = te.placeholder((m, k), name="a"), te.placeholder((k,), name="x")
    r = te.reduce_axis(k, "r")
    meaning = te.compute((m,), lambda i: te.sum(a[i, r] * x[r], axis=r), name="y")
    te.intrinsic(name, meaning, [a, x], reset=True, **texts(name, DOT if called else None))
    n, depth = te.var("n"), te.var("d")
    p, q = te.placeholder((n, 6, depth), name="P"), te.placeholder((n, depth), name="Q")
    d = te.reduce_axis(depth, "d")
    out = te.compute((n, 6), lambda b, i: te.sum(p[b, i, d] * q[b, d], axis=d), name="out")
    numbers = np.random.default_rng(0)
    for factor in (None, 3):
        s = te.create_schedule(out)
        inner = out.axis[1] if factor is None else s[out].split(out.axis[1], factor=factor)[1]
        s[out].tensorize(inner, name)
        for size, length in ((1, 5), (4, 1), (3, 16)):
            u, v = (numbers.standard_normal(shape).astype(np.float32) for shape in ((size, 6, length), (size, length)))
            inputs = [u, v, np.full((size, 6), np.nan, np.float32)]
            check(s, [p, q, out], inputs, lambda u, v: np.einsum("bid,bd->bi", u, v), name, called)


@needs_compiler
def test_c_gets_the_symbols() -> None:
    name = "test_whole_dot_c"
    m, k = te.var("m"), te.var("k")
    a, x = te.placeholder((m, k), name="a"), te.placeholder((k,), name="x")
    r = te.reduce_axis(k, "r")
    te.intrinsic(
        name,
        te.compute((m,), lambda i: te.sum(a[i, r] * x[r], axis=r), name="y"),
        [a, x],
        reset=True,
        **texts(name, None, C_DOT),
    )
    p, q = te.placeholder((6, 5), name="P"), te.placeholder((5,), name="Q")
    d = te.reduce_axis(5, "d")
    out = te.compute((6,), lambda i: te.sum(p[i, d] * q[d], axis=d), name="out")
    s = te.create_schedule(out)
    s[out].tensorize(s[out].split(out.axis[0], factor=3)[1], name)
    f = tw.build(s, [p, q, out])
    assert f"tw_intrin_{name}(&" in f.source("c")
    u, v = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((6, 5), (5,)))
    arrays = [u, v, np.empty(6, np.float32)]
    run_c(f.flat, arrays)
    close(arrays[-1], u @ v)


def test_what_is_refused() -> None:
    k = te.var("k")
    a, x = te.placeholder((2, k), name="a"), te.placeholder((k,), name="x")
    r = te.reduce_axis(k, "r")
    whole = te.compute((2,), lambda i: te.sum(a[i, r] * x[r], axis=r), name="y")
    te.intrinsic("test_dot_anew", whole, [a, x], reset=True)
    te.intrinsic("test_dot_more", whole, [a, x])
    p, q = te.placeholder((4, 6), name="P"), te.placeholder((6,), name="Q")
    d = te.reduce_axis(6, "d")
    out = te.compute((4,), lambda i: te.sum(p[i, d] * q[d], axis=d), name="out")

    def split() -> tuple[Any, Any, Any]:
        s = te.create_schedule(out)
        _, d_0, i_1, _ = s[out].tile(out.axis[0], d, 2, 3)
        return s, d_0, i_1

    s, _, inner = split()
    with pytest.raises(ScheduleError, match="a whole reduction, and"):
        s[out].tensorize(inner, "test_dot_anew")
    s, outer, inner = split()
    s[out].decompose_reduction(outer)
    with pytest.raises(ScheduleError, match="starts anew"):
        s[out].tensorize(inner, "test_dot_anew")
    s[out].tensorize(inner, "test_dot_more")
    n = te.var("n")
    b = te.placeholder((n,), name="b")
    with pytest.raises(ScheduleError, match="symbols that a parameter has"):
        te.intrinsic("test_twice_as_long", te.compute((n * 2,), lambda i: b[i // 2], name="c"), [b])
    # One symbol has one value.
    e = te.placeholder((n, n), name="e")
    te.intrinsic("test_square", te.compute((n, n), lambda i, j: e[i, j] * 2.0, name="f"), [e])
    g = te.placeholder((4, 6), name="g")
    h = te.compute((4, 6), lambda i, j: g[i, j] * 2.0, name="h")
    s = te.create_schedule(h)
    with pytest.raises(ScheduleError, match="does not compute what the intrinsic does"):
        s[h].tensorize(h.axis[0], "test_square")


def test_a_stage_over_slices() -> None:
    x, y = te.placeholder((16,), name="x"), te.placeholder((16,), name="y")
    vadd = te.intrinsic("test_slices_vadd", te.compute((16,), lambda i: x[i] + y[i], name="z"), [x, y])
    n = te.var("n", lo=0)
    a, b = te.placeholder((n, 16), name="A"), te.placeholder((n, 32), name="B")
    c = te.compute((n, 16), lambda i: vadd(a[i, 0:16], b[n - 1 - i, 16:32]), name="C")
    d = te.compute((n, 16), lambda i, j: c[i, j] * 2.0, name="D")
    s = te.create_schedule(d)
    assert "test_slices_vadd(" in str(te.lower(s, [a, b, d]))
    s[c].parallel(c.axis[0])
    f = tw.build(s, [a, b, d], threads=2)
    for size in (0, 1, 5):
        u, v = (np.random.default_rng(k).standard_normal((size, 16 * k)).astype(np.float32) for k in (1, 2))
        out = np.empty_like(u)
        f(u, v, out)
        close(out, 2 * (u + v[::-1, 16:]))


@pytest.mark.parametrize("axis", [lambda r: r, lambda r: [r]])
def test_sums_of_an_intrinsic(axis: Callable[[Any], Any]) -> None:
    """A product of matrices in tiles, of which an intrinsic computes one; the sum over tiles is its stage's."""
    x, y = te.placeholder((4, 8), name="x"), te.placeholder((6, 8), name="y")
    k = te.reduce_axis(8, "k")
    meaning = te.compute((4, 6), lambda i, j: te.sum(x[i, k] * y[j, k], axis=k), name="z")
    gemm = te.intrinsic("test_slices_gemm", meaning, [x, y])
    m, depth = te.var("m"), te.var("depth")
    a, b = te.placeholder((m, depth, 4, 8), name="A"), te.placeholder((3, depth, 6, 8), name="B")
    r = te.reduce_axis(depth, "r")
    c = te.compute((m, 3, 4, 6), lambda i, j: gemm(a[i, r, 0:4, :], b[j, r, 0:6, 0:8], reduce_axis=axis(r)), name="C")
    s = te.create_schedule(c)
    f = tw.build(s, [a, b, c])
    u, v = (
        np.random.default_rng(1).standard_normal(shape).astype(np.float32) for shape in ((2, 5, 4, 8), (3, 5, 6, 8))
    )
    out = np.empty((2, 3, 4, 6), np.float32)
    f(u, v, out)
    close(out, np.einsum("iruk,jrvk->ijuv", u, v))


def test_slices_of_symbolic_extents_and_scalars() -> None:
    w = te.var("w")
    scale, x = te.placeholder((), name="scale"), te.placeholder((w,), name="x")
    row = te.intrinsic("test_slices_scaled", te.compute((w,), lambda i: x[i] * scale[()], name="y"), [scale, x])
    n, m = te.var("n"), te.var("m")
    a, b = te.placeholder((n, m), name="A"), te.placeholder((n,), name="B")
    c = te.compute((n, m), lambda i: row(b[i], a[i, :]), name="C")
    f = tw.build(te.create_schedule(c), [a, b, c])
    for shape in ((1, 1), (3, 5), (4, 33)):
        u, v = (np.random.default_rng(2).standard_normal(d).astype(np.float32) for d in (shape, shape[:1]))
        out = np.empty(shape, np.float32)
        f(u, v, out)
        close(out, u * v[:, None])


WRONG: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "too few": (lambda add, a: add(a[0, 0:16]), "a part of a tensor for each input: expected 2, got 1"),
    "extent": (
        lambda add, a: add(a[0, 0:16], a[0, 0:8]),
        r"no such part of a tensor: expected y: f32\[16\], got f32\[8\]",
    ),
    "rank": (lambda add, a: add(a[0, 0:16], a[0:2, 0:16]), r"got f32\[2, 16\]"),
    "an element": (lambda add, a: add(a[0, 0:16], a[0, 0]), "no such part of a tensor"),
    "a step": (lambda add, a: add(a[0, 0:32:2], a[0, 0:16]), "has no step"),
    "a sum": (lambda add, a: add(a[0, 0:16], a[0, 0:16], reduce_axis=te.reduce_axis(3, "r")), "is no sum"),
    "arithmetic": (lambda add, a: a[0, 0:16] + 1.0, "not an element"),
}


@pytest.mark.parametrize("case", WRONG)
def test_slices_that_do_not_fit(case: str) -> None:
    x, y = te.placeholder((16,), name="x"), te.placeholder((16,), name="y")
    vadd = te.intrinsic("test_slices_vadd", te.compute((16,), lambda i: x[i] + y[i], name="z"), [x, y])
    a = te.placeholder((4, 32), name="A")
    call, message = WRONG[case]
    with pytest.raises(ExpressionError, match=message):
        te.compute((4, 16), lambda i: call(vadd, a), name="C")
    with pytest.raises(ExpressionError, match="has another shape"):
        te.compute((4, 17), lambda i: vadd(a[i, 0:16], a[i, 16:32]), name="C")
    with pytest.raises(ExpressionError, match="has 2 dimensions, its function takes 1 arguments"):
        te.compute((4, 16), lambda i: 1.0, name="C")
