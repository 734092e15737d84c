"""Axes in expressions: an axis is its variable, on either side of any operator."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.expr import Var, const

AXIS, OTHER = te.reduce_axis(8, "r"), te.reduce_axis(4, "s")

BOTH_SIDES = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod]
LEFT = [operator.lt, operator.le, operator.gt, operator.ge]
LEFT += [operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor]


@pytest.mark.parametrize("f", [*BOTH_SIDES, *LEFT], ids=lambda f: f.__name__)
def test_an_axis_is_its_variable(f: Callable[[Any, Any], Any]) -> None:
    i = Var("i")
    for other, meant in ((3, 3), (i, i), (OTHER, OTHER.var)):
        assert f(AXIS, other) is f(AXIS.var, meant)
    if f in BOTH_SIDES:
        assert f(3, AXIS) is f(3, AXIS.var) or f is operator.mul
        assert f(3, AXIS) is f(AXIS.var, 3) or f is not operator.mul
        assert f(i, AXIS) is f(i, AXIS.var)


def test_axes_as_indices() -> None:
    a = te.placeholder((8, 4), name="A")
    assert a[AXIS, OTHER] is a[AXIS.var, OTHER.var] and a[AXIS, 1] is a[AXIS.var, 1]
    assert te.placeholder((8,), name="B")[AXIS].indices == (AXIS.var,)
    assert a.axis == () and a.reduce_axis == ()
    c = te.compute((8,), lambda i: te.sum(a[i, OTHER], OTHER), name="C")
    assert [x.name for x in c.axis] == ["i"] and c.reduce_axis == (OTHER,) and c.op.inputs == (a,)


def test_reduction_axes() -> None:
    """Over `0..extent`, or a pair that says so; the loop has the axis's name, dots and all."""
    assert te.reduce_axis((0, 5), "k").extent is const(5) and te.reduce_axis(5).extent is const(5)
    deferred = te.reduce_axis((1, 5), "k")
    assert deferred.extent is const(4) and deferred.as_expr() is deferred.var + 1
    a, k = te.placeholder((4, 6), name="A"), te.reduce_axis(6, "a.b")
    assert te.compute((4,), lambda i: te.sum(a[i, k], k)).reduce_axis[0].name == "a.b"


def test_outputs_of_a_stage_are_parts_of_one_reduction() -> None:
    a, k = te.placeholder((4, 6), name="A"), te.reduce_axis(6, "k")
    with pytest.raises(TypeError, match="must be the parts of one reduction"):
        te.compute((4,), lambda i: (te.sum(a[i, k], k), te.max(a[i, k], k)), name="two")
    with pytest.raises(TypeError, match="must be the parts of one reduction"):
        te.compute((4,), lambda i: (te.sum(a[i, k], k), a[i, 0]), name="two")
    with pytest.raises(TypeError, match="must be the whole body"):
        te.compute((4,), lambda i: te.sum(a[i, k], k) + 1.0, name="more")


def test_axes_that_start_elsewhere() -> None:
    k = te.reduce_axis((3, 8), "k")
    assert k + 1 is k.var + 3 + 1 and 1 // k is 1 // (k.var + 3) and -k is -(k.var + 3) and -AXIS is -AXIS.var


def test_a_reduction_over_nothing_is_where_it_starts() -> None:
    a = te.placeholder((4, 0), name="A")
    k = te.reduce_axis(0, "k")
    b = te.compute((4,), lambda i: te.or_identity(te.sum(a[i, k], k)), name="B")
    c = te.compute((4,), lambda i: te.or_identity(te.prod(a[i, k], k)), name="C")
    out = [np.full(4, 7, np.float32) for _ in range(2)]
    interpret(te.create_prim_func([a, b, c], "f"), [np.zeros((4, 0), np.float32), *out])
    np.testing.assert_array_equal(out, [[0] * 4, [1] * 4])


def test_a_shape_of_one_number() -> None:
    assert te.placeholder(4).shape == te.placeholder((4,)).shape == te.placeholder([4]).shape
    n = te.var("n")
    assert te.placeholder(n).shape == (n,) and te.compute(n, lambda i: i, name="B").shape == (n,)  # type: ignore[union-attr]
