"""Reduction axes: with a start, with an end that moves with the stage's axes, and those over which no stage reduces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.schedule.guard import guarded
from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.support.errors import ExpressionError


def run(stage: Any, arrays: dict[te.Tensor, Any], shape: tuple[int, ...], schedule: Any = None) -> Any:
    """The result of a stage for arrays."""
    out = np.full(shape, np.nan, np.float32)
    s = schedule or te.create_schedule(stage)
    tw.build(s, [*arrays, stage])(*arrays.values(), out)
    return out


def numbers(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


def triangle(n: Any) -> tuple[te.Tensor, te.Tensor]:
    """The sum of each row up to the diagonal."""
    a = te.placeholder((n, n), name="A")

    def row(i: Any) -> Any:
        k = te.reduce_axis(i + 1, "k")
        return te.sum(a[i, k], axis=k)

    return a, te.compute((n,), row, name="T")


@pytest.mark.parametrize("size", [1, 2, 7, 16])
@pytest.mark.parametrize("symbolic", [False, True])
def test_triangle(size: int, symbolic: bool) -> None:
    a, t = triangle(te.var("n") if symbolic else size)
    x = numbers(size, size)
    np.testing.assert_allclose(run(t, {a: x}, (size,)), np.tril(x).sum(1), rtol=1e-5, atol=1e-5)


def test_triangle_scheduled() -> None:
    a, t = triangle(13)
    x = numbers(13, 13)
    s = te.create_schedule(t)
    outer, inner = s[t].split(t.axis[0], factor=4)
    k_0, k_1 = s[t].split(t.reduce_axis[0], factor=4)
    s[t].reorder(outer, k_0, inner, k_1)
    s[t].vectorize(k_1)
    s[t].parallel(outer)
    np.testing.assert_allclose(run(t, {a: x}, (13,), s), np.tril(x).sum(1), rtol=1e-5, atol=1e-5)


def test_ends_that_use_each_other() -> None:
    """The sum of A over 0 <= i <= j <= r, in one stage with two reduction axes."""
    a = te.placeholder((6, 6), name="A")

    def total(r: Any) -> Any:
        j = te.reduce_axis(r + 1, "j")
        i = te.reduce_axis(j + 1, "i")
        return te.sum(a[i, j], axis=[j, i])

    t, x = te.compute((6,), total, name="T"), numbers(6, 6)
    meant = [np.triu(x)[: r + 1, : r + 1].sum() for r in range(6)]
    np.testing.assert_allclose(run(t, {a: x}, (6,)), meant, rtol=1e-5, atol=1e-5)


def test_starts() -> None:
    n = te.var("n", lo=3)
    a = te.placeholder((n,), name="A")
    fixed = te.reduce_axis((2, n), "k")
    s = te.compute((1,), lambda i: te.sum(a[fixed], axis=fixed), name="S")
    x = numbers(9)
    np.testing.assert_allclose(run(s, {a: x}, (1,)), [x[2:].sum()], rtol=1e-5)

    def tail(i: Any) -> Any:
        k = te.reduce_axis((i, n), "k")
        return te.max(a[k], axis=k)

    t = te.compute((n,), tail, name="T")
    np.testing.assert_array_equal(run(t, {a: x}, (9,)), np.maximum.accumulate(x[::-1])[::-1])


def test_empty_ranges() -> None:
    a = te.placeholder((4,), name="A")

    def none(i: Any) -> Any:
        k = te.reduce_axis((4, i), "k")
        return te.sum(a[k], axis=k)

    np.testing.assert_array_equal(run(te.compute((4,), none, name="S"), {a: numbers(4)}, (4,)), np.zeros(4))


REDUCERS = {"sum": te.sum, "prod": te.prod, "max": te.max, "largest": te.largest, "min": te.min}
START = {"sum": 0, "prod": 1, "max": -np.inf, "largest": -np.inf, "min": np.inf}


def fused(s: Any, stage: Any) -> None:
    """One loop drives what stays and what is reduced, so that nothing can stand in front of it."""
    s[stage].fuse(stage.axis[0], stage.reduce_axis[0])


def in_pieces(s: Any, stage: Any) -> None:
    outer, inner = s[stage].split(stage.reduce_axis[0], factor=4)
    s[stage].reorder(outer, stage.axis[0], inner)


@pytest.mark.daily(5)
@pytest.mark.parametrize("schedule", [None, fused, in_pieces])
@pytest.mark.parametrize("extents", [(0,), (0, 3), (3, 0)])
@pytest.mark.parametrize("name", REDUCERS)
def test_over_nothing_is_the_identity(name: str, extents: tuple[int, ...], schedule: Any) -> None:
    a = te.placeholder((5, *extents), name="A")
    axes = [te.reduce_axis(n, f"k{j}") for j, n in enumerate(extents)]
    stage = te.compute((5,), lambda i: REDUCERS[name](a[(i, *axes)], axis=axes, where=axes[0] < i), name="S")
    s = te.create_schedule(stage)
    if schedule is not None:
        schedule(s, stage)
    x, want = np.zeros((5, *extents), np.float32), np.full(5, START[name], np.float32)
    np.testing.assert_array_equal(run(stage, {a: x}, (5,), s), want)
    out = np.full(5, np.nan, np.float32)
    interpret(te.lower(s, [a, stage]), [x, out])
    np.testing.assert_array_equal(out, want)


def test_several_values_over_nothing() -> None:
    """The place of the largest, by a user's reducer."""
    larger = te.comm_reducer(
        lambda p, q: (te.maximum(p[0], q[0]), te.if_then_else(p[0] >= q[0], p[1], q[1])),
        lambda t, u: (te.const(t.min, t), te.const(-1, u)),
        "argmax",
    )
    a, k = te.placeholder((4, 0), name="A"), te.reduce_axis(0, "k")
    best, at = te.compute((4,), lambda i: larger((a[i, k], k + 0), axis=k), name="S")
    x = np.zeros((4, 0), np.float32)
    result = np.full(4, np.nan, np.float32), np.full(4, 7)
    interpret(te.lower(te.create_schedule([best, at]), [a, best, at]), [x, *result])
    native = np.full(4, np.nan, np.float32), np.full(4, 7)
    tw.build(te.create_schedule([best, at]), [a, best, at])(x, *native)
    for values, places in (result, native):
        assert values.tolist() == [-np.inf] * 4 and places.tolist() == [-1] * 4


def _of(body: Callable[..., Any]) -> Callable[[], Any]:
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8,), "int64", name="B")
    return lambda: te.compute((8,), lambda i: body(a, b, i), name="S")


K, OTHER = te.reduce_axis(8, "k"), te.compute((8,), lambda q: te.cast(q, "float32"), name="Q")
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "no reducer": (lambda a, b, i: a[i, K], "S: 'k' is no axis of this stage and is not reduced over"),
    "another stage's": (lambda a, b, i: a[i, OTHER.axis[0]], "'q' is no axis of this stage"),
    "one of two": (lambda a, b, i: te.sum(a[K, te.reduce_axis(8, "l")], axis=K), "'l' is no axis"),
    "in the condition": (lambda a, b, i: te.sum(a[i, K], axis=K, where=te.reduce_axis(8, "w") < i), "'w' is no axis"),
    "data": (lambda a, b, i: te.sum(a[i, k := te.reduce_axis(b[i], "k")], axis=k), "has no bound"),
    "inside": (lambda a, b, i: te.sum(a[i, K], axis=K) + 1.0, "a reduction must be the whole body"),
    "a stage's axis": (lambda a, b, i: te.sum(a[i, i], axis=i), "sum: not a reduction axis"),
    "twice": (lambda a, b, i: te.sum(a[i, K], axis=[K, K]), "needs different reduction axes"),
    "no condition": (lambda a, b, i: te.sum(a[i, K], axis=K, where=a[i, K]), "where= is no condition"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_line(case: str) -> None:
    body, message = REFUSED[case]
    with pytest.raises(ExpressionError, match=message) as caught:
        _of(body)()
    assert Path(__file__).name in (caught.value.where or "")


def test_a_reducer_must_keep_the_type() -> None:
    a = te.placeholder((8,), name="A")
    wrong = te.comm_reducer(lambda x, y: te.cast(x, "float64"), lambda t: te.const(0, t), "wrong")
    with pytest.raises(ExpressionError, match="reducer 'wrong' gives another type: expected f32, got f64"):
        te.compute((1,), lambda i: wrong(a[K], K))


def chosen(n: int) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """The sum of a row's elements where another array says so."""
    a, w, k = te.placeholder((3, n), name="A"), te.placeholder((n,), name="W"), te.reduce_axis(n, "k")
    return a, w, te.compute((3,), lambda i: te.sum(a[i, k], axis=k, where=w[k] > 0), name="S")


def _split(s: Any, stage: Any) -> tuple[Any, Any]:
    return s[stage].split(stage.reduce_axis[0], factor=4)  # type: ignore[no-any-return]


TAILS: dict[str, Callable[[Any, Any], Any]] = {
    "split": _split,
    "vectorized": lambda s, t: s[t].vectorize(_split(s, t)[1]),
    "unrolled": lambda s, t: s[t].unroll(_split(s, t)[1]),
    "fused": lambda s, t: s[t].fuse(t.axis[0], _split(s, t)[0]),
    "rfactor inner": lambda s, t: s[t].rfactor(_split(s, t)[1]),
    "rfactor outer": lambda s, t: s[t].rfactor(_split(s, t)[0]),
    "rfactor vectorized": lambda s, t: s[s[t].rfactor(_split(s, t)[1]).name].vectorize("k_1"),
    "decomposed": lambda s, t: s[t].decompose_reduction(_split(s, t)[0]),
}


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("size", [5, 7, 13])
@pytest.mark.parametrize("tail", TAILS)
def test_a_condition_reads_only_where_the_loops_are_inside(tail: str, size: int) -> None:
    """`where=` reads an array: after its end nothing is read, by native code and by the interpreter."""
    a, w, t = chosen(size)
    s = te.create_schedule(t)
    TAILS[tail](s, t)
    x, y = numbers(3, size), guarded(numbers(size))
    f = tw.build(s, [a, w, t])
    assert not any("bounds" in remark for remark in f.log.remarks)
    wanted = (x * (y > 0)).sum(1)
    for way in (f, tw.build(s, [a, w, t], bounds="check"), lambda *arrays: interpret(f.func, arrays)):
        out = np.full(3, np.nan, np.float32)
        way(guarded(x), y, out)
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


def test_a_formula_reads_what_a_body_may() -> None:
    """A scalar, an axis, a reduction axis and tensors beside the values that it combines; its identity too."""
    a, t = te.placeholder((4, 8), name="A"), te.placeholder((8,), name="T")
    by, start = te.var("by", "float32", lo=None), te.var("start", "float32", lo=None)

    def body(i: Any) -> Any:
        k = te.reduce_axis(8, "k")
        weighted = te.comm_reducer(
            lambda x, y: x + y * by * t[k] + te.cast(i, "float32") * te.cast(k, "float32"),
            lambda kind: start,
            "weighted",
        )
        return weighted(a[i, k], axis=k)

    b = te.compute((4,), body, name="B")
    x, w = np.arange(32, dtype=np.float32).reshape(4, 8) / 8, np.arange(8, dtype=np.float32) - 3
    wanted = 0.5 + (x * 2 * w).sum(1) + np.arange(4) * np.arange(8).sum()
    for bounds in (None, "check"):
        y = np.zeros(4, np.float32)
        tw.build(te.create_schedule(b), [a, t, by, start, b], bounds=bounds)(x, w, 2.0, 0.5, y)
        np.testing.assert_allclose(y, wanted, rtol=1e-5)


def test_a_formula_is_checked_like_a_body() -> None:
    a, t = te.placeholder((4, 8), name="A"), te.placeholder((8,), name="T")
    other = te.reduce_axis(3, "other")

    def stage(formula: Any, identity: Any) -> te.Tensor:
        k = te.reduce_axis(8, "k")
        reducer = te.comm_reducer(lambda x, y: formula(x, y, k), lambda kind: identity(k), "mine")
        return te.compute((4,), lambda i: reducer(a[i, k], axis=k), name="B")

    zero = lambda k: te.const(0.0, "float32")  # noqa: E731
    with pytest.raises(ExpressionError, match="'other' is no axis of this stage") as caught:
        stage(lambda x, y, k: x + y * t[other + 0], zero)
    assert "test_reductions.py:" in (caught.value.where or "")
    with pytest.raises(ExpressionError, match="the identity of a reduction reads 'k'"):
        stage(lambda x, y, k: x + y, lambda k: t[k])
    with pytest.raises(ExpressionError, match="is out of bounds"):
        te.create_schedule(stage(lambda x, y, k: x + y * t[k + 1], zero))
