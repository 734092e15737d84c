"""Primitives on how intermediate buffers lie in memory and when they are filled: storage_align and double_buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from tilewright.ir.expr import Buffer, as_int, product
from tilewright.ir.loops import Block, For, PrimFunc
from tilewright.ir.notes import BufferName, Count, DoubleBuffer, FuncNote, InOrder, register, with_note
from tilewright.ir.notes import find as find_note
from tilewright.schedule.dependence import reduce_iters_using
from tilewright.schedule.memory import written_by
from tilewright.schedule.primitive import on_block
from tilewright.schedule.state import (
    Path,
    block_path,
    blocks_in,
    last_block,
    loop_path,
    loops_on,
    own_loops,
    read_buffers,
    readers_of,
    refuse,
    refuse_external,
    replace_at,
    writers_of,
    written_buffers,
)
from tilewright.support.classes import dataclass

MAX_FACTOR = 1 << 16
"""The largest number of elements to which rows are aligned."""


@register
@dataclass(frozen=True, slots=True)
class StorageAlign(FuncNote):
    """Rows of some buffers lie a number of elements apart that leaves a certain remainder.

        B: f32[8, 64] @storage_align(buffers=[B], dimensions=[0], factors=[16], offsets=[1])      ->      B: f32[8, 65]

    Args:
        buffers: the buffers whose rows are enlarged.
        dimensions: of each buffer, the dimension whose neighbouring indices are the rows.
        factors: of each buffer: its rows lie `factor * n + offset` elements apart, for some n.
        offsets: of each buffer, the `offset` in that distance.

    Written by `schedule/storage.py`, read and removed by `transform/loops/compact.py`.
    """

    buffers: tuple[BufferName, ...]
    dimensions: tuple[int, ...]
    factors: tuple[Count, ...]
    offsets: tuple[int, ...]

    def conflicts(self) -> Iterator[str]:
        if len({len(x) for x in (self.buffers, self.dimensions, self.factors, self.offsets)}) != 1:
            yield "there is not one of each for each buffer"


@on_block
def storage_align(
    func: PrimFunc, block: str, dimension: int, factor: int, offset: int = 0, buffer: str | None = None
) -> PrimFunc:
    """Let the rows of the buffer that a block writes lie `factor * n + offset` elements apart.

    Before, as it is lowered::

        alloc B: f32[8, 64]

    After `storage_align("B", 0, 16, 1)`; the elements at the ends of rows are padding::

        alloc B: f32[8, 65]

    `dimension` is the one whose neighbours lie at that distance; negative ones count from the end. Refuses parameters,
    whose layout is the caller's, the last dimension, whose neighbours lie side by side, rows without a constant length,
    and remainders that no number of inner rows leaves.
    """
    target = written_by(func, block, buffer)
    what = f"cannot align the storage of {target.name!r}"
    if target in func.params:
        raise refuse(func, f"{what}: it is a parameter of the function")
    for user in (*writers_of(func, target), *readers_of(func, target)):
        refuse_external(func, user, what)
    rank = len(target.shape)
    place = dimension + rank if dimension < 0 else dimension
    if not 0 <= place < rank - 1:
        raise refuse(func, f"{what}: it has no rows along dimension {dimension}", expected=f"0 to {rank - 2}")
    if not 1 <= factor <= MAX_FACTOR or not 0 <= offset < factor:
        got = f"factor {factor}, offset {offset}"
        raise refuse(
            func, f"{what}: no such rows", expected=f"1 <= factor <= {MAX_FACTOR}, 0 <= offset < factor", got=got
        )
    if as_int(product(target.shape[place + 1 :])) is None:
        raise refuse(func, f"{what}: its rows have no constant length")
    rest = as_int(product(target.shape[place + 2 :])) or 0
    if offset % gcd(rest, factor):
        inner = product(target.shape[place + 2 :])
        raise refuse(func, f"{what}: rows of {inner} elements never leave the remainder {offset} of {factor}")
    return replace(func, notes=with_note(func.notes, _with_rule(func, target, (place, factor, offset))))


def _with_rule(func: PrimFunc, target: Buffer, rule: tuple[int, int, int]) -> StorageAlign:
    """The note `StorageAlign` of `func` with `rule` (dimension, factor, offset) for buffer `target`, which replaces an
    earlier one."""
    old = find_note(func.notes, StorageAlign)
    rules: dict[BufferName, tuple[int, int, int]] = {}
    if old is not None:
        columns = zip(old.buffers, old.dimensions, old.factors, old.offsets, strict=True)
        rules = {name: (d, f, o) for name, d, f, o in columns}
    rules[BufferName(target.name)] = rule
    dimensions, factors, offsets = zip(*rules.values(), strict=True)
    return StorageAlign(tuple(rules), dimensions, factors, offsets)


def require_unaligned(func: PrimFunc, target: Buffer, what: str) -> None:
    """Raise ScheduleError if the storage of `target` is aligned, so that its dimensions may not change."""
    note = find_note(func.notes, StorageAlign)
    if note is not None and target.name in note.buffers:
        raise refuse(func, f"{what}: its storage is aligned by its dimensions", hint="storage_align comes after that")


@on_block
def double_buffer(func: PrimFunc, block: str, buffer: str | None = None) -> PrimFunc:
    """Fill what a block computes in a loop one iteration ahead, in another half of the memory.

    Before::

        for i_0 in 0..8:
            for i in 0..16:
                block B(vi = i_0 * 16 + i): B[vi] = A[vi] + 1
            for i_1 in 0..16:
                block C(vi2 = i_0 * 16 + i_1): C[vi2] = B[vi2] * 2

    After `double_buffer("B")`, as it is lowered::

        alloc B: f32[2, 16]
        for i in 0..16: B[0, i] = A[i] + 1
        for i_0 in 0..8:
            if i_0 + 1 < 8:
                for i in 0..16: B[(i_0 + 1) % 2, i] = A[(i_0 + 1) * 16 + i] + 1
            for i_1 in 0..16: C[i_0 * 16 + i_1] = B[i_0 % 2, i_1] * 2

    The loop is the innermost one around the block and all that reads its buffer. Refuses parameters, buffers in
    registers, other writers, blocks that read what the same loop writes, and loops that are not serial.
    """
    path = block_path(func, block)
    source = last_block(path)
    target = written_by(func, block, buffer)
    what = f"cannot double the buffer {target.name!r}"
    if target in func.params:
        raise refuse(func, f"{what}: it is a parameter of the function")
    if len(writers_of(func, target)) > 1:
        raise refuse(func, f"{what}: other blocks write it too", hint="decompose_reduction comes after double_buffer")
    if target.scope == "local":
        raise refuse(func, f"{what}: it is in registers, whose halves cannot be chosen by a number")
    loop = _enclosing_loop(func, path, source, target, what)
    if len(written_buffers(source)) > 1:
        raise refuse(func, f"{what}: block {block!r} writes other buffers at the same time")
    _require_prefetch(func, path, source, target, loop, what)
    note = find_note(loop.notes, DoubleBuffer)
    names = () if note is None else note.buffers
    if target.name in names:
        raise refuse(func, f"{what}: it is doubled already")
    noted = replace(loop, notes=with_note(loop.notes, DoubleBuffer((*names, BufferName(target.name)))))
    return replace_at(func, loop_path(func, loop.var.name), noted)


def _enclosing_loop(func: PrimFunc, path: Path, source: Block, target: Buffer, what: str) -> For:
    """The innermost loop on `path` that is around the block `source` and all readers of `target`. Raises ScheduleError,
    whose text begins with `what`, if there is none."""
    readers = {b.name for b in readers_of(func, target)} - {source.name}
    if not readers:
        raise refuse(func, f"{what}: no block reads it")
    enclosing = [x for x in loops_on(path) if readers <= {b.name for b in blocks_in(x.body)}]
    if not enclosing:
        raise refuse(
            func, f"{what}: no loop is around block {source.name!r} and what reads it", hint="compute_at first"
        )
    return enclosing[-1]


def _require_prefetch(func: PrimFunc, path: Path, source: Block, target: Buffer, loop: For, what: str) -> None:
    """Raise ScheduleError, whose text begins with `what`, unless the block `source` at the end of `path`, which writes
    `target`, can be computed one iteration of `loop` ahead."""
    name = loop.var.name
    if loop.kind != "serial":
        raise refuse(func, f"{what}: loop {name!r} is {loop.kind}, its iterations do not come one after another")
    if find_note(loop.notes, InOrder) is not None:
        raise refuse(func, f"{what}: loop {name!r} runs over the steps of a recurrence")
    inside = loops_on(path)[[x.var for x in loops_on(path)].index(loop.var) + 1 :]
    if [x.var for x in own_loops(path)][-len(inside) or len(path) :] != [x.var for x in inside]:
        raise refuse(func, f"{what}: other blocks stand in the loops of block {source.name!r}")
    order = [b.name for b in blocks_in(loop.body)]
    early = [b.name for b in readers_of(func, target) if order.index(b.name) < order.index(source.name)]
    if early:
        raise refuse(func, f"{what}: block {early[0]!r} reads it before block {source.name!r}")
    for b in blocks_in(loop.body):
        common = [x.name for x in written_buffers(b) if x in read_buffers(source) and b.name != source.name]
        if common:
            raise refuse(func, f"{what}: block {b.name!r} writes {common[0]!r}, which it reads, in the same loop")
    if reduce_iters_using(source, loop.var):
        raise refuse(func, f"{what}: loop {name!r} drives the reduction of block {source.name!r}")


class StoragePrimitives:
    """A class with the primitives on the storage of buffers, from which `Schedule` and `Stage` inherit."""

    __slots__ = ()
    double_buffer = double_buffer
