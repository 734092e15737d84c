"""Errors of tensor expressions, schedules and builds: of one hierarchy, with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.support.errors import CallError, ExpressionError, ScheduleError

A = te.placeholder((8,), name="A")
N = te.var("n")


def beyond(i: Any) -> Any:
    return A[i + 1]


def test_a_line_is_that_of_the_function() -> None:
    """Not that of who passes it on."""
    with pytest.raises(ExpressionError) as caught:
        te.create_schedule(te.compute((8,), beyond, name="B"))
    assert caught.value.where is not None
    assert caught.value.where.endswith(f"{Path(__file__).name}:{beyond.__code__.co_firstlineno}")


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "types": (lambda: te.compute((8,), lambda i: A[i] * i), r'hint: .* write te.cast\(i, "f32"\)'),
    "a fraction": (lambda: te.compute((8,), lambda i: i + 0.5), "add of i64 and 0.5: .*\nhint: write te.cast"),
    "indices": (lambda: te.compute((8,), lambda i: A[i, i]), "A has 1 dimensions, indexed with 2"),
    "index of floats": (lambda: te.compute((8,), lambda i: A[A[i]]), r"A\[i\] is no index: it is f32"),
    "slice": (lambda: te.compute((8,), lambda i: A[i, :]), "expected a scalar expression or a number, got Slices"),
    "tensor": (lambda: A + 1, r"'A' is a tensor, not an element\nhint: write A\[...\]"),
    "compared tensor": (lambda: A == 1, "'A' is a tensor, not an element"),
    "tensor as body": (lambda: te.compute((8,), lambda i: A), "got Tensor 'A', which has elements"),
    "nothing": (lambda: te.compute((8,), lambda i: None), "got NoneType"),
    "no element": (lambda: te.compute((8,), lambda i: ()), "gives no element"),
    "arguments": (lambda: te.compute((8, 8), lambda i: A[i]), "has 2 dimensions, its function takes 1 arguments"),
    "extent": (lambda: te.placeholder((-1,)), r"not an extent: expected an i64 from 0 to 2\*\*40, got -1"),
    "extent's type": (lambda: te.placeholder((te.var("n", "int32"),)), r"got n \(i32\)"),
    "start's type": (lambda: te.reduce_axis((0.5, 4), "k"), "reduce_axis k: not a start: expected an i64, got 0.5"),
    "shape": (lambda: te.placeholder("abc"), "expected a sequence of extents, got str"),
    "dtype": (lambda: te.placeholder((8,), "float33"), "no such element type: 'float33'"),
    "condition": (lambda: te.compute((8,), lambda i: te.if_then_else(A[i], 1.0, 0.0)), "is no condition"),
    "branches": (lambda: te.compute((8,), lambda i: te.if_then_else(i > 0, A[i], i)), "types do not agree"),
    "number": (lambda: te.compute((8,), lambda i: float(A[i])), r"A\[i\] is no number"),
    "range": (lambda: te.compute((8,), lambda i: sum(range(i))), "is no number"),
    "integer power": (lambda: te.compute((8,), lambda i: i**2), "pow is not defined on i64"),
    "constant array": (lambda: te.const_matrix([]), "needs elements"),
    "indices of constants": (lambda: te.const_matrix([1.0])[0, 0], "has 1 dimensions, indexed with 2"),
    "missing input": (lambda: tw.build(te.create_schedule(plus(A)), []), "not among the arguments: A, B"),
    "missing tensor": (lambda: te.create_prim_func([plus(A)]), "read but not among the arguments: A"),
    "twice": (lambda: tw.build(te.create_schedule(b := plus(A)), [A, A, b]), "argument 'A' stands twice"),
    "no argument": (lambda: tw.build(te.create_schedule(b := plus(A)), [A, b, 3]), "expected a tensor or a te.var"),
    "a dimension": (
        lambda: tw.build(te.create_schedule(b := plus(te.placeholder((N,), name="A"))), [N, b]),
        "'n' is a dimension, which is read off the arrays",
    ),
    "a symbol of nobody": (
        lambda: te.create_prim_func([A, te.compute((8,), lambda i: A[i] + te.cast(N, "float32"), name="B")]),
        "'n', which 'B' uses, is no dimension of an argument",
    ),
}


def plus(a: te.Tensor) -> te.Tensor:
    b: te.Tensor = te.compute(a.shape, lambda i: a[i] + 1.0, name="B")
    return b


@pytest.mark.parametrize("case", WRONG)
def test_expressions(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(ExpressionError, match=message) as caught:
        call()
    assert isinstance(caught.value, tw.Error)
    assert Path(__file__).name in (caught.value.where or "")


def test_powers_and_absolute_values() -> None:
    b = te.compute((8,), lambda i: abs(A[i]) ** 2.0 + 2.0 ** A[i], name="B")
    x, y = np.linspace(-3, 3, 8, dtype=np.float32), np.empty(8, np.float32)
    tw.build(te.create_schedule(b), [A, b])(x, y)
    np.testing.assert_allclose(y, x**2 + 2**x, rtol=1e-5)


def test_unused_arguments() -> None:
    b = plus(A)
    unused, scalar = te.placeholder((3, N), name="A"), te.var("q", "float32")
    f = tw.build(te.create_schedule(b), [unused, A, scalar, b])
    y = np.zeros(8, np.float32)
    f(np.zeros((3, 5), np.float32), np.arange(8, dtype=np.float32), 2.5, y)
    assert y.tolist() == list(range(1, 9))
    assert [p.name for p in f.func.params] == ["A_1", "A", "q", "B"]


def test_scalars_as_arguments() -> None:
    alpha, shift = te.var("alpha", "float32"), te.var("shift", lo=0)
    a = te.placeholder((N,), name="A")
    b = te.compute((N,), lambda i: a[(i + shift) % N] * alpha, name="B")
    s = te.create_schedule(b)
    s[b].vectorize(s[b].split(b.axis[0], factor=8)[1])
    f = tw.build(s, [a, alpha, shift, b])
    x, y = np.arange(11, dtype=np.float32), np.empty(11, np.float32)
    for turn, factor in ((0, 2.0), (3, np.float32(-1)), (10, 0.5)):
        f(x, factor, turn, y)
        np.testing.assert_array_equal(y, np.roll(x, -turn) * np.float32(factor))
    with pytest.raises(ExpressionError, match="not among the arguments: alpha"):
        tw.build(s, [a, shift, b])
    with pytest.raises(CallError, match="alpha"):
        f(x, "two", 1, y)
    with pytest.raises(CallError, match=r"shift.*expected an integer, got 1.5"):
        f(x, 1.0, 1.5, y)


@pytest.mark.parametrize("factor", [te.var("m"), N + 1, 2.0, "4", True])
def test_factors_are_numbers_or_dimensions(factor: Any) -> None:
    b = plus(te.placeholder((N,), name="A"))
    s = te.create_schedule(b)
    with pytest.raises(ScheduleError, match="expected a factor that is a number"):
        s[b].split(b.axis[0], factor=factor)
    with pytest.raises(ScheduleError, match="expected a factor that is a number"):
        s[b].split(b.axis[0], nparts=factor)


@pytest.mark.parametrize(
    "step",
    [
        lambda s, b: s[b].vectorize(3),
        lambda s, b: s[b].split(None, factor=2),
        lambda s, b: s[b].reorder("i", 1.5),
        lambda s, b: s[3],
        lambda s, b: s[b].compute_at(s[b], A),
        lambda s, b: s[b].tensorize("i", "abacus"),
        lambda s, b: s[b].set_scope("nowhere"),
        lambda s, b: s[b].bind("i", "threadIdx.q"),
        lambda s, b: s[b].pad("x"),
        lambda s, b: s[b].transform_layout(lambda i, j: (j, i)),
        lambda s, b: s[b].transform_layout(7),
        lambda s, b: s[b].cache_read(A, 5),
        lambda s, b: s[b].rfactor("i"),
        lambda s, b: s[b].annotate("@parallel"),
    ],
)
def test_schedules(step: Callable[..., Any]) -> None:
    """An argument that is no axis, stage or number is refused like all else, and changes nothing."""
    b = plus(A)
    s = te.create_schedule(b)
    before = s.func
    with pytest.raises(tw.Error):
        step(s, b)
    assert s.func is before
