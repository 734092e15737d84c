"""Floats that are rounded and become narrow integers: one conversion, which saturates and rounds to even."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.llvm.llvm_run import run
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import compile_llvm, emit_llvm
from tilewright.ir.dtype import DType, f16, f32, f64, i8, i16, i32, u8, u16
from tilewright.ir.expr import Buffer, Expr, Var, call, cast, const
from tilewright.ir.loops import For, PrimFunc, Store
from tilewright.targets.target import Target

rng = np.random.default_rng(3)
ODD = [
    0.0,
    -0.0,
    0.5,
    1.5,
    2.5,
    -0.5,
    -1.5,
    254.5,
    255.5,
    127.5,
    -128.5,
    65535.5,
    3e9,
    -3e9,
    1e30,
    np.inf,
    -np.inf,
    np.nan,
]
VALUES = np.array([*ODD, *rng.uniform(-300, 300, 30), *rng.uniform(-9e4, 9e4, 16)])


def converted(source: DType, to: DType, offset: float | None, loop: str) -> PrimFunc:
    i = Var("i")
    a, y = Buffer("a", source, (const(64),)), Buffer("y", to, (const(64),))
    rounded: Expr = call("round", a[i])
    whole = rounded if offset is None else rounded + const(offset, source)
    return PrimFunc("f", (a, y), For(i, const(64), Store(y, (i,), cast(whole, to)), loop))  # type: ignore[arg-type]


@pytest.mark.costly(4)
@pytest.mark.parametrize("loop", ["serial", "vectorized"])
@pytest.mark.parametrize("offset", [None, 0.0, 3.0, -7.0, 255.0, 65536.0])
@pytest.mark.parametrize("to", [i8, u8, i16, u16])
@pytest.mark.parametrize("source", [f32, f64])
def test_results(source: DType, to: DType, offset: float | None, loop: str) -> None:
    func = converted(source, to, offset, loop)
    supplied = VALUES.astype(source.numpy)
    want, got = np.ones(64, to.numpy), np.zeros(64, to.numpy)
    interpret(func, [supplied, want])
    run(func, supplied, got)
    np.testing.assert_array_equal(got, want)
    assert "llvm.lrint" in emit_llvm(func, Target.parse("x86-64-v3"))


@pytest.mark.parametrize(
    ("source", "to", "offset"),
    [(f32, i8, 0.5), (f32, u8, 131072.0), (f32, i32, 3.0), (f16, i8, None), (f32, i8, np.nan)],
)
def test_what_is_not_rounded_so(source: DType, to: DType, offset: float | None) -> None:
    """Sums that are no whole numbers or may be inexact, wide integers, halves, whose sum is rounded."""
    func = converted(source, to, offset, "vectorized")
    supplied = VALUES.clip(-6e4, 6e4).astype(source.numpy)
    want, got = np.ones(64, to.numpy), np.zeros(64, to.numpy)
    interpret(func, [supplied, want])
    run(func, supplied, got)
    np.testing.assert_array_equal(got, want)
    assert "llvm.lrint" not in emit_llvm(func, Target.parse("x86-64-v3"))


@pytest.mark.parametrize("loop", ["serial", "vectorized"])
@pytest.mark.parametrize("source", [f32, f64])
@pytest.mark.parametrize("name", ["wasm32-simd128", "wasm32-relaxed-simd"])
def test_a_web_module_rounds_by_itself(name: str, source: DType, loop: str) -> None:
    """LLVM 22 makes a call of libm's `lrintf` of the intrinsic there, which no engine has."""
    target = Target.parse(name)
    image = compile_llvm(emit_llvm(converted(source, i8, 3.0, loop), target), target)
    assert b"rint" not in image and b"roundeven" not in image
