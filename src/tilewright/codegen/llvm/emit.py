"""PrimFunc to LLVM text. The function is flat: loops, stores, conditions, allocations; no blocks.

    void kernel(ptr buffer0, ..., ptr bufferN, i64 symbol0, ..., i64 tid, i64 nthreads, ptr barrier)
    void kernel(ptr buffer0, ..., ptr bufferN, i64 symbol0, ...)                of a target whose `isa` is `compact`

A kernel is one C function. With several threads all of them call it (see `threads`). The text says everything the
optimiser needs: explicit vectors, `noalias`, alignment, sizes, and which loops to leave alone. The same function gives
the same text.

How the emitter is laid out: `polynomial` (index arithmetic), `vector` (may lanes run side by side), `state` (what is
known where), `expr`, `masks`, `divide`, `address`, `memory`, `ops`, `cast` (values), `stmt`, `intrinsic`, `threads`
(control), `invariants`, `prefetch` (what stands before loops), `optimize` (text to object code).
"""

from __future__ import annotations

from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.optimize import EXPLICIT, assembly, compile_llvm
from tilewright.codegen.llvm.prefetch import before_prefetch
from tilewright.codegen.llvm.state import Pointer, State
from tilewright.codegen.llvm.threads import emit_threads
from tilewright.codegen.llvm.tiles import release
from tilewright.codegen.llvm.transposed import tile_functions
from tilewright.codegen.llvm.values import Value
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Buffer, Var, as_int
from tilewright.ir.loops import NTHREADS, TID, Allocate, For, Intrinsic, PrimFunc, Store
from tilewright.ir.notes import MayAlias, find
from tilewright.ir.rewrite import exprs_of, loads, walk
from tilewright.native.text import identifier
from tilewright.support.depth import deep_recursion
from tilewright.targets.target import Target

STACK_ALIGN = 16
"""Bytes that callers align the stack to, by the calling conventions of all targets."""

__all__ = ["assembly", "compile_llvm", "emit_llvm", "kernel_symbols"]


def kernel_symbols(func: PrimFunc) -> tuple[Var, ...]:
    """The symbols that the kernel takes as integer arguments, in order: the function's, without the thread's number and
    the number of threads."""
    return tuple(v for v in func.symbols if v not in (TID, NTHREADS))


def emit_llvm(func: PrimFunc, target: Target) -> str:
    """The LLVM text of a flat function. Raises CompileError for what has no native code."""
    written = _written(func)
    s = State(target, written, evaluate)
    names = _Names({"tid", "nthreads", "barrier"})
    operands = []
    # A pointwise kernel may write over an operand that dies with it: its parameters may share memory.
    noalias = find(func.notes, MayAlias) is None
    for buffer in func.params:
        operand = identifier(names.take(buffer.name), "%")
        align = max(buffer.align or 0, buffer.dtype.itemsize)
        s.pointers[buffer.name] = Pointer(operand, align & -align)
        operands.append(operand)
    sizes = []
    for symbol in kernel_symbols(func):
        operand = identifier(names.take(symbol.name), "%")
        s.env[symbol] = Value(i64, (operand,))
        s.symbolic = True
        sizes.append(f"i64 {operand}")
    s.env[TID] = Value(i64, ("%tid",))
    s.env[NTHREADS] = Value(i64, ("%nthreads",))
    for loop in walk(func.body) if s.symbolic else ():
        if isinstance(loop, For):
            before_prefetch(s, loop)
    with deep_recursion():
        emit_threads(s, func)
    # What one thread writes and another reads after a barrier changes after the reader's back.
    exchanged = _loaded(func) & written if s.out.calls_of("tw_barrier") > 1 else frozenset[str]()
    arguments = [
        f"ptr {_attributes(b, written, s.pointer(b).align, noalias and b.name not in exchanged)} {operand}"
        for b, operand in zip(func.params, operands, strict=True)
    ]
    arguments += sizes
    if target.isa.compact:  # one thread, which no caller names
        s.out.entry += ["  %tid = add i64 0, 0", "  %nthreads = add i64 0, 1", "  %barrier = inttoptr i64 0 to ptr"]
    else:
        arguments += ["i64 %tid", "i64 %nthreads", "ptr %barrier"]
    return _module(s, func.name, arguments, target, s.out.ordinary_loops == 0 and not _accumulates(func))


def _accumulates(func: PrimFunc) -> bool:
    """Whether a store of the function updates an element of a parameter, which LLVM can hold in a register during a
    loop."""
    names = {b.name for b in func.params}
    return any(
        isinstance(s, Store) and s.buffer.name in names and any(x.buffer == s.buffer for x in loads(s.value))
        for s in walk(func.body)
    )


def _module(s: State, name: str, arguments: list[str], target: Target, explicit: bool) -> str:
    # Registers that are wider than what callers align may be spilled across lines of the cache: a loop with few spills
    # then takes a fifth longer, in one of four processes or in all, as the stack happens to lie.
    realign = ' "stackrealign"' if 4 * target.lanes(4) > STACK_ALIGN else ""
    small = " minsize optsize" if target.isa.compact else ""
    attributes = f"{small}{realign}{_width(target)}"
    lines = [
        *([EXPLICIT] if explicit else []),
        f'target triple = "{target.triple}"',
        "",
        *(f"{name} = private unnamed_addr constant {content}, align 64" for content, name in s.out.tables.items()),
        *tile_functions(s, attributes),
        f"define void {identifier(name, '@')}({', '.join(arguments)}) nounwind{attributes} {{",
        "entry:",
        *s.out.entry,
        *s.out.lines,
        *release(s),
        "  ret void",
        "}",
        "",
        *(s.out.declarations[k] for k in sorted(s.out.declarations)),
        "",
    ]
    for text in s.out.metadata:
        lines.append(text)
    return "\n".join(lines).rstrip("\n") + "\n"


def _width(target: Target) -> str:
    """The LLVM attribute that states the width of SVE registers, in units of 128 bits: without it LLVM splits vectors
    into NEON's."""
    times = target.vector_bits // 128
    return f" vscale_range({times},{times})" if target.has("sve") and target.isa.scalable else ""


def _attributes(buffer: Buffer, written: frozenset[str], align: int, private: bool) -> str:
    words = ["noalias"] if private else []
    if buffer.name not in written:
        words.append("readonly")
    words.append(f"captures(none) align {align}")
    size = as_int(buffer.size)
    if size:
        words.append(f"dereferenceable({size * buffer.dtype.itemsize})")
    return " ".join(words)


def _written(func: PrimFunc) -> frozenset[str]:
    """The names of the buffers that the function may change."""
    members: set[str] = set()
    for stmt in walk(func.body):
        match stmt:
            case Store(buffer):
                members.add(buffer.name)
            case Allocate(buffer):
                members.add(buffer.name)
            case Intrinsic(_, outputs):
                members.update(region.buffer.name for region in outputs)
    return frozenset(members)


def _loaded(func: PrimFunc) -> frozenset[str]:
    """The names of the buffers that the function reads."""
    members: set[str] = set()
    for stmt in walk(func.body):
        for e in exprs_of(stmt):
            members.update(x.buffer.name for x in loads(e))
        if isinstance(stmt, Intrinsic):
            members.update(region.buffer.name for region in (*stmt.outputs, *stmt.inputs))
    return frozenset(members)


class _Names:
    """Assigns distinct names to the function's arguments."""

    def __init__(self, used_names: set[str]) -> None:
        self.used_names = used_names | {"entry"}

    def take(self, name: str) -> str:
        n, candidate = 0, name
        while candidate in self.used_names:
            n += 1
            candidate = f"{name}_{n}"
        self.used_names.add(candidate)
        return candidate
