"""Runs generated LLVM text in this process: compile, link as the runtime does, call with NumPy arrays."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.codegen.llvm.emit import compile_llvm, emit_llvm, kernel_symbols
from tilewright.ir.loops import PrimFunc
from tilewright.native.link import Library
from tilewright.targets.target import Target

_BARRIER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


class Native:
    """A linked object with one kernel; `address` holds while it lives."""

    def __init__(
        self, image: bytes, name: str, imports: Mapping[str, int] | None = None, others: Sequence[bytes] = ()
    ) -> None:
        objects = {name: image} | {f"other{i}": each for i, each in enumerate(others)}
        self._library = Library(objects, [name], imports)
        self.address = self._library[name]


_barriers_met = []


@_BARRIER
def _count_barrier(_: Any, threads: int) -> None:
    _barriers_met.append(threads)


def native(func: PrimFunc, target: Target | None = None) -> Native:
    """`func` compiled and linked."""
    target = target or Target.host()
    image = compile_llvm(emit_llvm(func, target), target)
    barrier = ctypes.cast(_count_barrier, ctypes.c_void_p).value
    assert barrier is not None
    return Native(image, func.name, {"tw_barrier": barrier})


def call(kernel: Native, arrays: Sequence[np.ndarray], symbols: Sequence[int] = (), threads: int = 1) -> None:
    """Call a kernel as every one of `threads` threads, one after another (right where no barrier lies between)."""
    types = [ctypes.c_void_p] * len(arrays) + [ctypes.c_int64] * (len(symbols) + 2) + [ctypes.c_void_p]
    function = ctypes.CFUNCTYPE(None, *types)(kernel.address)
    for tid in range(threads):
        function(*(a.ctypes.data for a in arrays), *symbols, tid, threads, None)


def run(func: PrimFunc, *arrays: np.ndarray, target: Target | None = None, threads: int = 1, **symbols: int) -> None:
    """Compile and call; arrays are the parameters in order, written in place."""
    values = [symbols[v.name] for v in kernel_symbols(func)]
    call(native(func, target), arrays, values, threads)


def call_in_threads(func: PrimFunc, arrays: Sequence[np.ndarray], symbols: Sequence[int], threads: int) -> None:
    """Call a kernel from `threads` threads at once, with a barrier at which they wait."""
    target = Target.host()
    meeting = threading.Barrier(threads, timeout=30)
    callback = _BARRIER(lambda _, count: meeting.wait() and None)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    kernel = Native(compile_llvm(emit_llvm(func, target), target), func.name, {"tw_barrier": address})
    types = [ctypes.c_void_p] * len(arrays) + [ctypes.c_int64] * (len(symbols) + 2) + [ctypes.c_void_p]
    function = ctypes.CFUNCTYPE(None, *types)(kernel.address)
    pointers = [a.ctypes.data for a in arrays]
    workers = [
        threading.Thread(target=function, args=(*pointers, *symbols, tid, threads, None)) for tid in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
