"""Reads out of bounds: refused where they are sure, and where data decides; compared with the sizes of each call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.ir.expr import Var
from tilewright.ir.parser import parse_func
from tilewright.support.errors import CallError, CompileError, ExpressionError
from tilewright.transform.loops.checked import unproven

N = te.var("n")


def stage(extent: Any, shape: Any, body: Callable[..., Any]) -> tuple[te.Tensor, te.Tensor]:
    a = te.placeholder(shape, name="A")
    return a, te.compute((extent,), lambda i: body(a, i), name="B")


SURE: dict[str, tuple[Any, Any, Callable[..., Any], str]] = {
    "after": (64, (64,), lambda a, i: a[i + 1], r"A\[i \+ 1\] is out of bounds: expected .* 0..64 .* got 1 to 64"),
    "before": (64, (64,), lambda a, i: a[i - 1], "got -1 to 62"),
    "far": (64, (64,), lambda a, i: a[i + (1 << 30)], "got 1073741824 to 1073741887"),
    "symbolic": (N, (N,), lambda a, i: a[i + 1], "expected an index in 0..n in dimension 0, got 1 to n"),
    "backwards": (N, (N,), lambda a, i: a[N - i], "got 1 to n"),
    "second": (8, (8, 4), lambda a, i: a[i, i], "expected an index in 0..4 in dimension 1, got 0 to 7"),
    "scaled": (8, (8,), lambda a, i: a[i * 2], "got 0 to 14"),
    "constant": (8, (8,), lambda a, i: a[8], "got 8 to 8"),
    "behind a number from memory": (
        8,
        (8, 4),
        lambda a, i: a[te.cast(a[i, 0], "i64"), i],
        "in dimension 1, got 0 to 7",
    ),
    "reduced": (
        8,
        (12,),
        lambda a, i: te.sum(a[i + (k := te.reduce_axis(6, "k"))], axis=k),
        "got 0 to 12",
    ),
}


@pytest.mark.parametrize("case", SURE)
def test_what_is_sure_is_an_error(case: str) -> None:
    extent, shape, body, message = SURE[case]
    _, b = stage(extent, shape, body)
    with pytest.raises(ExpressionError, match=message) as caught:
        te.create_schedule(b)
    assert f"{Path(__file__).name}:" in (caught.value.where or "")
    assert "te.if_then_else" in str(caught.value)


PROVEN: dict[str, tuple[Any, Any, Callable[..., Any]]] = {
    "same": (N, (N,), lambda a, i: a[i]),
    "reversed": (N, (N,), lambda a, i: a[N - 1 - i]),
    "guarded": (N, (N,), lambda a, i: te.if_then_else(i > 0, a[i - 1], 0.0)),
    "both sides": (64, (64,), lambda a, i: te.if_then_else((i >= 3) & (i < 60), a[i + 4], a[0])),
    "wrapped": (64, (64,), lambda a, i: a[(i + 5) % 64]),
    "divided": (64, (32,), lambda a, i: a[i // 2]),
    "triangle": (8, (8,), lambda a, i: te.sum(a[(k := te.reduce_axis((0, i + 1), "k"))], axis=k)),
    "window": (N, (N + 2,), lambda a, i: te.max(a[i + (k := te.reduce_axis(3, "k"))], axis=k)),
}


@pytest.mark.parametrize("case", PROVEN)
def test_what_is_proven_is_neither_noted_nor_checked(case: str) -> None:
    a, b = stage(*PROVEN[case])
    s = te.create_schedule(b)
    assert tw.build(s, [a, b]).log.remarks == []
    assert "bounds[" not in tw.build(s, [a, b], bounds="check", target="c").source("c")


def gather() -> tuple[te.Tensor, te.Tensor, Var, te.Tensor]:
    a, at = te.placeholder((N,), name="A"), te.placeholder((te.var("m"),), "int32", name="I")
    shift = te.var("shift", lo=None)
    b = te.compute(at.shape, lambda i: te.if_then_else(at[i] != 99, a[at[i]], a[i + shift]), name="B")
    return a, at, shift, b


@pytest.mark.parametrize("scheduled", [False, True])
def test_checked_calls(scheduled: bool) -> None:
    a, at, shift, b = gather()
    s = te.create_schedule(b)
    if scheduled:
        outer, inner = s[b].split(b.axis[0], 8)
        s[b].vectorize(inner)
        s[b].parallel(outer)
    f = tw.build(s, [a, at, shift, b], bounds="check", threads=2)
    x, y = np.arange(10, dtype=np.float32), np.zeros(9, np.float32)
    index = np.array([9, 8, 7, 99, 5, 4, 3, 2, 0], np.int32)
    f(x, index, 1, y)
    assert y.tolist() == [9, 8, 7, 4, 5, 4, 3, 2, 0]
    for wrong, by, got in (([10], 0, 10), ([-1], 0, -1), ([99], 11, 11), ([99], -1, -1), ([99], 1 << 62, 1 << 62)):
        y[:] = 7
        with pytest.raises(CallError, match=f"'B' reads 'A' out of bounds: expected .* 0..10 .*, got {got} ") as caught:
            f(x, np.array(wrong, np.int32), by, y[:1])
        assert Path(__file__).name in (caught.value.where or "") and y.tolist() == [7] * 9
    f(x, index, 1, y)  # and goes on


def test_what_is_not_proven_is_noted() -> None:
    a, at, shift, b = gather()
    f = tw.build(te.create_schedule(b), [a, at, shift, b], unchecked=True)
    assert f.log.remarks == [
        "not proven to be in bounds: B reads A at i64(I[vi]) in dimension 0, which has n",
        "not proven to be in bounds: B reads A at vi + shift[] in dimension 0, which has n",
    ]


@pytest.mark.parametrize(("reducer", "said"), [(te.sum, True), (te.max, False)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_vectors_that_change_the_order_of_a_sum_say_so(reducer: Any, said: bool, dtype: str) -> None:
    a, k = te.placeholder((4, 64), dtype, name="A"), te.reduce_axis(64, "k")
    b = te.compute((4,), lambda i: reducer(a[i, k], axis=k), name="B")
    s = te.create_schedule(b)
    assert tw.build(s, [a, b]).log.remarks == []
    _, inner = s[b].split(k, factor=8)
    s[b].vectorize(inner)
    remarks = tw.build(s, [a, b]).log.remarks
    order = ["another order, whose rounding differs" in r and "block 'B' in 8 partial" in r for r in remarks]
    assert order == ([True] if said and dtype == "float32" else [])


def test_reductions_and_indices_of_indices() -> None:
    """The index that leads outside may itself be read from outside: nothing outside is touched."""
    at = te.placeholder((8,), "int64", name="I")
    a = te.placeholder((4,), name="A")
    k = te.reduce_axis(8, "k")
    b = te.compute((2,), lambda i: te.sum(a[at[at[k] + i]], axis=k), name="B")
    f = tw.build(te.create_schedule(b), [a, at, b], bounds="check")
    x, y = np.array([1, 10, 100, 1000], np.float32), np.zeros(2, np.float32)
    index = np.array([0, 1, 2, 3, 0, 1, 2, 3], np.int64)
    f(x, index, y)
    assert y.tolist() == [x[index[index]].sum(), x[index[index + 1]].sum()]
    for bad, buffer in ((8, "'I'"), (1 << 40, "'I'"), (-1, "'I'")):
        index[5] = bad
        with pytest.raises(CallError, match=f"reads {buffer} out of bounds: .*0..8"):
            f(x, index, y)
    index[:] = [7, 7, 7, 7, 7, 7, 6, 4]
    with pytest.raises(CallError, match=r"reads 'A' out of bounds: .*0..4 in dimension 0, got 4"):
        f(x, index, y)


def test_arguments() -> None:
    a, b = stage(N, (N,), lambda a, i: a[i])
    s = te.create_schedule(b)
    f = tw.build(s, [a, b], bounds="check")
    with pytest.raises(CallError, match="wrong number of arguments: expected A, B, got 1"):
        f(np.zeros(3, np.float32))
    with pytest.raises(CompileError, match="no such treatment of bounds"):
        tw.build(s, [a, b], bounds="maybe")  # type: ignore[arg-type]


def test_what_holds_where_a_branch_is_selected() -> None:
    """The conditions of a branch hold in it, and their opposites where it is not taken."""
    func = parse_func(
        """func @f(a: f32[8], b: f32[8]) {
          for i in 0..9 {
            block B (vi = spatial(9): i) {
              if vi < 8 { b[vi] = a[vi] }
              if vi > 7 { b[vi - 8] = 0.0 } else { b[vi] = a[vi] }
              if vi > 6 { b[vi] = 1.0 }
            }
          }
        }"""
    )
    assert [(a.buffer, str(a.index), a.writes) for a in unproven(func)] == [("b", "vi", True)]


M = te.var("m")
NUMBER = te.var("number", lo=None)

SIZES: dict[str, tuple[Any, Callable[..., Any], list[tuple[int, int, int]], list[tuple[int, int, int, str]]]] = {
    "prefix": (M, lambda a, i: a[i], [(4, 4, 0), (4, 1, 0)], [(4, 5, 0, "needs m <= n, got 0 to 4")]),
    "scaled": (M, lambda a, i: a[2 * i + 1], [(4, 2, 0)], [(4, 3, 0, r"needs m \* 2 <= n, got 1 to 5")]),
    "shifted": (
        M,
        lambda a, i: a[i + NUMBER],
        [(4, 3, 1), (4, 4, 0)],
        [(4, 3, 2, "got 2 to 4"), (4, 3, -1, "got -1 to 1"), (4, 1, 1 << 62, f"got {1 << 62} to {1 << 62}")],
    ),
    "remainder": (
        M,
        lambda a, i: a[i % NUMBER],
        [(4, 9, 0), (4, 9, 4), (4, 3, 9)],
        [(4, 9, 5, "got 4 "), (4, 9, -2, "got -1 ")],
    ),
    "quotient": (
        M,
        lambda a, i: a[i // NUMBER],
        [(4, 9, 0), (4, 8, 2)],
        [(4, 9, 2, "got 4 "), (4, 9, -1, "got -8 to 0")],
    ),
    "by turns": (M, lambda a, i: te.if_then_else(i % 2 == 0, a[i], 0.0), [(4, 5, 0)][:0], [(4, 5, 0, "got 4 ")]),
    "reduced": (
        M,
        lambda a, i: te.sum(a[(k := te.reduce_axis(M, "k"))], axis=k),
        [(4, 4, 0)],
        [(4, 5, 0, "needs m <= n, got 0 to 4")],
    ),
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("case", SIZES)
def test_sizes_are_compared_in_each_call(case: str, scheduled: bool) -> None:
    extent, body, inside, outside = SIZES[case]
    a, b = stage(extent, (N,), body)
    s = te.create_schedule(b)
    if scheduled:
        outer, inner = s[b].split(b.axis[0], 8)
        s[b].vectorize(inner)
        s[b].parallel(outer)
    f = tw.build(s, [a, NUMBER, b], threads=2)
    slow = tw.build(s, [a, NUMBER, b], bounds="check")
    for n, m, number in inside:
        x, y, z = np.arange(n, dtype=np.float32), np.full(m, -1, np.float32), np.zeros(m, np.float32)
        f(x, number, y)
        slow(x, number, z)
        assert y.tolist() == z.tolist() and (y >= 0).all()
    for n, m, number, message in outside:
        with pytest.raises(CallError, match=f"'B' reads 'A' out of bounds: expected .* 0..{n} .*{message}") as caught:
            f(np.arange(n, dtype=np.float32), number, np.zeros(m, np.float32))
        assert Path(__file__).name in (caught.value.where or "")


def test_a_condition_that_no_size_tells_is_looked_at() -> None:
    """Only where it holds is anything read: the call is refused if one of these reads is outside."""
    limit = te.placeholder((M,), "int32", name="L")
    a, b = stage(M, (N,), lambda a, i: te.if_then_else(limit[i] > 0, a[i], -1.0))
    f = tw.build(te.create_schedule(b), [a, limit, b])
    y = np.zeros(6, np.float32)
    f(np.arange(4, dtype=np.float32), np.array([1, 0, 1, 1, 0, 0], np.int32), y)
    assert y.tolist() == [0, -1, 2, 3, -1, -1]
    with pytest.raises(CallError, match=r"0\.\.4 in dimension 0, got 5"):
        f(np.arange(4, dtype=np.float32), np.array([1, 0, 1, 1, 0, 1], np.int32), y)


def test_what_data_decides_is_refused() -> None:
    a, at, shift, b = gather()
    with pytest.raises(
        CompileError, match=r"'B' reads 'A' at an index that data decides: expected .*0..n .*I\[vi\]"
    ) as e:
        tw.build(te.create_schedule(b), [a, at, shift, b])
    assert "unchecked=True" in str(e.value) and Path(__file__).name in (e.value.where or "")
    with pytest.raises(CompileError, match="not both"):
        tw.build(te.create_schedule(b), [a, at, shift, b], bounds="check", unchecked=True)
    clamped = te.compute(at.shape, lambda i: a[te.minimum(te.maximum(te.cast(at[i], "int64"), 0), N - 1)], name="C")
    f, y = tw.build(te.create_schedule(clamped), [a, at, clamped]), np.zeros(3, np.float32)
    f(np.arange(4, dtype=np.float32), np.array([-9, 2, 9], np.int32), y)
    assert f.log.remarks == [] and y.tolist() == [0, 2, 3]


def test_an_index_of_a_narrow_type_is_bounded_by_it() -> None:
    at = te.placeholder((M,), "uint8", name="I")
    a, b = stage(M, (N,), lambda a, i: a[at[i]])
    f, y = tw.build(te.create_schedule(b), [a, at, b]), np.zeros(2, np.float32)
    f(np.arange(256, dtype=np.float32), np.array([3, 255], np.uint8), y)
    assert y.tolist() == [3, 255]
    f(np.arange(4, dtype=np.float32), np.array([3, 0], np.uint8), y)
    assert y.tolist() == [3, 0]
    with pytest.raises(CallError, match=r"0\.\.4 in dimension 0, got 4"):
        f(np.arange(4, dtype=np.float32), np.array([3, 4], np.uint8), y)


def test_an_intermediate_is_read_only_where_it_is_needed() -> None:
    """A read beyond the end, if all of a stage were computed, is no fault of a call that needs less."""
    a = te.placeholder((N,), name="A")
    b = te.compute((M,), lambda i: a[i] * 2, name="B")
    p = te.placeholder((M,), name="P")
    c = te.compute((4,), lambda i: te.if_then_else(i < M, b[i] + p[i], 0.0), name="C")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], c.axis[0])
    f, y = tw.build(s, [a, p, c]), np.zeros(4, np.float32)
    f(np.arange(4, dtype=np.float32), np.zeros(9, np.float32), y)
    assert y.tolist() == [0, 2, 4, 6]
    with pytest.raises(CallError, match=r"0\.\.2 in dimension 0, got 2"):
        f(np.arange(2, dtype=np.float32), np.zeros(4, np.float32), y)


def test_loops_without_blocks() -> None:
    func = parse_func("func @f(a: f32[n], b: f32[m]) { for i in 0..m { b[i] = a[i] } }")
    f, y = tw.build(func), np.zeros(3, np.float32)
    f(np.arange(3, dtype=np.float32), y)
    assert y.tolist() == [0, 1, 2]
    with pytest.raises(CallError, match="needs m <= n"):
        f(np.arange(2, dtype=np.float32), y)
