"""The native entries of a program: `tw_run`, `tw_prepare` and `tw_shapes` as LLVM text.

    void tw_run(ptr slots, ptr dims, i64 tid, i64 nthreads, ptr barrier)       slots: ptr[], dims: i64[]
    void tw_prepare(ptr slots, ptr dims, i64 tid, i64 nthreads, ptr barrier)
    void tw_shapes(ptr dims, ptr out)                                          out: i64[]

An entry calls its kernels in order, their buffers taken from the slot table and their symbols from `dims`. Kernels that
threads share end with a barrier; one that follows kernels of a single thread also begins with one. `tw_prepare` knows
no symbols: its `dims` are the first step to execute and the one to stop before, so that a caller may look at some
weights, pack them while they are in the cache, and go on with the next. `tw_shapes` fills `out` with expressions of the
symbols: sizes, and whether what is assumed of them holds.

Loops and branches are basic blocks around the calls inside. Every thread reads from memory, between two barriers,
whether there is another iteration, or which branch is taken: the value is written before the first barrier, and not
overwritten before the second. So all threads take the same branch. Iterations without a known bound are counted down;
if none is left, `tw_run` asks the function in `control` for more (`runtime/limits.py`), and returns if there are none.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith.overflow import guarded, held
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.regions import Caller, Regions, load_dim, polynomial
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import Value
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, Var, cast
from tilewright.native.text import Writer, identifier
from tilewright.runtime.specs import StepSpec, Work
from tilewright.support.errors import TargetError
from tilewright.targets.target import Target

_SIGNATURE = "ptr noalias readonly %slots, ptr noalias readonly %dims, i64 %tid, i64 %nthreads, ptr %barrier"


def emit_entry(
    run: Sequence[StepSpec],
    prepare: Sequence[StepSpec],
    symbols: Sequence[Var],
    shapes: Sequence[Expr],
    target: Target,
    control: int = 0,
    assumptions: Sequence[Expr] = (),
    *,
    flushes: bool = False,
) -> str:
    """The text of a module with the three entries.

    Args:
        run, prepare: the steps of `tw_run` and `tw_prepare`; the latter have no symbols.
        symbols: the symbols that `dims` holds, in order.
        shapes: what `tw_shapes` writes, in order: byte sizes of the run temporaries, then the outputs' dimensions.
        assumptions: conditions, of which `tw_shapes` writes after them whether they hold.
        control: the slot of `tw_run` with the address of the words that bound loops.
        flushes: `tw_run` takes subnormal numbers as zero and makes none, in each thread that calls it, and leaves the
            thread's mode as it was.
    """
    calls = [step for step in (*run, *prepare) if step.region is None]
    arity = {step.kernel: (len(step.slots), len(step.symbols) + len(step.sizes)) for step in calls}
    lines = [f'target triple = "{target.triple}"', ""]
    lines += _calls("tw_run", run, symbols, target, control, local=flushes)
    lines += flushing("tw_run", target) if flushes else []
    lines += _ranged_calls("tw_prepare", prepare, target)
    lines += _shapes(symbols, [*map(guarded, shapes), *(cast(held(a), i64) for a in assumptions)], target)
    for kernel in sorted(arity):
        buffers, integers = arity[kernel]
        arguments = ["ptr"] * buffers + ["i64"] * integers + ([] if target.isa.compact else ["i64", "i64", "ptr"])
        lines.append(f"declare void {identifier(kernel, '@')}({', '.join(arguments)}) nounwind")
    if any("@tw_barrier(" in line for line in lines):
        lines.append("declare void @tw_barrier(ptr, i64) nounwind")
    return "\n".join(lines) + "\n"


def entry_of_kernel(step: StepSpec, symbols: Sequence[Var], sizes: Sequence[Work], target: Target) -> str:
    """The text of a module with the entries of a program that consists of the one kernel call `step`; `sizes` are the
    sizes of its scratch buffers, polynomials of `symbols`."""
    return emit_entry((step,), (), symbols, [polynomial(work, symbols) for work in sizes], target)


def _calls(
    name: str, steps: Sequence[StepSpec], symbols: Sequence[Var], target: Target, control: int, *, local: bool
) -> list[str]:
    caller = Caller(symbols, target)
    regions = Regions(caller, control)
    waiting = False
    for step in steps:
        if step.region is not None:
            regions.meet(step.region, waiting)
            waiting = False
        else:
            waiting = caller.call(step, waiting)
    return _function(name, caller.out, local=local)


def flushing(name: str, target: Target) -> list[str]:
    """The text of the function `name`, which calls that of its steps with subnormal numbers taken as zero: FTZ and DAZ
    of MXCSR (Intel SDM, volume 1, 10.2.3), FZ of FPCR (Arm ARM, C5.2.9). Raises TargetError for other machines."""
    architecture, _, _ = target.triple.partition("-")
    if architecture not in _MODES:
        raise TargetError(
            "subnormal numbers cannot be flushed there", where=target.triple, expected=" or ".join(_MODES)
        )
    type, bits, get, put, declarations = _MODES[architecture]
    arguments = ", ".join(part.split()[0] + " " + part.split()[-1] for part in _SIGNATURE.split(", "))
    return [
        f"define void @{name}({_SIGNATURE}) nounwind {{",
        "entry:",
        f"  %mode = alloca {type}, align 8",
        f"  {get}",
        f"  %before = load {type}, ptr %mode, align 8",
        f"  %flushing = or {type} %before, {bits}",
        *_put(type, "%flushing", put),
        f"  call void @{name}_steps({arguments})",
        *_put(type, "%before", put),
        "  ret void",
        "}",
        "",
        *declarations,
    ]


def _put(type: str, value: str, put: str) -> list[str]:
    return [f"  store {type} {value}, ptr %mode, align 8", f"  {put.replace('%value', value)}"]


_MODES = {
    "x86_64": (
        "i32",
        0x8040,
        "call void @llvm.x86.sse.stmxcsr(ptr %mode)",
        "call void @llvm.x86.sse.ldmxcsr(ptr %mode)",
        ("declare void @llvm.x86.sse.stmxcsr(ptr)", "declare void @llvm.x86.sse.ldmxcsr(ptr)"),
    ),
    "aarch64": (
        "i64",
        1 << 24,
        "%now = call i64 @llvm.aarch64.get.fpcr()\n  store i64 %now, ptr %mode, align 8",
        "call void @llvm.aarch64.set.fpcr(i64 %value)",
        ("declare i64 @llvm.aarch64.get.fpcr()", "declare void @llvm.aarch64.set.fpcr(i64)"),
    ),
}
"""For each architecture: the type of a thread's floating-point mode, the bits that flush subnormal numbers, the LLVM
functions that read the mode to memory and set it."""


def _ranged_calls(name: str, steps: Sequence[StepSpec], target: Target) -> list[str]:
    """The text of the function `name`, which calls the steps with numbers `dims[0]` up to, not including, `dims[1]`."""
    caller = Caller((), target)
    out = caller.out
    first, last = load_dim(out, 0), load_dim(out, 1)
    places = " ".join(f"i64 {k}, label %step{k}" for k in range(len(steps)))
    out.effect(f"switch i64 {first}, label %done [ {places} ]")
    waiting = False
    for k, step in enumerate(steps):
        out.start(f"step{k}")
        caller.forget()
        waiting = caller.call(step, waiting)
        more = out.inst(f"icmp slt i64 {k + 1}, {last}")
        out.branch(more, f"step{k + 1}" if k + 1 < len(steps) else "done", "done")
    out.start("done")
    return _function(name, out)


def _function(name: str, out: Writer, *, local: bool = False) -> list[str]:
    """The text of a function with the instructions of `out`. `local`: it is the internal function `<name>_steps`, which
    another function calls."""
    lines = [*out.entry, *out.lines]
    head = f"internal void @{name}_steps" if local else f"void @{name}"
    kind = " noinline" if local else ""
    return [f"define {head}({_SIGNATURE}) nounwind{kind} {{", "entry:", *lines, "  ret void", "}", ""]


def _shapes(symbols: Sequence[Var], shapes: Sequence[Expr], target: Target) -> list[str]:
    s = State(target, frozenset(), evaluate)
    for index, symbol in enumerate(symbols):
        s.env[symbol] = Value(i64, (load_dim(s.out, index),))
    for index, e in enumerate(shapes):
        value = s.scalar(e)
        where = s.out.inst(f"getelementptr inbounds i64, ptr %out, i64 {index}")
        s.out.effect(f"store i64 {value}, ptr {where}, align 8")
    head = "define void @tw_shapes(ptr noalias readonly %dims, ptr noalias %out) nounwind {"
    declarations = [s.out.declarations[k] for k in sorted(s.out.declarations)]
    return [head, "entry:", *s.out.lines, "  ret void", "}", "", *declarations]
