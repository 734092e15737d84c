"""`flush_denormals`: a call takes subnormal numbers as zero, makes none, in all its threads, and restores the mode."""

from __future__ import annotations

import ctypes
import platform
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.codegen.llvm.emit import assembly
from tilewright.codegen.llvm.entry import emit_entry
from tilewright.ir.dtype import boolean, f32, i64
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.support.errors import CallError
from tilewright.targets.target import Target

SIZE = 1 << 16
flushes_here = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="how subnormal numbers are flushed is known of two machines"
)


def halved() -> Graph:
    builder = GraphBuilder("halved")
    x = builder.input("x", TensorType(f32, (const(SIZE),)))
    half = builder.param("half", TensorType(f32, (const(1),)))
    return builder.finish((ops.emit1(builder, "mul", x, half),))


def rounding() -> float:
    """A product that is subnormal, in the mode that this thread has outside of calls."""
    return float(np.multiply(np.full(64, 2.0**-126, np.float32), np.float32(0.5))[0])


@flushes_here
@pytest.mark.parametrize("threads", [1, 2])
def test_calls_flush_and_restore(threads: int) -> None:
    weights = {"half": np.full(1, 0.5, np.float32)}
    x = np.tile(np.array([2.0**-126, 2.0**-140, 3.0, -(2.0**-126)], np.float32), SIZE // 4)
    usual, flushing = (tw.compile((halved(), weights), threads=threads, flush_denormals=flag) for flag in (False, True))
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(usual(x)), x / 2)
        np.testing.assert_array_equal(np.asarray(flushing(x)), np.where(np.abs(x) < 1, 0, x / 2))
        assert rounding() == 2.0**-127


@flushes_here
def test_what_was_flushed_before_stays() -> None:
    """A caller whose own mode flushes has it still after a call."""
    if platform.machine() != "x86_64":
        pytest.skip("the mode is set by the C library's functions for x86-64")
    libm, environment = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()
    model = tw.compile((halved(), {"half": np.full(1, 0.5, np.float32)}), flush_denormals=True)
    x = np.full(SIZE, 2.0**-126, np.float32)
    libm.fegetenv(environment)
    before = environment[7]  # MXCSR stands last
    environment[7] = before | 0x8040
    libm.fesetenv(environment)
    try:
        inside, now = np.asarray(model(x)).max(), (ctypes.c_uint32 * 8)()
        libm.fegetenv(now)
    finally:
        environment[7] = before
        libm.fesetenv(environment)
    assert inside == 0 and now[7] & 0x8040 == 0x8040 and rounding() == 2.0**-127


@flushes_here
@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_that_fails_restores_the_mode(threads: int) -> None:
    """The call ends at the check, after work that flushed; the thread that called and those of the pool go on."""
    builder = GraphBuilder("checked")
    x, holds = builder.input("x", TensorType(f32, (const(SIZE),))), builder.input("holds", TensorType(boolean, ()))
    half = builder.param("half", TensorType(f32, (const(1),)))
    number = ops.emit1(builder, "cast", holds, dtype=i64)
    checked = ops.emit1(builder, "require", ops.emit1(builder, "mul", x, half), holds, number, what="it does not hold")
    graph = builder.finish((ops.emit1(builder, "mul", checked, half),))
    weights = {"half": np.full(1, 0.5, np.float32)}
    model = tw.compile((graph, weights), threads=threads, flush_denormals=True)
    usual = tw.compile((halved(), weights), threads=threads)
    least = np.full(SIZE, 2.0**-126, np.float32)
    for _ in range(3):
        with pytest.raises(CallError, match="it does not hold"):
            model(least, np.array(False))
        assert rounding() == 2.0**-127
        np.testing.assert_array_equal(np.asarray(usual(least)), least / 2)
        assert not np.asarray(model(least, np.array(True))).any()
    assert rounding() == 2.0**-127


@flushes_here
def test_the_mode_is_that_of_a_call_alone() -> None:
    """Threads of the caller that compute while calls of another one flush have their own mode."""
    weights = {"half": np.full(1, 0.5, np.float32)}
    usual, flushing = (tw.compile((halved(), weights), flush_denormals=flag) for flag in (False, True))
    least = np.full(SIZE, 2.0**-126, np.float32)

    def call(k: int) -> bool:
        if k % 2:
            return not np.asarray(flushing(least)).any() and rounding() == 2.0**-127
        return bool((np.asarray(usual(least)) == 2.0**-127).all()) and rounding() == 2.0**-127

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(200)))


@pytest.mark.parametrize(
    ("name", "words"), [("x86-64-v3", ("stmxcsr", "ldmxcsr")), ("generic-aarch64", ("mrs", "msr"))]
)
def test_code(name: str, words: tuple[str, ...]) -> None:
    target = Target.parse(name)
    text = assembly(emit_entry((), (), (), (), target, flushes=True), target)
    assert all(word in text.lower() for word in words)
    assert not any(word in assembly(emit_entry((), (), (), (), target), target).lower() for word in words)


def test_other_machines_are_refused() -> None:
    with pytest.raises(tw.Error, match="cannot be flushed there: expected x86_64 or aarch64"):
        emit_entry((), (), (), (), Target.parse("rv64gcv"), flushes=True)
    with pytest.raises(tw.Error, match="flush_denormals"):
        tw.compile((halved(), {}), flush_denormals="yes")  # type: ignore[arg-type]
