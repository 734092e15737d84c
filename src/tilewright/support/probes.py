"""The loops that measure a machine, as LLVM text, compiled here for the host.

float fma(i64 n, float m, float a)       n rounds of independent multiply-adds, nothing from memory
i64   chain(i64 n, i64 a, i64 b)         n rounds of dependent integer operations of one cycle each: counts cycles
i64   read(ptr p, i64 n, i64 passes)     n rounds of vector loads, all over `passes` times
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tilewright.support.machine import Machine

CHAIN_STEPS = 64
"""Cycles of one round of `chain`."""
READ_VECTORS = 8
"""Vectors that one round of `read` loads."""


def fma_text(lanes: int, chains: int) -> str:
    """`float fma(i64 n, float m, float a)`: n rounds of `chains` independent multiply-adds on `lanes` floats."""
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
            *_loop("i", "%n", phis, steps),
            *sums,
            f"  %r = extractelement {vector} %s{chains - 1}, i32 0",
            "  ret float %r",
            "}",
        ]
    )


def chain_text() -> str:
    """`i64 chain(i64 n, i64 a, i64 b)`: n rounds of CHAIN_STEPS additions and exclusive ors, each after the other."""
    steps = []
    for k in range(CHAIN_STEPS):
        op, operand = ("add", "%a") if k % 2 == 0 else ("xor", "%b")
        steps.append(f"  %x{k + 1} = {op} i64 %x{k}, {operand}")
    phi = f"  %x0 = phi i64 [ 1, %entry ], [ %x{CHAIN_STEPS}, %loop ]"
    lines = ["define i64 @chain(i64 %n, i64 %a, i64 %b) {", "entry:", *_loop("i", "%n", [phi], steps)]
    return "\n".join([*lines, f"  ret i64 %x{CHAIN_STEPS}", "}"])


def read_text(lanes: int) -> str:
    """`i64 read(ptr p, i64 n, i64 passes)`: `passes` times n rounds of READ_VECTORS vectors of `lanes` words."""
    vector = f"<{lanes} x i32>"
    names = range(READ_VECTORS)
    size = 4 * lanes
    lines = [f"define i64 @read(ptr %p, i64 %n, i64 %passes) {{\nentry:\n  %step = mul i64 %n, {READ_VECTORS * size}"]
    lines += ["  %end = getelementptr i8, ptr %p, i64 %step", "  br label %pass", "pass:"]
    lines += ["  %j = phi i64 [ 0, %entry ], [ %j1, %next ]"]
    lines += [f"  %u{c} = phi {vector} [ zeroinitializer, %entry ], [ %y{c}, %next ]" for c in names]
    lines += ["  br label %loop", "loop:", "  %q = phi ptr [ %p, %pass ], [ %q1, %loop ]"]
    lines += [f"  %x{c} = phi {vector} [ %u{c}, %pass ], [ %y{c}, %loop ]" for c in names]
    for c in names:
        lines += [f"  %p{c} = getelementptr i8, ptr %q, i64 {c * size}"]
        # Volatile: the words are all the same, and nothing may be left out because of that.
        lines += [f"  %l{c} = load volatile {vector}, ptr %p{c}, align {size}"]
        lines += [f"  %y{c} = or {vector} %x{c}, %l{c}"]
    lines += [f"  %q1 = getelementptr i8, ptr %q, i64 {READ_VECTORS * size}", "  %more = icmp ult ptr %q1, %end"]
    lines += ["  br i1 %more, label %loop, label %next", "next:", "  %j1 = add i64 %j, 1"]
    lines += ["  %again = icmp ult i64 %j1, %passes", "  br i1 %again, label %pass, label %done", "done:"]
    lines += [f"  %s{c} = or {vector} %y{c}, {f'%s{c - 1}' if c else 'zeroinitializer'}" for c in names]
    lines += [f"  %r = extractelement {vector} %s{READ_VECTORS - 1}, i32 0", "  %w = zext i32 %r to i64"]
    return "\n".join([*lines, "  ret i64 %w", "}"])


def _loop(counter: str, count: str, phis: list[str], steps: list[str]) -> list[str]:
    return [
        "  br label %loop",
        "loop:",
        f"  %{counter} = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *phis,
        *steps,
        f"  %next = add i64 %{counter}, 1",
        f"  %more = icmp ult i64 %next, {count}",
        "  br i1 %more, label %loop, label %done",
        "done:",
    ]


class Probes:
    """The compiled loops; they live as long as this object. ctypes releases the interpreter lock during a call.

    `flops` and `bytes` are those of one round of `fma` (a multiply-add counts two) and of `read`.
    """

    def __init__(self, machine: Machine) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        lanes, chains = machine.vector_lanes, machine.vector_registers - 4
        features = llvm.get_host_cpu_features().flatten()
        target = llvm.Target.from_default_triple().create_target_machine(cpu=machine.cpu, features=features, opt=3)
        module = llvm.parse_assembly("\n".join([fma_text(lanes, chains), chain_text(), read_text(lanes)]))
        self._engine = llvm.create_mcjit_compiler(module, target)
        self._engine.finalize_object()
        i64, f32 = ctypes.c_int64, ctypes.c_float
        self.fma = self._function("fma", f32, i64, f32, f32)
        self.chain = self._function("chain", i64, i64, i64, i64)
        self.read = self._function("read", i64, ctypes.c_void_p, i64, i64)
        self.lanes = lanes
        self.flops = 2 * lanes * chains
        self.bytes = 4 * lanes * READ_VECTORS

    def _function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        return ctypes.CFUNCTYPE(result, *arguments)(self._engine.get_function_address(name))
