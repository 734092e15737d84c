"""The buffers that statements access, by which barriers are placed between threads that share work."""

from __future__ import annotations

from dataclasses import field

from tilewright.ir.loops import Allocate, Intrinsic, Stmt, Store
from tilewright.ir.rewrite import exprs_of, loads, walk
from tilewright.support.classes import dataclass


@dataclass(slots=True)
class Touched:
    """The names of the buffers that some thread has read and written since the last barrier."""

    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def conflicts(self, other: Touched) -> bool:
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)

    def include(self, other: Touched) -> None:
        self.reads |= other.reads
        self.writes |= other.writes


def touched(stmt: Stmt, *, own: bool = False) -> Touched:
    """The buffers that a statement reads and writes; `own`: by its own expressions only, without inner statements.
    Buffers that it allocates are left out, except those that threads of a block share."""
    result = Touched()
    for inner in [stmt] if own else walk(stmt):
        for e in exprs_of(inner):
            result.reads.update(x.buffer.name for x in loads(e))
        match inner:
            case Store(buffer):
                result.writes.add(buffer.name)
            case Intrinsic(_, outputs, inputs):
                result.writes.update(r.buffer.name for r in outputs)
                result.reads.update(r.buffer.name for r in (*outputs, *inputs))
    private = (
        set() if own else {x.buffer.name for x in walk(stmt) if isinstance(x, Allocate) and x.buffer.scope != "shared"}
    )
    return Touched(result.reads - private, result.writes - private)
