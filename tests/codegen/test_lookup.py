"""Tables of literals: meaning, folding, and native code with scalar and vector indices."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.c.c_run import COMPILER, run_c
from tests.codegen.llvm.llvm_run import run
from tilewright import te
from tilewright.arith import bounds, simplify
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.ir.dtype import DType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from tilewright.ir.expr import Buffer, Const, Expr, Op, Var, const, lookup
from tilewright.ir.loops import For, PrimFunc, Store, seq
from tilewright.ir.parser import parse_expr
from tilewright.targets.target import Target

TABLE = [3, 0, 1, -2, 5, 7, 100]


def table(kind: DType) -> list[Const]:
    return [const(abs(x) if kind.kind == "uint" else bool(x) if kind is boolean else x, kind) for x in TABLE]


@pytest.mark.costly(3)
@pytest.mark.parametrize("loop", ["serial", "vectorized", "unrolled"])
@pytest.mark.parametrize("kind", [f32, f64, f16, bf16, i8, u8, i32, i64, boolean], ids=str)
def test_native_code_agrees(kind: DType, loop: str) -> None:
    """Indices from data, some outside; 11 lanes."""
    i, size = Var("i"), const(11)
    at, out, own = Buffer("at", i64, (size,)), Buffer("out", kind, (size,)), Buffer("own", kind, (size,))
    body = seq((Store(out, (i,), lookup(at[i], table(kind))), Store(own, (i,), lookup(i - 2, table(kind)))))
    func = PrimFunc("pick", (at, out, own), For(i, size, body, loop))  # type: ignore[arg-type]
    index = np.array([0, 6, -1, 3, 2, 7, 5, 4, 1, -(1 << 40), 1 << 40])
    values = np.array([c.value for c in table(kind)], kind.numpy)
    want = values[np.clip(index, 0, 6)], values[np.clip(np.arange(11) - 2, 0, 6)]
    runs = [lambda *a: interpret(func, a), lambda *a: run(func, *a)]
    if COMPILER is not None:
        runs.append(lambda *a: run_c(func, a))
    for execute in runs:
        got = [np.zeros(11, kind.numpy), np.zeros(11, kind.numpy)]
        execute(index, *got)
        assert all(np.array_equal(g, w) for g, w in zip(got, want, strict=True))


def test_known_lanes_are_a_literal_vector() -> None:
    """No table in memory for `M[i, lane]`."""
    i, lane = Var("i"), Var("lane")
    out = Buffer("out", f32, (const(2), const(4)))
    matrix = te.const_matrix(np.arange(8).reshape(2, 4) ** 2)
    store = Store(out, (i, lane), matrix[i, lane])
    func = PrimFunc("rows", (out,), For(i, const(2), For(lane, const(4), store, "vectorized"), "unrolled"))
    assert "@table" not in emit_llvm(func, Target.parse("x86-64-v3"))
    got = np.zeros((2, 4), np.float32)
    run(func, got)
    assert np.array_equal(got, np.arange(8).reshape(2, 4) ** 2)


def test_known_indices_fold() -> None:
    i = Var("i")
    entries = table(f32)
    assert lookup(3, entries) is entries[3] and lookup(-5, entries) is entries[0] and lookup(99, entries) is entries[6]
    assert simplify(lookup(i, entries), {i: const(1)}) is entries[0]
    assert bounds(lookup(i, table(i64))) == (-2, 100)
    assert te.const_matrix([[1, 2], [3, 4]])[1, 0] is const(3.0, f32)


def test_text_and_errors() -> None:
    i = Var("i")
    e = lookup(i * 2 + 1, table(f32))
    assert str(e) == "lookup(i * 2 + 1, 3.0, 0.0, 1.0, -2.0, 5.0, 7.0, 100.0)" and parse_expr(str(e)) is e
    bad: list[tuple[Expr, ...]] = [(i,), (const(1.0), const(1.0)), (i, const(1), const(1.0)), (i, i)]
    for args in bad:
        with pytest.raises(TypeError, match="lookup"):
            Op("lookup", args)
    with pytest.raises(ValueError, match="2 dimensions, indexed with 1"):
        te.const_matrix([[1, 2]])[0]
    with pytest.raises(ValueError, match="needs elements"):
        te.const_matrix([])
