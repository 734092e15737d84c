"""The native entries: kernels called in order with the right slots and symbols, shapes computed."""

from __future__ import annotations

import ctypes

import numpy as np

from tilewright.codegen.llvm.emit import compile_llvm, emit_llvm
from tilewright.codegen.llvm.entry import emit_entry
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Buffer, Var, const, maximum
from tilewright.ir.loops import For, PrimFunc, Store
from tilewright.native.link import Library
from tilewright.runtime.specs import StepSpec
from tilewright.targets.target import Target

HOST = Target.host()
n, m = Var("n", lo=1), Var("m", lo=1)


def link(*texts: str) -> tuple[object, dict[str, int]]:
    barrier = ctypes.CFUNCTYPE(None)(lambda: None)
    address = ctypes.cast(barrier, ctypes.c_void_p).value
    assert address is not None
    names = ("tw_run", "tw_prepare", "tw_shapes")
    objects = {f"object{i}": compile_llvm(text, HOST) for i, text in enumerate(texts)}
    library = Library(objects, names, {"tw_barrier": address})
    return (library, barrier), library.addresses


def kernel(name: str, factor: float) -> PrimFunc:
    i, j = Var("i"), Var("j")
    a, b = Buffer("a", f32, (n, m)), Buffer("b", f32, (n, m))
    return PrimFunc(name, (a, b), For(i, n, For(j, m, Store(b, (i, j), a[i, j] * factor + 1.0), "vectorized")))


def test_steps_run_in_order() -> None:
    run = [StepSpec("twice", (0, 2), (1, 0)), StepSpec("thrice", (2, 1), (1, 0))]
    prepare = [StepSpec("twice", (1, 0), (0, 0))]
    shapes = [n * m * 4, maximum(n, m), (n + 15) // 16 * 64, const(7)]
    texts = [emit_llvm(kernel("twice", 2.0), HOST), emit_llvm(kernel("thrice", 3.0), HOST)]
    keep, address = link(emit_entry(run, prepare, [m, n], shapes, HOST), *texts)
    x = np.arange(15, dtype="f").reshape(3, 5)
    out, temp, dims = np.zeros_like(x), np.zeros_like(x), np.array([5, 3], np.int64)
    slots = (ctypes.c_void_p * 3)(x.ctypes.data, out.ctypes.data, temp.ctypes.data)
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    entry(address["tw_run"])(slots, dims.ctypes.data, 0, 1, None)
    np.testing.assert_array_equal(out, (x * 2 + 1) * 3 + 1)
    result = np.zeros(4, np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address["tw_shapes"])(dims.ctypes.data, result.ctypes.data)
    assert result.tolist() == [60, 5, 64, 7]
    dims[:] = 1 << 40
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address["tw_shapes"])(dims.ctypes.data, result.ctypes.data)
    assert result.tolist() == [-1, 1 << 40, 1 << 42, 7], "a product of sizes wraps"
    del keep


def test_prepare_runs_some_of_its_steps() -> None:
    x = Buffer("x", f32, (const(4),))
    i = Var("i")
    func = PrimFunc("grow", (x,), For(i, const(4), Store(x, (i,), x[i] * 2.0 + 1.0)))
    steps = [StepSpec("grow", (k,)) for k in range(4)]
    keep, address = link(emit_entry([], steps, [], [], HOST), emit_llvm(func, HOST))
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    for first, last in [(0, 0), (0, 1), (1, 3), (0, 4), (3, 4), (4, 4), (2, 9), (7, 9), (-1, 4)]:
        values = np.zeros((4, 4), np.float32)
        slots = (ctypes.c_void_p * 4)(*(row.ctypes.data for row in values))
        entry(address["tw_prepare"])(slots, np.array([first, last], np.int64).ctypes.data, 0, 1, None)
        # A step outside of the program is none; the first of a range is always executed.
        expected = [1.0 if first == k or 0 <= first < k < last else 0.0 for k in range(4)]
        assert values[:, 0].tolist() == expected, (first, last)
    del keep


def test_an_empty_program() -> None:
    keep, address = link(emit_entry([], [], [], [], HOST))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address["tw_shapes"])(None, None)
    del keep


def test_a_barrier_stands_where_shared_kernels_follow_those_of_one_thread() -> None:
    run = [StepSpec(name, (0,), alone=name.startswith("alone")) for name in ("alone1", "alone2", "shared1", "alone3")]
    text = emit_entry(run, [StepSpec("shared2", (0,))], [], [], HOST)
    calls = [line.split("@")[1].split("(")[0] for line in text.splitlines() if " call void @" in line]
    assert calls == ["alone1", "alone2", "tw_barrier", "shared1", "alone3", "shared2"]
