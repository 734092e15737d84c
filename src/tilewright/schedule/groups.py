"""Groups of blocks that are moved together: those on the dependence paths from some buffers to others."""

from __future__ import annotations

from collections.abc import Set

from tilewright.ir.loops import For, PrimFunc
from tilewright.ir.rewrite import walk
from tilewright.schedule.recording import LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.state import blocks_in, read_buffers, refuse, written_buffers
from tilewright.support.errors import ScheduleError


def blocks_between(func: PrimFunc, inputs: Set[str], outputs: Set[str], include_inputs: bool) -> tuple[str, ...]:
    """The blocks, in program order, that compute the buffers `outputs` from the buffers `inputs`, directly or through
    other such blocks; with `include_inputs` also the blocks that write the inputs."""
    blocks = list(blocks_in(func.body))
    reads = {b.name: {x.name for x in read_buffers(b)} for b in blocks}
    writes = {b.name: {x.name for x in written_buffers(b)} for b in blocks}
    borders = {b.name for b in blocks if writes[b.name] & inputs}
    produced = set(inputs)
    following: set[str] = set()
    for block in blocks:
        if block.name not in borders and reads[block.name] & produced:
            following.add(block.name)
            produced |= writes[block.name]
    needed = set(outputs)
    before: set[str] = set()
    for block in reversed(blocks):
        if writes[block.name] & needed:
            before.add(block.name)
            needed |= reads[block.name] if block.name not in borders else set()
    members = before & (following | borders if include_inputs else following)
    return tuple(b.name for b in blocks if b.name in members)


def compute_at(schedule: Schedule, members: tuple[str, ...], loop: LoopRef) -> None:
    """Move blocks into a loop of their reader, the last block first.

    Before::

        for i in 0..n:
            block B(vi = i): B[vi] = A[vi] + 1
        for i2 in 0..n:
            block C(vi2 = i2): C[vi2] = B[vi2] * 2
        for i3 in 0..n:
            block D(vi3 = i3): D[vi3] = C[vi3] - 1

    After `compute_at` of B and C at `i3`::

        for i3 in 0..n:
            block B(vi = i3): B[vi] = A[vi] + 1
            block C(vi2 = i3): C[vi2] = B[vi2] * 2
            block D(vi3 = i3): D[vi3] = C[vi3] - 1

    Raises ScheduleError, with the schedule as it was, where one of them cannot be moved there, or one is in a loop of
    another.
    """
    _require_separate(schedule.func, set(members))
    saved = schedule.copy()
    try:
        for name in reversed(members):
            schedule.compute_at(name, loop)
    except ScheduleError:
        schedule.restore(saved)
        raise


def _require_separate(func: PrimFunc, members: set[str]) -> None:
    """Raise ScheduleError if a loop contains several members and nothing else, since moving them one by one would
    remove the loop."""
    for loop in (s for s in walk(func.body) if isinstance(s, For)):
        inside = {b.name for b in blocks_in(loop.body)}
        if len(inside) > 1 and inside <= members:
            hint = "move the group first, then its stages into one another"
            raise refuse(func, f"loop {loop.var.name!r} is around {', '.join(sorted(inside))} of one group", hint=hint)


__all__ = ["blocks_between", "compute_at"]
