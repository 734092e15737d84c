"""`tw.build`: what is scheduled is what runs, for any size; what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.builder import BuiltFunction
from tilewright.support.errors import CallError, CompileError, TargetError


def matmul(m: object, n: object, k: object) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), name="r")
    return a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")


def check_matmul(f: BuiltFunction, m: int, n: int, k: int) -> None:
    source = np.random.default_rng(m)
    a, b = source.standard_normal((m, k), np.float32), source.standard_normal((k, n), np.float32)
    c = np.full((m, n), np.nan, np.float32)
    f(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_scheduled_matmul_with_symbolic_sizes(threads: int) -> None:
    a, b, c = matmul(te.var("m"), te.var("n"), te.var("k"))
    s = te.create_schedule(c)
    xo, yo, xi, yi = s[c].tile(c.axis[0], c.axis[1], 4, 16)
    s[c].reorder(xo, yo, c.reduce_axis[0], xi, yi)
    s[c].vectorize(yi)
    s[c].parallel(xo)
    f = tw.build(s, [a, b, c], threads=threads)
    for m, n, k in [(8, 32, 5), (7, 19, 11), (1, 1, 1), (33, 65, 17)]:
        check_matmul(f, m, n, k)


def test_arguments_in_another_order() -> None:
    a, b, c = matmul(3, 4, 5)
    f = tw.build(te.create_schedule(c), [c, b, a])
    x, y, z = (np.ones(shape, np.float32) for shape in ((3, 5), (5, 4), (3, 4)))
    f(z, y, x)
    assert (z == 5).all()


def test_intermediate_of_symbolic_size_gets_its_memory() -> None:
    n = te.var("n")
    a = te.placeholder((n, 8), name="A")
    b = te.compute((n, 8), lambda i, j: a[i, j] * 2.0, name="B")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((n,), lambda i: te.sum(b[i, k], axis=k), name="C")
    s = te.create_schedule(c)
    f = tw.build(s, [a, c])
    for size in (1, 3, 100):
        x = np.random.default_rng(size).standard_normal((size, 8), np.float32)
        y = np.empty(size, np.float32)
        f(x, y)
        np.testing.assert_allclose(y, 2 * x.sum(1), rtol=1e-4, atol=1e-5)


def test_dimensions_that_are_expressions_are_checked() -> None:
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    d = te.compute((n - 2,), lambda i: a[i] + a[i + 1] + a[i + 2], name="D")
    f = tw.build(te.create_schedule(d), [a, d])
    x, y = np.arange(20, dtype=np.float32), np.zeros(18, np.float32)
    f(x, y)
    np.testing.assert_array_equal(y, x[:-2] + x[1:-1] + x[2:])
    with pytest.raises(CallError, match=r"'D': wrong shape: expected \(18,\), got \(19,\)"):
        f(x, np.zeros(19, np.float32))
    with pytest.raises(CallError):
        f(x)
    with pytest.raises(CallError):
        f(x, np.zeros((18, 1), np.float32))


def test_function_named_like_a_function_of_the_c_library() -> None:
    a = te.placeholder((4,), name="A")
    b = te.compute((4,), lambda i: te.exp(a[i]), name="B")
    f = tw.build(te.create_schedule(b), [a, b], name="expf")
    y = np.empty(4, np.float32)
    f(np.ones(4, np.float32), y)
    np.testing.assert_allclose(y, np.exp(1), rtol=1e-6)


def test_sources() -> None:
    a, b, c = matmul(2, 3, 4)
    f = tw.build(te.create_schedule(c), [a, b, c], name="gemm")
    signs = {"schedule": "block C", "loops": "func @gemm", "c": "void gemm(", "llvm": "define", "asm": "gemm"}
    for what, sign in signs.items():
        assert sign in f.source(what)
    assert repr(f).startswith("<gemm(A: f32[2, 4], B: f32[4, 3], C: f32[2, 3]), ")
    with pytest.raises(CallError, match="no source 'fortran'"):
        f.source("fortran")


@pytest.mark.parametrize("target", ["c", "neoverse-n1", "x86-64"])
def test_text_for_other_targets_is_not_called(target: str) -> None:
    a, b, c = matmul(2, 3, 4)
    f = tw.build(te.create_schedule(c), [a, b, c], target=target)
    assert f.source("asm")
    with pytest.raises(TargetError, match='target="host"'):
        f(1, 2, 3)


def test_what_does_not_fit_is_refused() -> None:
    a, b, c = matmul(2, 3, 4)
    s = te.create_schedule(c)
    with pytest.raises(CompileError, match="order of the arguments"):
        tw.build(s)
    with pytest.raises(CompileError, match="has its arguments already"):
        tw.build(te.lower(s, [a, b, c]), [a, b, c])
    with pytest.raises(TargetError, match="no such target"):
        tw.build(s, [a, b, c], target="abacus")
    f = tw.build(s.schedule)
    with pytest.raises(CallError, match="'B'"):
        f(np.ones((2, 4), np.float32), np.ones((4, 4), np.float32), np.ones((2, 3), np.float32))
