"""Widen stages that fill memory shared by threads, whatever the order in which a schedule binds loops and sets scopes.

A stage that is computed inside of loops of threads, into memory that they share, is computed for all of them. If the
loop is bound (or the scope set) after the stage was moved there, the stage still computes one thread's part: then it is
moved again.
"""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.loops import Block, For, PrimFunc
from tilewright.ir.scopes import Thread, sharing
from tilewright.schedule.dependence import is_private
from tilewright.schedule.move import compute_at
from tilewright.schedule.state import (
    block_path,
    blocks_in,
    depends_on,
    last_block,
    last_loop,
    loop_path,
    loops_on,
    own_loops,
    refuse,
    written_buffers,
)
from tilewright.support.errors import ScheduleError


def is_common(func: PrimFunc, block: Block, loop: For, thread: Thread) -> bool:
    """Whether `block`, inside the loop of threads `loop`, only fills memory that its threads share and that nothing
    outside of the loop uses."""
    written = written_buffers(block)
    return bool(written) and all(thread in sharing(b.scope) and is_private(func, b, loop) for b in written)


def require_common(func: PrimFunc, outer: For, inner: For, thread: Thread, what: str) -> None:
    """Raise ScheduleError, which begins with `what`, unless loop `inner` may be bound to the thread index of the
    enclosing loop `outer`: `inner` may only fill memory that the threads share, and has at most as many iterations."""
    other = next((b for b in blocks_in(inner.body) if not is_common(func, b, outer, thread)), None)
    if other is not None:
        hint = f'{other.name!r} may only write scope "shared", which loop {outer.var.name!r} alone uses'
        raise refuse(func, what, hint=hint)
    sizes = as_int(outer.extent), as_int(inner.extent)
    if sizes[0] is None or sizes[1] is None or sizes[1] > sizes[0]:
        raise refuse(
            func,
            f"{what}, with fewer iterations",
            expected=f"at most {outer.extent} iterations",
            got=inner.extent,
            hint="split the loop by the number of threads and bind the inner part",
        )


def widened(before: PrimFunc, after: PrimFunc, loop: str, what: str) -> PrimFunc:
    """The function `after`, in which `loop` has been bound to threads, with each block that fills memory which these
    threads share moved so that it computes all of that memory, not only one thread's part. `before` is the function
    without the binding. Raises ScheduleError, whose text begins with `what`, where such a block's own loops were
    changed while it computed one thread's part."""
    target = last_loop(loop_path(after, loop))
    thread = target.thread
    if thread is None:
        return after
    for block in reversed(list(blocks_in(target.body))):
        if is_common(after, block, target, thread) and _is_part(after, block, target):
            after = _moved(before, after, block, what)
            target = last_loop(loop_path(after, loop))
    return after


def _is_part(func: PrimFunc, block: Block, loop: For) -> bool:
    """Whether each iteration of `loop` computes a different part of what `block` computes."""
    return any(depends_on(it.binding, loop.var) for it in block.iters)


def _moved(before: PrimFunc, after: PrimFunc, block: Block, what: str) -> PrimFunc:
    path = block_path(after, block.name)
    own = {x.var for x in own_loops(path)}
    place = [x for x in loops_on(path) if x.var not in own][-1].var.name
    hint = "bind loops of threads before the stage's own loops are changed"
    try:
        untouched = _same(compute_at(before, block.name, place), before, block.name)
        result = compute_at(after, block.name, place)
    except ScheduleError as error:
        raise refuse(before, f"{what}: {block.name!r} is one thread's part of what they share", hint=hint) from error
    if not untouched:
        raise refuse(before, f"{what}: {block.name!r} is one thread's part of what they share", hint=hint)
    return result


def _same(one: PrimFunc, other: PrimFunc, name: str) -> bool:
    """Whether block `name` has the same loops in two functions, up to the names of the loops."""
    shapes = []
    for func in (one, other):
        path = block_path(func, name)
        loops = own_loops(path)
        numbers = {x.var.name: k for k, x in enumerate(loops)}
        texts = [(x.extent, x.kind, x.notes) for x in loops]
        block = last_block(path)
        shapes.append((texts, [_numbered(str(it.binding), numbers) for it in block.iters]))
    return shapes[0] == shapes[1]


def _numbered(text: str, numbers: dict[str, int]) -> str:
    for name, k in sorted(numbers.items(), key=lambda x: -len(x[0])):
        text = text.replace(name, f"#{k}")
    return text
