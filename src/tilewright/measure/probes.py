"""The loops that measure a machine, as LLVM text, compiled here for the host.

float fma(i64 n, float m, float a)       n rounds of independent multiply-adds, nothing from memory
i64   chain(i64 n, i64 a, i64 b)         n rounds of dependent integer operations of one cycle each: counts cycles
i64   read(ptr p, i64 n, i64 passes)     n rounds of vector loads, all over `passes` times
i64   move(ptr p, ptr q, i64 part, i64 n, i64 passes)   several streams read, some of them written, `Way` says how
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.support.classes import dataclass
from tilewright.support.machine import Machine

CHAIN_STEPS = 64
"""The number of cycles that one round of `chain` takes."""
READ_VECTORS = 8
"""The number of vectors that one round of `read` loads."""
MOVE_BYTES = 128
"""The number of bytes of each stream that one round of a `move` reads or writes."""
_SUMS = 8
"""The least number of accumulators, so that no addition waits for the one before."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a `move` goes through memory: it reads `reads` streams at once, at least one, and writes what it reads to
    `writes` streams. `distance`: how many bytes ahead it prefetches, 0 for none; `past`: whether writes bypass the
    caches."""

    reads: int
    writes: int
    distance: int = 0
    past: bool = False


def fma_text(lanes: int, chains: int) -> str:
    """The LLVM text of `float fma(i64 n, float m, float a)`: n rounds of `chains` independent multiply-adds on `lanes`
    floats."""
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
    """The LLVM text of `i64 chain(i64 n, i64 a, i64 b)`: n rounds of CHAIN_STEPS additions and exclusive ors, each of
    which needs the one before."""
    steps = []
    for k in range(CHAIN_STEPS):
        op, operand = ("add", "%a") if k % 2 == 0 else ("xor", "%b")
        steps.append(f"  %x{k + 1} = {op} i64 %x{k}, {operand}")
    phi = f"  %x0 = phi i64 [ 1, %entry ], [ %x{CHAIN_STEPS}, %loop ]"
    lines = ["define i64 @chain(i64 %n, i64 %a, i64 %b) {", "entry:", *_loop("i", "%n", [phi], steps)]
    return "\n".join([*lines, f"  ret i64 %x{CHAIN_STEPS}", "}"])


def read_text(lanes: int) -> str:
    """The LLVM text of `i64 read(ptr p, i64 n, i64 passes)`: `passes` times n rounds of READ_VECTORS vectors of `lanes`
    words."""
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


def move_text(name: str, lanes: int, way: Way) -> str:
    """The LLVM text of `i64 NAME(ptr p, ptr q, i64 part, i64 n, i64 passes)`, which moves vectors of `lanes` elements:
    `passes` times n rounds; stream s reads from p + s * part, or writes to q + s * part."""
    vector, size = f"<{lanes} x i32>", 4 * lanes
    count = MOVE_BYTES // size
    sums = range(max(way.reads, _SUMS // way.reads * way.reads))
    each = len(sums) // way.reads
    lines = [f"define i64 @{name}(ptr %p, ptr %q, i64 %part, i64 %n, i64 %passes) {{\nentry:"]
    lines += [f"  %end = mul i64 %n, {MOVE_BYTES}"]
    for stream, base in [*((f"p{s}", "%p") for s in range(way.reads)), *((f"q{s}", "%q") for s in range(way.writes))]:
        lines += [
            f"  %o{stream} = mul i64 %part, {stream[1:]}",
            f"  %{stream} = getelementptr i8, ptr {base}, i64 %o{stream}",
        ]
    lines += ["  br label %pass", "pass:", "  %j = phi i64 [ 0, %entry ], [ %j1, %next ]"]
    lines += [f"  %u{k} = phi {vector} [ zeroinitializer, %entry ], [ %z{k}, %next ]" for k in sums]
    lines += ["  br label %loop", "loop:", "  %i = phi i64 [ 0, %pass ], [ %i1, %loop ]"]
    lines += [f"  %x{k} = phi {vector} [ %u{k}, %pass ], [ %z{k}, %loop ]" for k in sums]
    latest = {k: f"%x{k}" for k in sums}
    for s in range(way.reads):
        lines += [f"  %a{s} = getelementptr i8, ptr %p{s}, i64 %i"]
        for line in range(0, MOVE_BYTES if way.distance else 0, 64):
            lines += [f"  %h{s}.{line} = getelementptr i8, ptr %a{s}, i64 {way.distance + line}"]
            lines += [f"  call void @llvm.prefetch.p0(ptr %h{s}.{line}, i32 0, i32 3, i32 1)"]
        for v in range(count):
            lines += [f"  %a{s}.{v} = getelementptr i8, ptr %a{s}, i64 {v * size}"]
            lines += [f"  %l{s}.{v} = load volatile {vector}, ptr %a{s}.{v}, align {size}"]
            k = s * each + v % each
            if s >= way.writes:
                lines += [f"  %y{s}.{v} = or {vector} {latest[k]}, %l{s}.{v}"]
                latest[k] = f"%y{s}.{v}"
    note = ", !nontemporal !0" if way.past else ""
    for s in range(way.writes):
        lines += [f"  %b{s} = getelementptr i8, ptr %q{s}, i64 %i"]
        for v in range(count):
            lines += [f"  %b{s}.{v} = getelementptr i8, ptr %b{s}, i64 {v * size}"]
            lines += [f"  store {vector} %l{s % way.reads}.{v}, ptr %b{s}.{v}, align {size}{note}"]
    lines += [f"  %z{k} = or {vector} {latest[k]}, zeroinitializer" for k in sums]
    lines += [f"  %i1 = add i64 %i, {MOVE_BYTES}", "  %more = icmp ult i64 %i1, %end"]
    lines += ["  br i1 %more, label %loop, label %next", "next:", "  %j1 = add i64 %j, 1"]
    lines += ["  %again = icmp ult i64 %j1, %passes", "  br i1 %again, label %pass, label %done", "done:"]
    lines += [f"  %s{k} = or {vector} %z{k}, {f'%s{k - 1}' if k else 'zeroinitializer'}" for k in sums]
    lines += [f"  %r = extractelement {vector} %s{len(sums) - 1}, i32 0", "  %w = zext i32 %r to i64"]
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
    """The compiled probe loops; they live as long as this object. ctypes releases the interpreter lock during a call.

    `flops` and `bytes` are those of one round of `fma` (a multiply-add counts two) and of `read`.
    """

    def __init__(self, machine: Machine) -> None:
        lanes, chains = machine.vector_lanes, machine.vector_registers - 4
        self._engine = _engine(machine, [fma_text(lanes, chains), chain_text(), read_text(lanes)])
        i64, f32 = ctypes.c_int64, ctypes.c_float
        self.fma = _function(self._engine, "fma", f32, i64, f32, f32)
        self.chain = _function(self._engine, "chain", i64, i64, i64, i64)
        self.read = _function(self._engine, "read", i64, ctypes.c_void_p, i64, i64)
        self.lanes = lanes
        self.flops = 2 * lanes * chains
        self.bytes = 4 * lanes * READ_VECTORS


class Moves:
    """The compiled loops that move memory: `by_way[way](p, q, part, n, passes)`, addresses and parts multiples of 128
    bytes."""

    def __init__(self, machine: Machine, ways: Sequence[Way]) -> None:
        prefetch = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\n!0 = !{i32 1}"
        texts = [move_text(f"move{k}", machine.vector_lanes, way) for k, way in enumerate(ways)]
        self._engine = _engine(machine, [prefetch, *texts])
        pointer, i64 = ctypes.c_void_p, ctypes.c_int64
        self.by_way = {
            way: _function(self._engine, f"move{k}", i64, pointer, pointer, i64, i64, i64) for k, way in enumerate(ways)
        }


def _engine(machine: Machine, texts: Sequence[str]) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple().create_target_machine(cpu=machine.cpu, features=features, opt=3)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly("\n".join(texts)), target)
    engine.finalize_object()
    return engine


def _function(engine: Any, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    return ctypes.CFUNCTYPE(result, *arguments)(engine.get_function_address(name))
