"""Kernels called on all their buffers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.programs import AFFINE, TARGET
from tilewright.codegen.llvm.entry import entry_of_kernel
from tilewright.ir.expr import Var
from tilewright.native.link import compile_text
from tilewright.runtime.kernel import KernelParam, NativeFunction, Workspace
from tilewright.runtime.specs import StepSpec, SymbolSpec
from tilewright.support.errors import CallError
from tilewright.targets.target import Target

# y = a x + y, and w[tid] = n as scratch
AXPY = """
declare void @tw_barrier(ptr, i64)
define void @axpy(ptr %a, ptr %x, ptr noalias %y, ptr noalias %w, i64 %n, i64 %tid, i64 %nthreads, ptr %b) {
entry:
  %pw = getelementptr i64, ptr %w, i64 %tid
  store i64 %n, ptr %pw
  %lo = mul i64 %n, %tid
  %start = udiv i64 %lo, %nthreads
  %tid1 = add i64 %tid, 1
  %hi = mul i64 %n, %tid1
  %end = udiv i64 %hi, %nthreads
  %av = load float, ptr %a
  br label %test
test:
  %i = phi i64 [%start, %entry], [%i1, %body]
  %go = icmp slt i64 %i, %end
  br i1 %go, label %body, label %done
body:
  %px = getelementptr float, ptr %x, i64 %i
  %py = getelementptr float, ptr %y, i64 %i
  %xv = load float, ptr %px
  %yv = load float, ptr %py
  %m = fmul float %xv, %av
  %s = fadd float %m, %yv
  store float %s, ptr %py
  %i1 = add i64 %i, 1
  br label %test
done:
  call void @tw_barrier(ptr %b, i64 %nthreads)
  ret void
}
"""

PARAMS = (KernelParam("a", "f32", ()), KernelParam("x", "f32", ("n",)), KernelParam("y", "f32", ("n",), written=True))


def function(
    text: str,
    name: str,
    params: tuple[KernelParam, ...],
    most: int,
    work: tuple[Workspace, ...] = (),
    threads: int = 1,
) -> NativeFunction:
    """A kernel over parameters whose one symbol is n."""
    step = StepSpec(name, tuple(range(len(params) + len(work))), (0,), label=name)
    entry = entry_of_kernel(step, (Var("n"),), [w.nbytes for w in work], Target.host())
    objects = {"kernel": compile_text(text), "entry": compile_text(entry)}
    symbols = (SymbolSpec("n", 0, most),)
    return NativeFunction(objects, step, params, symbols, target=TARGET, workspace=work, threads=threads)


def axpy(threads: int = 1) -> NativeFunction:
    return function(AXPY, "axpy", PARAMS, 1 << 20, (Workspace(((8, ()),), per_thread=True),), threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_axpy(threads: int) -> None:
    f = axpy(threads)
    a = np.float32(2.5).reshape(())
    for n in (0, 1, 5, 1000, 5):
        x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
        assert f(a, x, y) is None
        assert (y == 2.5 * x + 1).all()


def test_refused() -> None:
    f = axpy()
    a, x, y = np.ones((), np.float32), np.ones(8, np.float32), np.ones(8, np.float32)
    for args, message in (
        ((a, x), "wrong number of inputs"),
        ((a, x, y[:7]), r"input 'y': dimension 0 disagrees with input 'x': expected n = 8, got 7"),
        ((a, x, x), "input 'y': is written to and shares memory with 'x'"),
        ((a, np.ones(4, np.float32), np.ones(8, np.float32)[::2]), "must be contiguous"),
        ((a, x, y.astype(np.float64)), "wrong element type"),
    ):
        with pytest.raises(CallError, match=message):
            f(*args)
    frozen = y.copy()
    frozen.flags.writeable = False
    with pytest.raises(CallError, match="writable"):
        f(a, x, frozen)
    assert (y == 1).all()


def test_inputs_may_be_the_same_and_strided() -> None:
    f = axpy()
    x = np.arange(16, dtype=np.float32)
    y = np.zeros(8, np.float32)
    f(np.ones((), np.float32), x[::2], y)
    assert (y == x[::2]).all()


def test_several_outputs_without_workspace() -> None:
    params = (
        KernelParam("t", "f32", ("n",)),
        KernelParam("w", "f32", (3, 2)),
        KernelParam("y", "f32", ("n", 3), written=True),
    )
    f = function(AFFINE, "affine", params, 1 << 20, threads=2)
    t, w, y = np.ones(4, np.float32), np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros((4, 3), np.float32)
    f(t, w, y)
    assert (y == w[:, 0] + w[:, 1]).all()
    assert "affine" in str(f.model.profile(t, w, y))
