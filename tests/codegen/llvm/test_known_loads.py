"""The emitter's knowledge of memory: an address is read once while nothing can change it, what was stored is not read
back, and whatever may have changed is read again."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.llvm.llvm_run import run
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.ir.dtype import f32, i64
from tilewright.ir.expr import Buffer, Expr, Var, const, select
from tilewright.ir.loops import For, If, PrimFunc, Stmt, Store, seq
from tilewright.targets.target import Target


def buffer(name: str, size: int, dtype=f32) -> Buffer:  # type: ignore[no-untyped-def]
    return Buffer(name, dtype, (const(size),))


x, a, b = buffer("x", 40), buffer("a", 40), buffer("b", 40)
i, j, v = Var("i"), Var("j"), Var("v")


def put(to: Buffer, index: Expr | int, value: Expr) -> Store:
    return Store(to, (const(index) if isinstance(index, int) else index,), value)


def check(body: Stmt, params: tuple[Buffer, ...] = (x, a, b)) -> list[str]:
    """The function does what the interpreter does; what it loads, by address and type."""
    func = PrimFunc("f", params, body)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 8, 40).astype(p.dtype.numpy) for p in params]
    want, got = [[array.copy() for array in arrays] for _ in range(2)]
    interpret(func, want)
    run(func, *got)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
    text = emit_llvm(func, Target.host())
    return [line.split("= load ")[1].split(", align")[0] for line in text.splitlines() if "= load " in line]


def unrolled(var: Var, extent: int, body: Stmt) -> For:
    return For(var, const(extent), body, "unrolled")


def test_one_address_by_two_expressions() -> None:
    body = unrolled(i, 3, unrolled(j, 4, put(a, i * 4 + j, x[i + j])))
    assert len(check(body)) == 6


def test_one_address_of_vectors() -> None:
    inner = For(v, const(8), put(a, i * 8 + j * 8 + v, x[i + j + v]), "vectorized")
    assert len(check(unrolled(i, 2, unrolled(j, 3, inner)))) == 4


def test_lanes_that_are_known_to_be_off_share_loads() -> None:
    value = select(v < 3, x[i + v] * b[0], 0.0)
    loads = check(unrolled(i, 2, For(v, const(8), put(a, i * 8 + v, value), "vectorized")))
    assert sum("%b" in load for load in loads) == 1


def test_what_was_stored_is_not_read() -> None:
    assert len(check(seq((put(a, 0, x[0]), put(b, 0, a[0] + a[0]), put(b, 1, a[0]))))) == 1


def test_a_store_to_another_buffer_changes_nothing() -> None:
    assert len(check(seq((put(b, 0, a[3]), put(x, 0, a[3]), put(x, 1, a[3]))))) == 1


def test_a_store_to_the_same_buffer_may_change_it() -> None:
    body = seq((put(b, i, a[i]), put(a, i // 2, x[1]), put(b, i + 4, a[i])))
    assert len(check(For(i, const(4), body))) == 3


@pytest.mark.parametrize("start", range(4))
def test_an_index_that_the_store_changes(start: int) -> None:
    p, q = buffer("p", 40, i64), buffer("q", 40, i64)
    check(seq((put(p, p[start], p[start] + 3), put(q, 0, p[p[start]]), put(q, 1, p[start]))), (p, q))


@pytest.mark.parametrize("least", [0, 100])
def test_what_a_condition_guards_is_forgotten_after_it(least: int) -> None:
    guarded = If(x[0] >= float(least), seq((put(a, 0, x[5]), put(b, 0, x[6]))))
    check(seq((guarded, put(b, 1, a[0]), put(b, 2, x[5] + x[6]))))


def test_what_a_loop_changes_is_read_once_more() -> None:
    body = seq((put(a, 0, x[0]), For(i, const(5), put(a, i % 2, a[0] + x[i])), put(b, 0, a[0])))
    check(body)
