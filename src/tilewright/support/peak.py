"""The machine's ceilings, measured: multiply-adds a second and copied bytes a second.

The peak comes from a kernel that LLVM compiles here: as many independent chains of fused multiply-adds as the register
file holds, nothing from memory. The bandwidth comes from copying arrays larger than the last cache.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tilewright.support.machine import Machine

_ROUNDS = 7
_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Best of several rounds. GFLOP/s count a multiply-add as two; GB/s count bytes read and bytes written."""

    peak_gflops_one: float
    peak_gflops_all: float
    copy_gbs_one: float
    threads: int


def measure(machine: Machine) -> Ceilings:
    """Measure for about a second, on one core and then on all usable ones."""
    threads = max(1, int(machine.usable))
    kernel = _FmaKernel(machine)
    one = kernel.gflops(1)
    everything = kernel.gflops(threads) if threads > 1 else one
    return Ceilings(one, everything, _copy_bandwidth(machine), threads)


def fma_text(lanes: int, chains: int) -> str:
    """LLVM text of `float fma(i64 n)`: n rounds of `chains` independent multiply-adds on `lanes` floats."""
    vector = f"<{lanes} x float>"
    names = range(chains)
    phis = [f"  %x{c} = phi {vector} [ splat (float {c}.0), %entry ], [ %y{c}, %loop ]" for c in names]
    steps = [f"  %y{c} = call {vector} @llvm.fma.v{lanes}f32({vector} %x{c}, {vector} %m, {vector} %a)" for c in names]
    sums = [f"  %s{c} = fadd {vector} %y{c}, {f'%s{c - 1}' if c else 'zeroinitializer'}" for c in names]
    return "\n".join(
        [
            f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})",
            # The factor and the addend are arguments: constants could be folded into a closed form.
            "define float @fma(i64 %n, float %m0, float %a0) {",
            "entry:",
            f"  %m1 = insertelement {vector} poison, float %m0, i32 0",
            f"  %m = shufflevector {vector} %m1, {vector} poison, <{lanes} x i32> zeroinitializer",
            f"  %a1 = insertelement {vector} poison, float %a0, i32 0",
            f"  %a = shufflevector {vector} %a1, {vector} poison, <{lanes} x i32> zeroinitializer",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
            *phis,
            *steps,
            "  %next = add i64 %i, 1",
            "  %more = icmp ult i64 %next, %n",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *sums,
            f"  %r = extractelement {vector} %s{chains - 1}, i32 0",
            "  ret float %r",
            "}",
        ]
    )


class _FmaKernel:
    """The compiled kernel; it lives as long as this object."""

    def __init__(self, machine: Machine) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        lanes, chains = machine.vector_lanes, machine.vector_registers - 4
        features = llvm.get_host_cpu_features().flatten()
        target = llvm.Target.from_default_triple().create_target_machine(cpu=machine.cpu, features=features, opt=3)
        module = llvm.parse_assembly(fma_text(lanes, chains))
        self._engine = llvm.create_mcjit_compiler(module, target)
        self._engine.finalize_object()
        address = self._engine.get_function_address("fma")
        self._call: Callable[..., float] = ctypes.CFUNCTYPE(
            ctypes.c_float, ctypes.c_int64, ctypes.c_float, ctypes.c_float
        )(address)
        self._flops_a_round = 2 * lanes * chains

    def gflops(self, threads: int) -> float:
        """Best rate of `threads` threads together (ctypes releases the interpreter lock during the call)."""
        rounds = self._rounds_that_take(_SECONDS)
        with ThreadPoolExecutor(threads) as pool:
            times = []
            for _ in range(_ROUNDS):
                start = time.perf_counter()
                list(pool.map(lambda _: self._call(rounds, 0.5, 1.0), range(threads)))
                times.append(time.perf_counter() - start)
        return rounds * self._flops_a_round * threads / min(times) / 1e9

    def _rounds_that_take(self, seconds: float) -> int:
        rounds = 1000
        while True:
            start = time.perf_counter()
            self._call(rounds, 0.5, 1.0)
            spent = time.perf_counter() - start
            if spent >= seconds or rounds >= 1 << 40:
                return rounds
            rounds *= 2


def _copy_bandwidth(machine: Machine) -> float:
    last = max((cache.bytes for cache in machine.caches), default=32 << 20)
    elements = min(max(2 * last, 64 << 20), 512 << 20) // 4
    source = np.ones(elements, np.float32)
    target = np.zeros(elements, np.float32)
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - start)
    return 2 * source.nbytes / min(times) / 1e9
