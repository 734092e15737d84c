"""Loops for accelerators whose programs run them outside of a processor's code: buffers have places, nothing else
changed.

A code generator that makes instructions of whole nests wants them as the schedule has them: no loop is split where a
condition holds, and none is merged or pipelined.
"""

from __future__ import annotations

from tilewright.ir.loops import PrimFunc
from tilewright.ir.verify import verify_func
from tilewright.transform.loops.blocks import lower_blocks
from tilewright.transform.loops.capacity import check_capacities
from tilewright.transform.loops.compact import compact_buffers
from tilewright.transform.loops.simplify import simplify_loops


def placed_loops(func: PrimFunc) -> PrimFunc:
    """A scheduled function as loops with an `Allocate` for each buffer. Raises ScheduleError where buffers do not fit
    into the memory that they are in."""
    verify_func(func)
    return check_capacities(compact_buffers(simplify_loops(lower_blocks(func))))
