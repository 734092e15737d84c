"""The native entries of a program: `tw_run`, `tw_prepare` and `tw_shapes` as LLVM text.

    void tw_run(ptr slots, ptr dims, i64 tid, i64 nthreads, ptr barrier)       slots: ptr[], dims: i64[]
    void tw_prepare(ptr slots, ptr dims, i64 tid, i64 nthreads, ptr barrier)
    void tw_shapes(ptr dims, ptr out)                                          out: i64[]

An entry calls its kernels in order, their buffers taken from the slot table and their symbols from `dims`. Kernels that
threads share end with a barrier; where such a one follows those of one thread, a barrier stands before it. `tw_prepare`
knows no symbols: its `dims` are the first step to execute and the one to stop before, so that a caller may look at some
weights, pack them while they are in the cache, and go on with the next. `tw_shapes` fills `out` with expressions of the
symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.codegen.llvm_expr import evaluate
from tilewright.codegen.llvm_state import State
from tilewright.codegen.llvm_text import Writer, identifier
from tilewright.codegen.llvm_values import Value
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, Var
from tilewright.ir.target import Target

_SIGNATURE = "ptr noalias readonly %slots, ptr noalias readonly %dims, i64 %tid, i64 %nthreads, ptr %barrier"


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call: the kernel's symbol, indices into the slot table for its buffers, into `dims` for its symbols; whether
    one thread alone executes it, without a barrier."""

    kernel: str
    slots: tuple[int, ...]
    symbols: tuple[int, ...] = ()
    alone: bool = False


def emit_entry(
    run: Sequence[KernelCall],
    prepare: Sequence[KernelCall],
    symbols: Sequence[Var],
    shapes: Sequence[Expr],
    target: Target,
) -> str:
    """The text of a module with the three entries.

    Args:
        run, prepare: the steps of `tw_run` and `tw_prepare`; the latter have no symbols.
        symbols: the symbols that `dims` holds, in order.
        shapes: what `tw_shapes` writes, in order: byte sizes of the run temporaries, then the outputs' dimensions.
    """
    arity = {step.kernel: (len(step.slots), len(step.symbols)) for step in (*run, *prepare)}
    lines = [f'target triple = "{target.triple}"', ""]
    lines += _calls("tw_run", run)
    lines += _ranged_calls("tw_prepare", prepare)
    lines += _shapes(symbols, shapes, target)
    for kernel in sorted(arity):
        buffers, integers = arity[kernel]
        arguments = ["ptr"] * buffers + ["i64"] * (integers + 2) + ["ptr"]
        lines.append(f"declare void {identifier(kernel, '@')}({', '.join(arguments)}) nounwind")
    if any("@tw_barrier(" in line for line in lines):
        lines.append("declare void @tw_barrier(ptr, i64) nounwind")
    return "\n".join(lines) + "\n"


def _calls(name: str, steps: Sequence[KernelCall]) -> list[str]:
    out = Writer()
    pointers: dict[int, str] = {}
    integers: dict[int, str] = {}
    waiting = False
    for step in steps:
        waiting = _call(out, step, waiting, pointers, integers)
    return _function(name, out)


def _ranged_calls(name: str, steps: Sequence[KernelCall]) -> list[str]:
    """Calls from the step `dims[0]` to before the step `dims[1]`."""
    out = Writer()
    first, last = _dim(out, 0), _dim(out, 1)
    places = " ".join(f"i64 {k}, label %step{k}" for k in range(len(steps)))
    out.effect(f"switch i64 {first}, label %done [ {places} ]")
    waiting = False
    for k, step in enumerate(steps):
        out.start(f"step{k}")
        waiting = _call(out, step, waiting, {}, {})
        more = out.inst(f"icmp slt i64 {k + 1}, {last}")
        out.branch(more, f"step{k + 1}" if k + 1 < len(steps) else "done", "done")
    out.start("done")
    return _function(name, out)


def _function(name: str, out: Writer) -> list[str]:
    return [f"define void @{name}({_SIGNATURE}) nounwind {{", "entry:", *out.lines, "  ret void", "}", ""]


def _call(out: Writer, step: KernelCall, waiting: bool, pointers: dict[int, str], integers: dict[int, str]) -> bool:
    """Write one call; gives whether the other threads would have to wait for it. `pointers` and `integers` hold what
    has been loaded."""
    if waiting and not step.alone:
        out.effect("call void @tw_barrier(ptr %barrier, i64 %nthreads)")
    for slot in step.slots:
        if slot not in pointers:
            where = out.inst(f"getelementptr inbounds ptr, ptr %slots, i64 {slot}")
            pointers[slot] = out.inst(f"load ptr, ptr {where}, align 8", f"slot{slot}")
    for index in step.symbols:
        if index not in integers:
            integers[index] = _dim(out, index)
    arguments = [f"ptr {pointers[k]}" for k in step.slots] + [f"i64 {integers[k]}" for k in step.symbols]
    arguments += ["i64 %tid", "i64 %nthreads", "ptr %barrier"]
    out.effect(f"call void {identifier(step.kernel, '@')}({', '.join(arguments)})")
    return step.alone


def _dim(out: Writer, index: int) -> str:
    where = out.inst(f"getelementptr inbounds i64, ptr %dims, i64 {index}")
    return out.inst(f"load i64, ptr {where}, align 8", f"dim{index}")


def _shapes(symbols: Sequence[Var], shapes: Sequence[Expr], target: Target) -> list[str]:
    s = State(target, frozenset(), evaluate)
    for index, symbol in enumerate(symbols):
        s.env[symbol] = Value(i64, (_dim(s.out, index),))
    for index, e in enumerate(shapes):
        value = s.scalar(e)
        where = s.out.inst(f"getelementptr inbounds i64, ptr %out, i64 {index}")
        s.out.effect(f"store i64 {value}, ptr {where}, align 8")
    head = "define void @tw_shapes(ptr noalias readonly %dims, ptr noalias %out) nounwind {"
    declarations = [s.out.declarations[k] for k in sorted(s.out.declarations)]
    return [head, "entry:", *s.out.lines, "  ret void", "}", "", *declarations]
