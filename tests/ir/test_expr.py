"""Making expressions: what an operator refuses, and what is the same object."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.dtype import ALL, DType, boolean, f32, i8, i32, i64
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, binary, const, select
from tilewright.ir.loops import For, If, Let, Store
from tilewright.ir.rewrite import buffers_in, exprs_of, map_exprs_of, substitute, walk_expr
from tilewright.ir.sharing import computed_first
from tilewright.support.errors import ExpressionError

X, S, U = Var("x"), Var("s", i32), Var("u", f32)
P = Var("p", boolean)


@pytest.mark.parametrize(
    ("name", "args", "dtype", "message"),
    [
        ("plus", (X, X), None, "no scalar operator named 'plus'"),
        ("add", (X,), None, "add takes 2 arguments, got 1"),
        ("add", (X, S), None, "add: argument types do not agree: i64, i32"),
        ("add", (X, X), i32, "add of i64 gives i64, not i32"),
        ("lt", (X, X), i64, "lt of i64 gives bool, not i64"),
        ("and", (X, X), None, "and is not defined on i64"),
        ("cast", (X,), None, "cast needs its result type"),
        ("select", (X, S, S), None, "select: argument types do not agree: i64, i32, i32"),
        ("select", (P, S, X), None, "select: argument types do not agree: bool, i32, i64"),
        ("select", (P, S), None, "select takes 3 arguments, got 2"),
        ("lookup", (X,), None, "lookup takes an i64 index and at least one entry"),
        ("lookup", (S, const(1)), None, "lookup takes an i64 index and at least one entry"),
        ("lookup", (X, const(1), U), None, "lookup: the entries are not literals of one type"),
        ("lookup", (X, const(1), const(1, i8)), None, "lookup: the entries are not literals of one type"),
        ("lookup", (X, const(1), X), None, "lookup: the entries are not literals of one type"),
        ("lookup", (X, const(1, i8)), i32, "lookup of i8 gives i8, not i32"),
    ],
)
def test_refused(name: str, args: tuple[Expr, ...], dtype: DType | None, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Op(name, args, dtype)
    assert caught.value.what == message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: X < 2.5, "lt of i64 and 2.5: the number is no integer"),
        (lambda: float("nan") + X, "add of i64 and nan: the number is no integer"),
        (lambda: S * float("inf"), "mul of i32 and inf: the number is no integer"),
        (lambda: S < 2**31, "lt of i32 and 2147483648: no i32 has this value"),
        (lambda: float(U), "the expression u is no number"),
        (lambda: int(X), "the expression x is no number"),
        (lambda: bool(X < 3), "the expression x < 3 has no truth value"),
        (lambda: Load(Buffer("A", f32, (4, 4)), (X,)), "A has 2 dimensions, indexed with 1"),
        (lambda: find_dtype("float33"), "no such element type: 'float33'; known: .*f32"),
        (lambda: find_dtype([]), r"no such element type: \[\]"),
    ],
)
def test_what_has_no_meaning_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "args", "dtype"),
    [("add", (S, S), i32), ("lt", (S, S), boolean), ("select", (P, S, S), i32), ("lookup", (X, const(1, i8)), i8)],
)
def test_a_type_that_is_passed_and_right_changes_nothing(name: str, args: tuple[Expr, ...], dtype: DType) -> None:
    assert Op(name, args, dtype) is Op(name, args) and Op(name, args).dtype is dtype


def test_nothing_replaced_is_the_same_expression() -> None:
    e = (X + 3) * 2
    assert substitute(e, {}) is e and substitute(e, {S: const(1, i32)}) is e
    assert substitute(e, {X: const(1)}) is substitute((X + 3) * 2, {X: const(1)})


def test_numbers_take_the_type_of_the_other_operand() -> None:
    for e in (binary("sub", 7, S), binary("sub", S, 7), 7 - S, S - 7):
        assert e.dtype is i32 and sum(type(c) is Const and c.dtype is i32 for c in e.children) == 1
    assert binary("mul", 2, U).children[1 if binary("mul", 2, U).children[0] is U else 0] is const(2.0, f32)


def test_buffers_of_a_statement() -> None:
    """Buffers that are written, that are read and that indices are read from, each once."""
    a, b, at = (Buffer(name, kind, (const(4),)) for name, kind in (("a", f32), ("b", f32), ("at", i64)))
    assert list(buffers_in(Store(a, (X,), const(1.0, f32)))) == [a]
    assert set(buffers_in(Store(a, (X,), b[at[X]] + b[0]))) == {a, b, at}


def test_numbers_on_the_left() -> None:
    """Numbers on the left of every operator that Python turns round."""
    n = Var("n", lo=1)
    assert [str(e) for e in (7 % n, 7 // n, 7 - n)] == ["7 % n", "7 // n", "7 - n"]


def test_a_constant_is_its_number() -> None:
    """In Python's own terms, not as an expression of the program."""
    assert (const(3) == 3) is True and (const(3) != 3) is False and (const(3) == 4) is False


INTEGERS = [t for t in ALL if t.is_int]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_ends_of_integers(dtype: DType) -> None:
    info = ml_dtypes.iinfo(dtype.numpy)
    assert (dtype.min, dtype.max) == (info.min, info.max)
    assert Const(dtype.max, dtype).value == info.max and Const(dtype.min, dtype).value == info.min
    for beyond in (info.min - 1, info.max + 1):
        with pytest.raises(ExpressionError, match="does not fit"):
            Const(beyond, dtype)


@given(st.sampled_from(INTEGERS), st.integers(-(1 << 66), 1 << 66))
def test_literals_wrap_into_their_type(dtype: DType, value: int) -> None:
    bits = (value % (1 << dtype.bits)).to_bytes(8, "little")
    assert const(value, dtype).value == int(np.frombuffer(bits, dtype.numpy)[0])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_copies_of_a_type_are_the_type(dtype: DType) -> None:
    assert pickle.loads(pickle.dumps(dtype)) is dtype and copy.deepcopy(dtype) is dtype


def test_what_changes_nothing_keeps_statements() -> None:
    a = Buffer("a", i64, (const(8),))
    for stmt in (
        Store(a, (X + 1,), a[X] * 2),
        Let(Var("l"), X + 1, Store(a, (X,), X)),
        If(P, Store(a, (X,), X)),
        For(X, const(8), Store(a, (X,), X)),
    ):
        assert map_exprs_of(stmt, lambda e: e) is stmt
        assert all(e is X for e in exprs_of(map_exprs_of(stmt, lambda _: X)) if e.dtype is i64)


def test_what_is_computed_first() -> None:
    """The parts of a long expression that stand in it more than once, each after its own parts, but for those that
    are evaluated only where a condition says so."""
    doubled = X
    for _ in range(24):
        doubled = doubled * doubled + 1
    order = computed_first(doubled)
    assert len(order) == 23 and order == tuple(sorted(order, key=lambda e: len(list(walk_expr(e)))))
    assert computed_first(select(X < 1, doubled, X)) == ()
    assert computed_first(select(doubled < 1, X, X)) == order
