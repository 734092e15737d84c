"""Check that the buffers in a memory described by `te.scope` fit into it."""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.loops import Allocate, PrimFunc, Stmt
from tilewright.ir.rewrite import walk
from tilewright.ir.scopes import Memory, find_memory
from tilewright.support.errors import ScheduleError


def check_capacities(func: PrimFunc) -> PrimFunc:
    """Check a function whose buffers are placed, and return it. Raises ScheduleError if buffers that live at the same
    time need more bytes than their memory has, or if a size is not constant."""
    results = (find_memory(s.buffer.scope) for s in walk(func.body) if isinstance(s, Allocate))
    for memory in dict.fromkeys(m for m in results if m is not None):
        need = _most(func.body, memory)
        if need > memory.capacity:
            raise ScheduleError(
                f"what lives in {memory.name!r} at once does not fit",
                expected=f"at most {memory.capacity} bytes",
                got=f"{need} bytes",
                loops=str(func),
            )
    return func


def _most(s: Stmt, memory: Memory) -> int:
    """The most bytes of a memory that are in use at the same time inside a statement."""
    inside = max((_most(child, memory) for child in s.children), default=0)
    if not isinstance(s, Allocate) or s.buffer.scope != memory.name:
        return inside
    size = as_int(s.buffer.size)
    if size is None:
        raise ScheduleError(f"buffer {s.buffer.name!r} lies in {memory.name!r} and has no constant size")
    return inside + size * s.buffer.dtype.itemsize
