"""Runs scheduled functions as native code, on one thread or several."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.codegen.llvm.llvm_run import Native
from tests.schedule.programs import Arrays
from tilewright import te
from tilewright.codegen.llvm.emit import compile_llvm, emit_llvm, kernel_symbols
from tilewright.ir.expr import Expr, Var, as_int
from tilewright.ir.loops import NTHREADS, PrimFunc
from tilewright.ir.rewrite import substitute
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops

TARGET = Target.host()


class Barrier:
    """`tw_barrier` for Python threads. Native code calls it without the interpreter's lock; ctypes takes it."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(1)
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self._wait)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def prepare(self, threads: int) -> None:
        self._barrier = threading.Barrier(threads, timeout=30)

    def _wait(self, _: Any, threads: int) -> None:
        self._barrier.wait()


BARRIER = Barrier()


def run_native(func: PrimFunc, arrays: Arrays, opt: int = 1, threads: int = 1) -> None:
    """Lower, compile and call, in place."""
    flat = lower_loops(func, TARGET)
    image = compile_llvm(emit_llvm(flat, TARGET), TARGET, opt)
    kernel = Native(image, flat.name, {"tw_barrier": BARRIER.address})
    symbols = {v: value for b in func.params for v, value in zip(b.shape, arrays[b.name].shape, strict=True)}
    values: dict[Var, Expr] = {v: te.const(x) for v, x in symbols.items() if isinstance(v, Var)}
    values[NTHREADS] = te.const(threads)
    memory = [arrays[b.name] for b in func.params]
    for b in flat.params[len(func.params) :]:
        shape = [as_int(substitute(x, values)) or 0 for x in b.shape]
        memory.append(_aligned(shape, b.dtype.numpy))
    call_threads(kernel, memory, [symbols[v] for v in kernel_symbols(flat)], threads)


def call_threads(kernel: Native, memory: Sequence[Any], sizes: Sequence[int], threads: int) -> None:
    """Call a kernel from so many threads at once."""
    types = [ctypes.c_void_p] * len(memory) + [ctypes.c_int64] * (len(sizes) + 2) + [ctypes.c_void_p]
    function = ctypes.CFUNCTYPE(None, *types)(kernel.address)
    pointers = [a.ctypes.data for a in memory]
    if threads == 1:
        function(*pointers, *sizes, 0, 1, None)
        return
    BARRIER.prepare(threads)
    workers = [
        threading.Thread(target=function, args=(*pointers, *sizes, tid, threads, None)) for tid in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _aligned(shape: list[int], dtype: Any) -> np.ndarray[Any, Any]:
    """Unwritten memory, as the runtime gives it."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.full(size + 64, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)
