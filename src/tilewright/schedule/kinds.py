"""Primitives that change how a loop runs: unroll, vectorize, parallel, bind; and annotate, which attaches notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from tilewright.ir.expr import as_int
from tilewright.ir.loops import For, LoopKind, PrimFunc
from tilewright.ir.notes import BlockNote, LoopNote, Note, thread_named, with_note
from tilewright.ir.notetable import check, make
from tilewright.schedule.common import require_common, widened
from tilewright.schedule.dependence import check_independent, require_any_order
from tilewright.schedule.primitive import on_loop
from tilewright.schedule.state import (
    block_path,
    blocks_in,
    last_block,
    last_loop,
    loop_path,
    loops_on,
    outside_blocks,
    refuse,
    refused,
    replace_at,
)
from tilewright.support.errors import VerifyError

MAX_UNROLL = 4096
"""The largest number of iterations of an unrolled loop."""
N = TypeVar("N", bound=Note)
Fields = Mapping[str, object]
EMPTY: Fields = {}


@on_loop
def unroll(func: PrimFunc, loop: str) -> PrimFunc:
    """Expand a loop of constant extent when code is generated.

    Before::

        for i in 0..4:
            block C(vi = i)

    After `unroll("i")`::

        for i in 0..4:  # unrolled
            block C(vi = i)

    Refuses symbolic extents and extents above 4096.
    """
    target = last_loop(loop_path(func, loop))
    extent = as_int(target.extent)
    if extent is None:
        raise refuse(
            func,
            f"cannot unroll loop {loop!r}: its extent {target.extent} is not constant",
            hint="split it by a constant factor and unroll the inner loop",
        )
    if extent > MAX_UNROLL:
        raise refuse(func, f"cannot unroll loop {loop!r}: {extent} copies are too many", expected=f"<= {MAX_UNROLL}")
    return _with_kind(func, loop, "unrolled")


@on_loop
def vectorize(func: PrimFunc, loop: str) -> PrimFunc:
    """Run the iterations of a loop as lanes of vectors.

    Before::

        for i in 0..8:
            block C(vi = i)

    After `vectorize("i")`::

        for i in 0..8:  # vectorized
            block C(vi = i)

    A loop over a reduction is accepted for sums, products, minima and maxima. Its lanes make partial results, so that
    sums and products of floating-point numbers are rounded in another order (`tw.build` remarks it). Refuses symbolic
    extents, loops whose iterations are not independent, and loops inside or around another vectorized loop.
    """
    path = loop_path(func, loop)
    target = last_loop(path)
    if as_int(target.extent) is None:
        raise refuse(
            func,
            f"cannot vectorize loop {loop!r}: its extent {target.extent} is not constant",
            hint="split it by the number of lanes and vectorize the inner loop",
        )
    related = [*loops_on(path[:-1]), *(s for s in outside_blocks(target.body) if isinstance(s, For))]
    for other in related:
        if other.kind == "vectorized":
            raise refuse(func, f"cannot vectorize loop {loop!r}: loop {other.var.name!r} is vectorized already")
    check_independent(func, target, reductions=True)
    return _with_kind(func, loop, "vectorized")


@on_loop
def parallel(func: PrimFunc, loop: str) -> PrimFunc:
    """Share the iterations of a loop among threads.

    Before::

        for i in 0..n:
            block C(vi = i)

    After `parallel("i")`::

        for i in 0..n:  # parallel
            block C(vi = i)

    Refuses reduction loops, loops whose iterations may write the same elements, and loops inside or around another
    parallel loop.
    """
    path = loop_path(func, loop)
    target = last_loop(path)
    for other in loops_on(path[:-1]):
        if other.kind in ("parallel", "vectorized", "unrolled"):
            raise refuse(func, f"cannot parallelize loop {loop!r}: it is inside {other.kind} {other.var.name!r}")
    for stmt in outside_blocks(target.body):
        if isinstance(stmt, For) and stmt.kind == "parallel":
            raise refuse(func, f"cannot parallelize loop {loop!r}: it contains parallel {stmt.var.name!r}")
    check_independent(func, target, reductions=False)
    return _with_kind(func, loop, "parallel")


@on_loop
def bind(func: PrimFunc, loop: str, thread: str) -> PrimFunc:
    """Let a hardware index ("blockIdx.x", "threadIdx.x", ...) run through a loop.

    Before::

        for i in 0..64:
            block C(vi = i)

    After `bind("i", "threadIdx.x")`::

        for i in 0..64:  # threadIdx.x
            block C(vi = i)

    Inside of a loop of threadIdx, a loop of the same index shares among the same threads what fills memory that they
    have in common (`compute_at`); it has no more iterations. What fills such memory inside of the loop, each thread for
    itself so far, is computed for all of them from then on.

    Refuses what `parallel` refuses, unknown indices, and an index that an outer loop of other work is bound to.
    """
    try:
        index = thread_named(thread)
    except VerifyError as error:
        raise refused(func, f"cannot bind loop {loop!r}", error) from error
    path = loop_path(func, loop)
    target = last_loop(path)
    _require_ordinary(func, target, "bind")
    what = f"cannot bind loop {loop!r} to {thread!r}"
    inner = [s for s in outside_blocks(target.body) if isinstance(s, For)]
    for outer, within in (*((x, target) for x in loops_on(path[:-1])), *((target, x) for x in inner)):
        other = within if outer is target else outer
        if other.thread == thread and thread != "vthread":
            require_common(func, outer, within, index, f"{what}: loop {other.var.name!r} has it already")
    check_independent(func, target, reductions=False, partial=True)
    return widened(func, replace_at(func, path, replace(target, kind="thread", thread=index)), loop, what)


def annotate_loop(
    func: PrimFunc, loop: str, note: Note | str, values: Sequence[object] = (), named: Fields = EMPTY
) -> tuple[PrimFunc, LoopNote]:
    """Put a note on a loop for later passes; an earlier note of its class is replaced. `note` may be a name
    in text, and then its fields are given in order or by name. Returns the function and the note.

    Before::

        for i in 0..n:

    After `annotate("i", Unroll(4))`::

        for i in 0..n:  # @unroll(times=4)

    Refuses unknown notes, notes that belong elsewhere, and fields of the wrong type (`ir/notes.py`).
    """
    path = loop_path(func, loop)
    target = last_loop(path)
    placed = _note(func, LoopNote, note, values, named)
    return replace_at(func, path, replace(target, notes=with_note(target.notes, placed))), placed


def annotate_block(
    func: PrimFunc, block: str, note: Note | str, values: Sequence[object] = (), named: Fields = EMPTY
) -> tuple[PrimFunc, BlockNote]:
    """Put a note on a block for later passes; an earlier note of its class is replaced. Returns (the function, the
    note); arguments are as in `annotate_loop`."""
    path = block_path(func, block)
    target = last_block(path)
    placed = _note(func, BlockNote, note, values, named)
    return replace_at(func, path, replace(target, notes=with_note(target.notes, placed))), placed


def _note(func: PrimFunc, place: type[N], note: Note | str, values: Sequence[object], named: Fields) -> N:
    """`note` itself, or a new note with the name `note` and the fields `values` and `named`. Raises ScheduleError
    unless it is a note of the kind `place`."""
    try:
        return make(note, place, values, named) if isinstance(note, str) else check(note, place)
    except VerifyError as error:
        raise refused(func, "cannot annotate", error) from error


def _with_kind(func: PrimFunc, loop: str, kind: LoopKind) -> PrimFunc:
    path = loop_path(func, loop)
    target = last_loop(path)
    _require_ordinary(func, target, f"mark as {kind}")
    if not any(True for _ in blocks_in(target.body)):
        raise refuse(func, f"loop {loop!r} contains no block")
    return replace_at(func, path, replace(target, kind=kind))


def _require_ordinary(func: PrimFunc, loop: For, what: str) -> None:
    if loop.kind != "serial":
        raise refuse(func, f"cannot {what} loop {loop.var.name!r}: it is already {loop.thread or loop.kind}")
    if what != "mark as unrolled":
        require_any_order(func, loop, what)


class KindPrimitives:
    """A class with the primitives that change how loops run, from which `Schedule` and `Stage` inherit."""

    __slots__ = ()
    unroll = unroll
    vectorize = vectorize
    parallel = parallel
    bind = bind
