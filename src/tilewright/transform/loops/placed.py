"""Loops for accelerators with a code generator of whole nests: buffers are allocated, nothing else is changed.

Such a code generator needs the nests as scheduled: loops are not partitioned, merged or pipelined.
"""

from __future__ import annotations

from tilewright.ir.loops import PrimFunc
from tilewright.ir.verify import verify_func
from tilewright.transform.loops.blocks import lower_blocks
from tilewright.transform.loops.capacity import check_capacities
from tilewright.transform.loops.compact import compact_buffers
from tilewright.transform.loops.simplify import simplify_loops


def placed_loops(func: PrimFunc) -> PrimFunc:
    """A scheduled function as loops with an `Allocate` for each buffer. Raises ScheduleError if buffers exceed the
    capacity of their memory."""
    verify_func(func)
    return check_capacities(compact_buffers(simplify_loops(lower_blocks(func))))
