"""Integer division and shifts in LLVM: by literals of every kind, in one instruction where that does."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.llvm_run import run
from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.codegen.llvm.vector import sixteenth
from tilewright.ir.dtype import DType, f32, f64, i8, i16, i32, i64, u8, u16, u32
from tilewright.ir.expr import Buffer, Op, Var, cast, const, lookup
from tilewright.ir.loops import For, PrimFunc, Seq, Store
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops

V3 = Target.parse("x86-64-v3")
NAMES = ("floordiv", "mod", "truncdiv", "truncmod")
VALUES = np.array([-(2**31), 2**31 - 1, -9, -8, -7, -1, 0, 1, 7, 8, 9, 100, -100, 3, -3, 16], np.int32)


def divided(name: str, divisor: int, loop: str) -> PrimFunc:
    i = Var("i")
    a, q = Buffer("a", i32, (const(16),)), Buffer("q", i32, (const(16),))
    body = Store(q, (i,), Op(name, (a[i], const(divisor, i32))))
    return PrimFunc("f", (a, q), For(i, const(16), body, loop))  # type: ignore[arg-type]


@pytest.mark.daily(5)
@pytest.mark.parametrize("loop", ["serial", "vectorized"])
@pytest.mark.parametrize("divisor", [1, 2, 8, 3, 12, -1, -8, -3])
@pytest.mark.parametrize("name", NAMES)
def test_by_literals(name: str, divisor: int, loop: str) -> None:
    func = divided(name, divisor, loop)
    want, got = np.zeros(16, np.int32), np.ones(16, np.int32)
    interpret(func, [VALUES, want])
    run(func, VALUES, got)
    np.testing.assert_array_equal(got, want)
    shifted = divisor > 0 and divisor & (divisor - 1) == 0 and name in ("floordiv", "mod")
    text = emit_llvm(func, V3)
    assert (" sdiv " not in text and " srem " not in text) == shifted


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("element", [i8, u8, i16, u16, i32, u32, i64])
def test_vectors_by_each_other(name: str, element: DType) -> None:
    """Integers of 32 bits and less are divided as floats: next to multiples, at the ends of the range, by 0 and -1."""
    rng, info, count = np.random.default_rng(7), np.iinfo(element.numpy), 4096
    divisors = rng.integers(info.min, info.max, count, element.numpy, endpoint=True) >> rng.integers(
        0, element.bits, count
    )
    whole = rng.integers(info.min, info.max, count, element.numpy, endpoint=True)
    with np.errstate(all="ignore"):
        inner = np.where(divisors == 0, whole, whole // divisors * divisors + rng.integers(-1, 2, count))
        values = inner.astype(element.numpy)
    values[:8] = info.min, info.max, info.min, info.max, 0, info.min, info.max, 1
    divisors[:8] = info.max, info.min, *np.array([-1, -1, 0, 0, 1, 2]).astype(element.numpy)
    i = Var("i")
    a, b, q = (Buffer(n, element, (const(count),)) for n in "abq")
    func = PrimFunc("f", (a, b, q), For(i, const(count), Store(q, (i,), Op(name, (a[i], b[i]))), "vectorized"))
    want, got = np.zeros(count, element.numpy), np.ones(count, element.numpy)
    interpret(func, [values, divisors.astype(element.numpy), want])
    run(func, values, divisors.astype(element.numpy), got)
    np.testing.assert_array_equal(got, want)
    assert (" fdiv " in emit_llvm(func, V3)) == (element is not i64)


@pytest.mark.parametrize("loop", ["serial", "vectorized"])
@pytest.mark.parametrize(("name", "by"), [(n, k) for n in ("shl", "shr") for k in (0, 1, 31, 32, 40, -1)])
def test_shifts_by_literals(name: str, by: int, loop: str) -> None:
    """By no more bits than there are: one instruction; else zero or the sign."""
    func = divided(name, by, loop)
    got = np.ones(16, np.int32)
    run(func, VALUES, got)
    wide = VALUES.astype(np.int64)
    inside = 0 <= by < 32
    want = (wide << by if inside else wide * 0) if name == "shl" else wide >> (by if inside else 31)
    np.testing.assert_array_equal(got, want.astype(np.int32))
    if by or loop == "serial":  # a vector of zeros is left to LLVM
        assert (" select " not in emit_llvm(func, V3)) == inside


def test_sixteen_numbers_are_chosen_by_four_bits() -> None:
    """Numbers of f32 are chosen by an i32 alone: that is the table that a register holds."""
    x, y = Var("x", i32), Var("y", i64)
    low = cast(Op("bitand", (x, const(15, i32))), i64)
    assert sixteenth(lookup(low, [const(k, f32) for k in range(16)])) is x
    for index, kind, size in (
        (low, f64, 16),
        (low, i32, 16),
        (low, f32, 15),
        (cast(Op("bitand", (x, const(7, i32))), i64), f32, 16),
        (cast(Op("bitor", (x, const(15, i32))), i64), f32, 16),
        (cast(Op("bitand", (cast(x, i8), const(15, i8))), i64), f32, 16),
        (y, f32, 16),
    ):
        assert sixteenth(lookup(index, [const(k, kind) for k in range(size)])) is None
    assert sixteenth(low) is None


def test_divisions_that_a_loop_does_not_change_are_done_before_it() -> None:
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m, 7), name="a")
    s = Schedule(te.create_prim_func([a, te.compute((m, n, 7), lambda i, j, k: a[j, i, k] + a[j, i, 0], name="b")]))
    i, j, _ = s.loops("b")
    s.fuse(i, j)
    text = emit_llvm(lower_loops(s.func, V3), V3)
    innermost = text[text.index("\nk_body") : text.index("\nk_done")]
    assert text.count(" udiv ") == text.count(" urem ") == 1
    assert "udiv" not in innermost and "urem" not in innermost
    f = tw.build(s)
    rng = np.random.default_rng(0)
    for rows, columns in [(5, 3), (1, 1), (4, 7), (1, 6)]:
        x = rng.standard_normal((rows, columns, 7), np.float32)
        y = np.zeros((columns, rows, 7), np.float32)
        f(x, y)
        np.testing.assert_array_equal(y, np.swapaxes(x + x[..., :1], 0, 1))


@pytest.mark.daily(4)
@pytest.mark.costly(3)
@pytest.mark.parametrize("loop", ["serial", "vectorized"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inner", ["add", "mul", "max", "floordiv", "mod"])
def test_of_what_may_be_negative(inner: str, name: str, loop: str) -> None:
    """Indices divide without a look at the sign where none of their parts can be negative, and only there."""
    i, n = Var("i"), Var("n", lo=1)
    parts = [Op(inner, pair) for pair in ((i, const(-5)), (const(-5), i + 1), (i, n), (n, i + 1))]
    like, q = Buffer("like", i8, (n,)), Buffer("q", i64, (const(len(parts)), const(9)))
    stores = [Store(q, (const(k), i), Op(name, (part, n))) for k, part in enumerate(parts)]
    func = PrimFunc("f", (like, q), For(i, const(9), Seq(tuple(stores)), loop))  # type: ignore[arg-type]
    for size in (1, 3, 4):
        want, got = np.zeros((len(parts), 9), np.int64), np.ones((len(parts), 9), np.int64)
        interpret(func, [np.zeros(size, np.int8), want], symbols={"n": size})
        run(func, np.zeros(size, np.int8), got, n=size)
        np.testing.assert_array_equal(got, want)
