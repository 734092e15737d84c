"""Law 4: every stage of lowering can be interpreted and means the same, and native code agrees with the interpreter."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

from tests.codegen.llvm.llvm_run import run
from tests.generators import Program, assert_same, examples, programs
from tilewright.arith import simplify
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.dtype import ALL, DType, f32, f64, i32, i64
from tilewright.ir.expr import as_int, const
from tilewright.ir.loops import PrimFunc
from tilewright.ir.rewrite import substitute
from tilewright.ir.verify import verify_func
from tilewright.plans import plan
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops, passes

HOST = Target.host()


@examples(60)
@given(programs([f32, f32, i32, i64]))
def test_every_pass_keeps_the_meaning(program: Program) -> None:
    expected = program.fresh()
    interpret(program.func, expected)
    func = program.func
    for name, apply in passes(HOST):
        func = apply(func)
        verify_func(func)
        actual = program.fresh()
        interpret(func, actual)
        assert_same(actual[-1], expected[-1], f"after {name}:\n{func}")


@examples(60)
@given(programs([f32, f32, f64, i32, i64]))
def test_native_code_agrees(program: Program) -> None:
    check(program)


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_native_code_agrees_on_a_type(dtype: DType) -> None:
    @examples(8)
    @given(programs([dtype], depth=2))
    def run_type(program: Program) -> None:
        check(program)

    run_type()


@examples(60)
@given(programs([f32, f32, f32, i32, f64]))
def test_planned_code_agrees(program: Program) -> None:
    """Native code of the compiler's default schedule agrees."""
    expected, scheduled = program.fresh(), program.fresh()
    interpret(program.func, expected)
    func = plan(program.func, HOST).func
    verify_func(func)
    interpret(func, scheduled, backwards=True)
    assert_same(scheduled[-1], expected[-1], str(func))
    compare(func, program, expected)


def check(program: Program) -> None:
    expected = program.fresh()
    interpret(program.func, expected)
    compare(program.func, program, expected)


def compare(func: PrimFunc, program: Program, expected: list[np.ndarray]) -> None:
    """Lower, compile and run."""
    flat = lower_loops(func, HOST)
    verify_func(flat)
    actual = program.fresh()
    symbols = {v.name: program.arrays[0].shape[0] for v in func.symbols}
    run(flat, *actual, *workspaces(flat, symbols), **symbols)
    assert_same(actual[-1], expected[-1], str(flat))


def workspaces(func: PrimFunc, symbols: dict[str, int]) -> list[np.ndarray]:
    """Aligned arrays for the trailing workspace parameters; their content is arbitrary."""
    known = {v: const(symbols.get(v.name, 1)) for v in func.symbols}
    results = []
    for buffer in func.workspaces:
        shape = [as_int(simplify(substitute(d, known))) or 0 for d in buffer.shape]
        nbytes = math.prod(shape) * buffer.dtype.itemsize
        raw = np.full(nbytes + 64, 0xA5, np.uint8)
        start = -raw.ctypes.data % 64
        results.append(raw[start : start + nbytes].view(buffer.dtype.numpy).reshape(shape))
    return results
