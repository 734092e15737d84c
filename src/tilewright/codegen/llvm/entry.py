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

from tilewright.arith import simplify
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import Value
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, Var, const, is_const, product
from tilewright.ir.rewrite import variables
from tilewright.native.text import Writer, identifier
from tilewright.runtime.manifest import StepSpec, Work
from tilewright.targets.target import Target

_SIGNATURE = "ptr noalias readonly %slots, ptr noalias readonly %dims, i64 %tid, i64 %nthreads, ptr %barrier"


def emit_entry(
    run: Sequence[StepSpec],
    prepare: Sequence[StepSpec],
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
    lines += _calls("tw_run", run, symbols, target)
    lines += _ranged_calls("tw_prepare", prepare, target)
    lines += _shapes(symbols, shapes, target)
    for kernel in sorted(arity):
        buffers, integers = arity[kernel]
        arguments = ["ptr"] * buffers + ["i64"] * (integers + 2) + ["ptr"]
        lines.append(f"declare void {identifier(kernel, '@')}({', '.join(arguments)}) nounwind")
    if any("@tw_barrier(" in line for line in lines):
        lines.append("declare void @tw_barrier(ptr, i64) nounwind")
    return "\n".join(lines) + "\n"


class _Caller:
    """Writes calls into one entry. What it has loaded from the two tables holds until `forget`."""

    def __init__(self, symbols: Sequence[Var], target: Target) -> None:
        self.state = State(target, frozenset(), evaluate)
        self.out = self.state.out
        self.symbols = symbols
        self.pointers: dict[tuple[int, Expr], str] = {}
        self.integers: dict[int, str] = {}

    def forget(self) -> None:
        self.pointers.clear()
        self.integers.clear()

    def call(self, step: StepSpec, waiting: bool) -> bool:
        """Write one call; gives whether the other threads would have to wait for it."""
        if waiting and not step.alone:
            self.out.effect("call void @tw_barrier(ptr %barrier, i64 %nthreads)")
        shifts = [self.shift(work) for work in step.shifts] or [const(0)] * len(step.slots)
        arguments = [f"ptr {self.pointer(*where)}" for where in zip(step.slots, shifts, strict=True)]
        arguments += [f"i64 {self.integer(index)}" for index in step.symbols]
        arguments += ["i64 %tid", "i64 %nthreads", "ptr %barrier"]
        self.out.effect(f"call void {identifier(step.kernel, '@')}({', '.join(arguments)})")
        return step.alone

    def shift(self, work: Work) -> Expr:
        """A polynomial of the symbols as an expression."""
        named = {v.name: v for v in self.symbols}
        total: Expr = const(0)
        for coefficient, powers in work:
            total = total + coefficient * product([named[name] for name in powers])
        return simplify(total)

    def pointer(self, slot: int, shift: Expr) -> str:
        found = self.pointers.get((slot, shift))
        if found is None and is_const(shift, 0):
            where = self.out.inst(f"getelementptr inbounds ptr, ptr %slots, i64 {slot}")
            found = self.out.inst(f"load ptr, ptr {where}, align 8", f"slot{slot}")
        elif found is None:
            base = self.pointer(slot, const(0))
            self.state.env.update((v, Value(i64, (self.integer(self.symbols.index(v)),))) for v in variables(shift))
            found = self.out.inst(f"getelementptr inbounds i8, ptr {base}, i64 {self.state.scalar(shift)}")
        self.pointers[slot, shift] = found
        return found

    def integer(self, index: int) -> str:
        if index not in self.integers:
            self.integers[index] = _dim(self.out, index)
        return self.integers[index]


def _calls(name: str, steps: Sequence[StepSpec], symbols: Sequence[Var], target: Target) -> list[str]:
    caller = _Caller(symbols, target)
    waiting = False
    for step in steps:
        waiting = caller.call(step, waiting)
    return _function(name, caller.out)


def _ranged_calls(name: str, steps: Sequence[StepSpec], target: Target) -> list[str]:
    """Calls from the step `dims[0]` to before the step `dims[1]`."""
    caller = _Caller((), target)
    out = caller.out
    first, last = _dim(out, 0), _dim(out, 1)
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
    return [f"define void @{name}({_SIGNATURE}) nounwind {{", "entry:", *out.lines, "  ret void", "}", ""]


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
