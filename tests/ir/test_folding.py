"""Results of Python's operators on expressions and numbers: the right operator, folded where a value is known."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.arith.evaluate import evaluate
from tilewright.ir import folding
from tilewright.ir.dtype import DType, boolean, f32, f64, i8, i32, i64, u8
from tilewright.ir.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    Var,
    all_of,
    any_of,
    as_expr,
    as_int,
    call,
    cast,
    ceildiv,
    const,
    equal,
    is_const,
    lookup,
    maximum,
    minimum,
    not_equal,
    of_elements,
    product,
    select,
)
from tilewright.ir.sameness import Sameness
from tilewright.ir.scalar_ops import OPS
from tilewright.support.errors import ExpressionError

X, Y, P, Q = Var("x"), Var("y"), Var("p", boolean), Var("q", boolean)
U, V = Var("u", f64), Var("v", f64)
AXIS = Var("a", axis=True)
A = Buffer("A", f32, (const(8), const(4)))

NUMBERS = (-3, -1, 0, 1, 2, 5)
INTEGER = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "eq", "ne", "lt", "le", "gt", "ge", "truncdiv", "shl")


def truth(name: str, a: Any, b: Any) -> Any:
    return np.asarray(OPS[name].numpy(np.int64(a), np.int64(b)))[()]


@pytest.mark.parametrize("name", INTEGER)
def test_numbers_are_folded(name: str) -> None:
    """Numbers are folded as the table of operators says; shifts, quotients by zero and what is seldom are left to be
    computed."""
    for a, b in itertools.product(NUMBERS, NUMBERS):
        result = folding.exact(name, a, b)
        left = name in ("truncdiv", "shl") or (name in ("floordiv", "mod") and b == 0)
        assert (result is None) == left, (a, b)
        assert left or result == truth(name, a, b), (a, b)
    for a, b in itertools.product((False, True), repeat=2):
        assert folding.exact("and", a, b) is (a and b) and folding.exact("or", a, b) is (a or b)
        assert folding.exact("eq", a, b) is None


TRIVIAL: dict[str, tuple[dict[int, str], dict[int, str]]] = {
    "add": ({0: "left"}, {0: "right"}),
    "sub": ({0: "left"}, {}),
    "mul": ({0: "right", 1: "left"}, {0: "left", 1: "right"}),
    "floordiv": ({1: "left"}, {}),
    "mod": ({1: "zero"}, {}),
    "shl": ({0: "left"}, {}),
    "shr": ({0: "left"}, {}),
    "min": ({}, {}),
    "lt": ({}, {}),
    "truncdiv": ({}, {}),
}
"""By operator: the result where the right operand is a number, and where the left one is."""


@pytest.mark.parametrize("name", TRIVIAL)
def test_operands_that_are_the_result(name: str) -> None:
    right, left = TRIVIAL[name]
    for number in NUMBERS:
        assert folding.trivial_result(name, None, number) == right.get(number)
        assert folding.trivial_result(name, number, None) == left.get(number)
        for x in (-4, 0, 3) if name not in ("shl", "shr") else ():
            values = {"left": x, "right": number, "zero": 0}
            assert number not in right or values[right[number]] == truth(name, x, number)
    assert folding.trivial_result(name, None, None) is None


def test_truth_values_that_are_the_result() -> None:
    assert [folding.trivial_result("and", None, b) for b in (True, False)] == ["left", "right"]
    assert [folding.trivial_result("or", None, b) for b in (True, False)] == ["right", "left"]
    assert [folding.trivial_result("and", b, None) for b in (True, False)] == ["right", "left"]
    assert [folding.trivial_result("or", b, None) for b in (True, False)] == ["left", "right"]
    assert P & True is P and str(P & False) == "false" and str(P | True) == "true" and P | False is P
    assert all_of([P, Q]) is P & Q and all_of([]) is const(True) and any_of([P, Q]) is P | Q
    assert any_of([]) is const(False)


BINARY: dict[str, tuple[Callable[[Any, Any], Any], DType]] = {
    "add": (operator.add, i64),
    "sub": (operator.sub, i64),
    "mul": (operator.mul, i64),
    "div": (operator.truediv, f64),
    "floordiv": (operator.floordiv, i64),
    "mod": (operator.mod, i64),
    "pow": (operator.pow, f64),
    "lt": (operator.lt, i64),
    "le": (operator.le, i64),
    "gt": (operator.gt, i64),
    "ge": (operator.ge, i64),
    "min": (minimum, i64),
    "max": (maximum, i64),
    "eq": (equal, i64),
    "ne": (not_equal, i64),
}
ONE_SIDED: dict[str, tuple[Callable[[Any, Any], Any], DType]] = {
    "shl": (operator.lshift, i64),
    "shr": (operator.rshift, i64),
    "bitand": (operator.and_, i64),
    "bitor": (operator.or_, i64),
    "bitxor": (operator.xor, i64),
    "and": (operator.and_, boolean),
    "or": (operator.or_, boolean),
}
MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


@pytest.mark.parametrize("name", [*BINARY, *ONE_SIDED])
def test_operators_of_two(name: str) -> None:
    apply, dtype = {**BINARY, **ONE_SIDED}[name]
    a, b = Var("l", dtype), Var("r", dtype)
    assert apply(a, b) is Op(name, (a, b))
    number = True if dtype is boolean else 7
    if dtype is not boolean:
        assert apply(a, number) is Op(name, (a, const(number, dtype)))
    if name in BINARY:
        transposed = Op(MIRRORED[name], (a, const(7, dtype))) if name in MIRRORED else Op(name, (const(7, dtype), a))
        assert apply(7, a) is transposed


def test_operators_of_one() -> None:
    assert -X is Op("neg", (X,)) and abs(U) is Op("abs", (U,)) and ~P is Op("not", (P,)) and ~X is Op("bitnot", (X,))
    assert -const(3) is const(-3) and -const(2.5) is const(-2.5) and -const(-128, i8) is const(-128, i8)
    assert -const(3, u8) is const(253, u8)


def test_comparisons_of_what_has_no_elements() -> None:
    """Shapes and symbols are compared as texts are where a truth value is asked for; as parts of an expression they are
    comparisons."""
    same, other = X == X, X == Y
    assert isinstance(same, Sameness) and bool(same) and not bool(other) and bool(X != Y) and not bool(X != X)
    assert same.as_expr() is const(True) and (X != X).as_expr() is const(False)
    assert other.as_expr() is equal(X, Y) and (X != Y).as_expr() is not_equal(X, Y)
    assert (U == U).as_expr() is Op("eq", (U, U))  # which NaN is not
    assert other & P is equal(X, Y) & P and P & other.as_expr() is P & equal(X, Y)
    assert other | P is equal(X, Y) | P and ~other is ~equal(X, Y) and str(other) == "x == y"
    assert (X == 3) is equal(X, 3) and (X != 3) is not_equal(X, 3)
    assert X.__eq__("x") is NotImplemented


def test_comparisons_of_elements_are_expressions() -> None:
    assert (AXIS == AXIS) is const(True) and (AXIS != AXIS) is const(False)
    assert (AXIS == X) is equal(AXIS, X) and (X != AXIS) is not_equal(X, AXIS)
    real = Var("r", f32, axis=True)
    assert (real == real) is Op("eq", (real, real))
    assert equal(X, X) is const(True) and not_equal(X, X) is const(False)
    assert equal(U, U) is Op("eq", (U, U)) and not_equal(U, U) is Op("ne", (U, U))


def test_what_has_elements() -> None:
    assert [of_elements(e) for e in (const(1), X, X + 1, AXIS, AXIS * 2 + X)] == [False, False, False, True, True]
    assert not of_elements(A[X, 0] + 1.0) and of_elements(A[AXIS, 0] * 2.0)


def test_reads_take_any_number_of_indices() -> None:
    line = Buffer("L", f32, (const(4),))
    assert line[X] is Load(line, (X,)) and A[X, 3] is Load(A, (X, const(3)))
    assert str(A.size) == "32" and A[X, 3].children == (X, const(3))


def test_what_is_no_element() -> None:
    class Tensor:
        name, shape = "T", (3, 4)

    with pytest.raises(ExpressionError) as caught:
        as_expr(Tensor())
    assert caught.value.got == "Tensor 'T', which has elements: T[..., ...]"
    with pytest.raises(ExpressionError) as caught:
        as_expr([1])
    assert caught.value.got == "list"

    class Index:
        def as_expr(self) -> Expr:
            return X

    assert as_expr(Index()) is X and as_expr(X) is X and as_expr(2, i8) is const(2, i8)


def test_calls_take_the_type_of_an_expression() -> None:
    assert call("max", 1, U) is Op("max", (const(1.0, f64), U))
    assert call("select", P, 1, U) is Op("select", (P, const(1.0, f64), U))
    assert (
        select(True, X, Y) is X
        and select(False, X, Y) is Y
        and select(P, 1, 2) is Op("select", (P, const(1), const(2)))
    )


def test_tables_with_a_known_index() -> None:
    table = [const(v, i32) for v in (5, 7, 9)]
    assert [as_int(lookup(k, table)) for k in (-2, 0, 1, 2, 3, 9)] == [5, 5, 7, 9, 9, 9]
    assert lookup(X, table) is Op("lookup", (X, *table))


def test_casts() -> None:
    assert cast(X, i64) is X and cast(X, "i8") is Op("cast", (X,), i8)
    assert cast(const(300), i8) is const(44, i8) and cast(const(True), f32) is const(1.0)
    assert cast(const(200, u8), f64) is const(200.0, f64) and cast(const(2, i32), boolean) is const(True)
    assert type(cast(const(2.5), i32)) is Op  # how that is rounded the targets say


def test_numbers_and_literals() -> None:
    assert [as_int(e) for e in (const(4), const(True), const(2.0), 5, X)] == [4, 1, None, 5, None]
    assert is_const(const(4)) and is_const(const(4), 4) and not is_const(const(4), 5) and not is_const(X)
    assert is_const(const(0.0), 0) and not is_const(4, 4)
    assert [const(v).dtype for v in (True, 1, 1.5, np.int8(3), np.float32(2))] == [boolean, i64, f32, i64, f32]
    assert const(-0.0) is not const(0.0) and const(1) is not const(True)
    assert product([]) is const(1) and product([2, X, 3]) is const(2) * X * 3
    assert minimum(X, X) is X and maximum(X, X) is X
    for a, b in itertools.product(range(-6, 7), (1, 2, 3)):
        assert as_int(ceildiv(const(a), b)) == -(-a // b)
        assert int(evaluate(ceildiv(X, Y), {X: a, Y: b})) == -(-a // b)


def test_integers_beside_integers_are_checked() -> None:
    """Arithmetic wraps around; a comparison with what the type does not have is a mistake."""
    s, byte = Var("s", i8), Var("b", u8)
    assert s + 200 is Op("add", (s, const(-56, i8))) and byte + 256 is byte
    for low, high, e in ((-128, 127, s), (0, 255, byte)):
        assert (e < high) is Op("lt", (e, const(high, e.dtype))) and (e > low) is Op("gt", (e, const(low, e.dtype)))
        for beyond in (low - 1, high + 1):
            with pytest.raises(ExpressionError, match="has this value"):
                e < beyond  # noqa: B015
    assert X + 2.0 is X + 2 and type(X + True) is Op
    with pytest.raises(ExpressionError, match="no integer"):
        X + 2.5


def test_one_expression_is_one_object() -> None:
    assert Var("x") is X and Var("x", lo=0) is not X and Var("x", i32) is not X and Var("x", axis=True) is not X
    assert Var("x", multiple=2) is not X and Var("x", hi=3) is not Var("x", lo=3) and Var("x", likely=(3,)) is not X
    known = Var("n", i32, 1, 9, 2, likely=(4, 8))
    assert known.renamed("m") is Var("m", i32, 1, 9, 2, likely=(4, 8))
    assert Const(1.0, f32) is const(1.0) and Const(1.0, f64) is not Const(1.0, f32)
    with pytest.raises(ExpressionError, match="300 does not fit i8"):
        Const(300, i8)
