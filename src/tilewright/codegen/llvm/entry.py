"""The native entries of a program: `tw_run`, `tw_prepare` and `tw_shapes` as LLVM text.

    void tw_run(ptr slots, ptr dims, i64 tid, i64 nthreads, ptr barrier)       slots: ptr[], dims: i64[]
    void tw_prepare(ptr slots, ptr dims, i64 tid, i64 nthreads, ptr barrier)
    void tw_shapes(ptr dims, ptr out)                                          out: i64[]

An entry calls its kernels in order, their buffers taken from the slot table and their symbols from `dims`. Kernels that
threads share end with a barrier; where such a one follows those of one thread, a barrier stands before it. `tw_prepare`
knows no symbols: its `dims` are the first step to execute and the one to stop before, so that a caller may look at some
weights, pack them while they are in the cache, and go on with the next. `tw_shapes` fills `out` with expressions of the
symbols: sizes, and whether what is assumed of them holds.

Loops and branches are basic blocks around the calls inside. Whether there is another iteration, or which branch is
taken, every thread reads from memory, between two barriers: the one that wrote it has done so, and nothing writes it
again before all have read it. So all take the same way. Iterations that nothing known bounds are counted down; where
none is left, `tw_run` asks the function in `control` for more (`runtime/limits.py`), and returns if there are none.
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
) -> str:
    """The text of a module with the three entries.

    Args:
        run, prepare: the steps of `tw_run` and `tw_prepare`; the latter have no symbols.
        symbols: the symbols that `dims` holds, in order.
        shapes: what `tw_shapes` writes, in order: byte sizes of the run temporaries, then the outputs' dimensions.
        assumptions: conditions, of which `tw_shapes` writes after them whether they hold.
        control: the slot of `tw_run` with the address of the words that bound loops.
    """
    arity = {step.kernel: (len(step.slots), len(step.symbols)) for step in (*run, *prepare) if step.region is None}
    lines = [f'target triple = "{target.triple}"', ""]
    lines += _calls("tw_run", run, symbols, target, control)
    lines += _ranged_calls("tw_prepare", prepare, target)
    lines += _shapes(symbols, [*map(guarded, shapes), *(cast(held(a), i64) for a in assumptions)], target)
    for kernel in sorted(arity):
        buffers, integers = arity[kernel]
        arguments = ["ptr"] * buffers + ["i64"] * (integers + 2) + ["ptr"]
        lines.append(f"declare void {identifier(kernel, '@')}({', '.join(arguments)}) nounwind")
    if any("@tw_barrier(" in line for line in lines):
        lines.append("declare void @tw_barrier(ptr, i64) nounwind")
    return "\n".join(lines) + "\n"


def entry_of_kernel(step: StepSpec, symbols: Sequence[Var], sizes: Sequence[Work], target: Target) -> str:
    """The text of a module with the entries of a program that is one call, of a kernel with scratch buffers of these
    sizes."""
    return emit_entry((step,), (), symbols, [polynomial(work, symbols) for work in sizes], target)


def _calls(name: str, steps: Sequence[StepSpec], symbols: Sequence[Var], target: Target, control: int) -> list[str]:
    caller = Caller(symbols, target)
    regions = Regions(caller, control)
    waiting = False
    for step in steps:
        if step.region is not None:
            regions.meet(step.region, waiting)
            waiting = False
        else:
            waiting = caller.call(step, waiting)
    return _function(name, caller.out)


def _ranged_calls(name: str, steps: Sequence[StepSpec], target: Target) -> list[str]:
    """Calls from the step `dims[0]` to before the step `dims[1]`."""
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


def _function(name: str, out: Writer) -> list[str]:
    lines = [*out.entry, *out.lines]
    return [f"define void @{name}({_SIGNATURE}) nounwind {{", "entry:", *lines, "  ret void", "}", ""]


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
