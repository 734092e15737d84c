"""A kernel as a function that C programs call: LLVM text with an ordinary C interface around the kernel's own.

    void add(A, ..., n, workspace)                                      the whole, on the calling thread
    void add_thread(A, ..., n, workspace, thread, threads, barrier)     one thread's share of it
    int64_t add_workspace(n, threads)                                   bytes of the workspace

`workspace` is an argument where the kernel needs memory, `add_thread` and the argument `threads` are there where it has
parallel loops. The text needs nothing of the runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.codegen.llvm.emit import emit_llvm, kernel_symbols
from tilewright.codegen.llvm.threads import runs_alone
from tilewright.ir.loops import PrimFunc
from tilewright.native.assembler import I32, I64, PTR, VOID, Function, Module, Value
from tilewright.runtime.kernel import Workspace
from tilewright.runtime.specs import Work
from tilewright.targets.target import Target

ALIGNMENT = 64
"""Each part of a workspace, and the workspace itself, is aligned to this number of bytes."""
_BARRIER = "declare void @tw_barrier(ptr, i64) nounwind\n"
_TRIPLE = "target triple"
_SPINS = 1000
"""The number of times that a waiting thread polls a barrier before it yields its core."""


def standalone(kernel: PrimFunc, name: str, workspace: Sequence[Workspace], target: Target) -> str:
    """The LLVM text of a flat function and of its C interface, whose functions begin with `name`."""
    text = emit_llvm(kernel, target)
    m = Module(target.triple)
    first = text.index(_TRIPLE)
    m.raw(kernel.name, text[text.index("\n", first) :].replace(_BARRIER, ""))
    shared = not runs_alone(kernel)
    if _BARRIER in text:
        _barrier(m)
    symbols = [(f"s{k}", s.name) for k, s in enumerate(kernel_symbols(kernel))]
    buffers = [(f"b{k}", PTR) for k in range(len(kernel.params) - len(workspace))]
    params = [*buffers, *((p, I64) for p, _ in symbols), *([("workspace", PTR)] if workspace else [])]
    thread = [("thread", I64), ("threads", I64), ("barrier", PTR)]

    def body(f: Function, values: Sequence[Value], threads: tuple[Value, Value, Value]) -> None:
        arguments, rest = values[: len(buffers)], values[len(buffers) :]
        sizes = {s: v for (_, s), v in zip(symbols, rest, strict=False)}
        parts = [place for place, _ in _parts(f, workspace, sizes, threads[1], rest[-1])] if workspace else []
        f.call(VOID, kernel.name, *arguments, *parts, *sizes.values(), *(() if target.isa.compact else threads))
        f.ret()

    with m.function(name, VOID, params) as (f, values):
        body(f, values, (f.value(0, I64), f.value(1, I64), f.value(0, PTR)))
    if shared:
        with m.function(f"{name}_thread", VOID, [*params, *thread]) as (f, values):
            body(f, values[:-3], (values[-3], values[-2], values[-1]))
    if workspace:
        sized = [*((p, I64) for p, _ in symbols), *(thread[1:2] if shared else [])]
        with m.function(f"{name}_workspace", I64, sized) as (f, values):
            sizes = {s: v for (_, s), v in zip(symbols, values, strict=False)}
            threads = values[-1] if shared else f.value(1, I64)
            *_, (_, end) = _parts(f, workspace, sizes, threads, f.value(0, PTR))
            f.ret(end)
    return "\n".join([text[: text.index("\n", first)], m.text()])


def exported(kernel: PrimFunc, name: str, workspace: Sequence[Workspace]) -> list[str]:
    """The names of the functions in the C interface that `standalone` writes."""
    shared = not runs_alone(kernel)
    return [name, *([f"{name}_thread"] if shared else []), *([f"{name}_workspace"] if workspace else [])]


def _parts(
    f: Function, workspace: Sequence[Workspace], sizes: Mapping[str, Value], threads: Value, base: Value
) -> Iterator[tuple[Value, Value]]:
    """Emit the addresses of the parts of a workspace at address `base`, for extents `sizes` and a number of `threads`.
    Yields for each part: (its address, the bytes from `base` to its end)."""
    end = f.value(0, I64)
    for w in workspace:
        place = base + end
        nbytes = polynomial(f, w.nbytes, sizes)
        nbytes = nbytes * threads if w.per_thread else nbytes
        end = end + ((nbytes + (ALIGNMENT - 1)) & -ALIGNMENT)
        yield place, end


def _barrier(m: Module) -> None:
    """Define `tw_barrier`, in which all threads wait for each other: the last to arrive resets the count at `barrier`
    and then increments the phase, 8 bytes on, for which the others wait."""
    with m.function("tw_barrier", VOID, [("barrier", PTR), ("nthreads", I64)], local=True) as (f, (barrier, nthreads)):
        phase = f.load(I64, barrier, 8, order="acquire")
        arrived = f.add_atomic(barrier, 1)
        with f.when(arrived.eq(nthreads - 1)):
            f.put(0, I64, barrier, order="monotonic")
            f.store(phase + 1, barrier, 8, order="release")
            f.ret()
        spins = f.var(I64, 0)
        with f.loop() as loop:
            loop.leave_if(f.load(I64, barrier, 8, order="acquire").ne(phase))
            f.pause()
            spins.add(1)
            with f.when(spins.get() > _SPINS):
                f.call(I32, "sched_yield")
        f.ret()


def polynomial(f: Function, work: Work, values: Mapping[str, Value]) -> Value:
    """The value of the polynomial `work`, for values of its symbols by name."""
    total = f.value(0, I64)
    for coefficient, powers in work:
        term = f.value(coefficient, I64)
        for name in powers:
            term = term * values[name]
        total = total + term
    return total
