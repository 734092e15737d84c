"""Prefetching: a loop with the notes `prefetch = "buffer"` and `prefetch_bytes = n` asks for what it reads n bytes on.

    for k in 0..128 { prefetch = "w", prefetch_bytes = 4096 }     each step: the lines of its part of w, 4096 bytes on

A note `prefetch_lines` = 1 says how many those lines are, where the loop goes over rows and reads a piece of each.
A note `prefetch_level` = 1 brings them into the first level of cache, otherwise they go into the second.
It is a hint without meaning for the program; addresses past the buffer do no harm. Hardware follows streams of its own
accord but stops at the end of a page and sees a stream late; weights that come from memory gain up to a fifth.
"""

from __future__ import annotations

from tilewright.codegen.llvm_memory import address, buffer_offset
from tilewright.codegen.llvm_state import State
from tilewright.codegen.polynomial import add, constant
from tilewright.ir.expr import Load, const
from tilewright.ir.loops import For
from tilewright.ir.rewrite import exprs_of, loads, substitute, walk

LINE = 64
"""Bytes that one prefetch brings."""

MOST_LINES = 8
SECOND_LEVEL = 2
"""Where the bytes go if the note `prefetch_level` says nothing else."""


def emit_prefetch(s: State, stmt: For) -> None:
    """The hints of one iteration, at its start."""
    notes = dict(stmt.annotations)
    source, ahead = notes.get("prefetch"), notes.get("prefetch_bytes", 0)
    if not isinstance(source, str) or not isinstance(ahead, int) or s.lanes is not None:
        return
    load = _read(stmt, source)
    if load is None:
        return
    level = notes.get("prefetch_level", SECOND_LEVEL)
    locality = 3 if level == 1 else 2
    size = load.buffer.dtype.itemsize
    start = buffer_offset(s, load.buffer, load.indices)
    stride = start.get((s.atoms.number(stmt.var),), 0) * size
    symbol = s.out.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    lines = notes.get("prefetch_lines", min(max(1, stride // LINE), MOST_LINES))
    for line in range(lines if isinstance(lines, int) else 1):
        place, _ = address(s, load.buffer, add(start, constant((ahead + line * LINE) // size)))
        s.out.effect(f"call void {symbol}(ptr {place}, i32 0, i32 {locality}, i32 1)")


def _read(stmt: For, name: str) -> Load | None:
    """The first element of the buffer that an iteration reads."""
    first = {inner.var: const(0) for inner in walk(stmt.body) if isinstance(inner, For)}
    for inner in walk(stmt.body):
        for e in exprs_of(inner):
            for load in loads(e):
                if load.buffer.name == name:
                    return Load(load.buffer, tuple(substitute(i, first) for i in load.indices))
    return None
