"""Primitives on buffers: set_scope, cache_read, cache_write."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import Buffer, Expr, Load, Var
from tilewright.ir.loops import Block, BlockIter, For, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.notes import Scope, scope_named
from tilewright.ir.rewrite import fresh_name, map_expr, map_stmt, replace_buffers, uses
from tilewright.ir.scopes import sharing
from tilewright.schedule.common import widened
from tilewright.schedule.move import loop_name
from tilewright.schedule.primitive import on_block
from tilewright.schedule.state import (
    Path,
    block_names,
    block_path,
    blocks_in,
    intrinsics_in,
    last_block,
    loops_on,
    map_blocks,
    nest,
    read_buffers,
    readers_of,
    refuse,
    refuse_external,
    refused,
    replace_at,
    used_names_of,
    writers_of,
    written_buffers,
)
from tilewright.support.errors import VerifyError

EMPTY = Seq(())


@on_block
def set_scope(func: PrimFunc, block: str, scope: str, buffer: str | None = None) -> PrimFunc:
    """Say where the buffer that a block writes lives: "global" (memory), "local" (registers, if it can be) or "padded"
    (memory whose inner dimensions may grow, so that planes do not meet in the same sets of the cache).

    Before::

        buffers B: f32[64]

    After `set_scope("B", "local")`::

        buffers B: f32[64] local

    `buffer` chooses one when the block writes several. Refuses parameters of the function and unknown scopes.
    """
    target = written_by(func, block, buffer)
    new = _scope(func, f"cannot set the scope of {target.name!r}", scope)
    if target in func.params:
        raise refuse(func, f"cannot set the scope of {target.name!r}: it is a parameter of the function")
    if new != "global":
        for user in (*writers_of(func, target), *readers_of(func, target)):
            refuse_external(func, user, f"cannot set the scope of {target.name!r}")
    result = swap_buffer(func, target, replace(target, scope=new))
    for loop in loops_on(block_path(func, block)):
        if loop.thread in sharing(new):
            result = widened(func, result, loop.var.name, f"cannot set the scope of {target.name!r}")
    return result


def _scope(func: PrimFunc, what: str, name: str) -> Scope:
    try:
        return scope_named(name)
    except VerifyError as error:
        raise refused(func, what, error) from error


@on_block
def cache_write(func: PrimFunc, block: str, scope: str, buffer: str | None = None) -> tuple[PrimFunc, str]:
    """Let a block write a new buffer, which another block copies to the old one.

    Before::

        for i in 0..64:
            block C(vi = i): C[vi] = A[vi] * 2

    After `cache_write("C", "local")`::

        for i in 0..64:
            block C(vi = i): C_local[vi] = A[vi] * 2
        for C_0 in 0..64:
            block C_local(vC_0 = C_0): C[vC_0] = C_local[vC_0]

    Returns the copying block. It stands after the outermost loop around the block. Refuses blocks inside a nest with
    other blocks that use the buffer, and buffers that several blocks write.
    """
    path = block_path(func, block)
    target = written_by(func, block, buffer)
    memory = _scope(func, f"cannot cache what {block!r} writes", scope)
    if len(writers_of(func, target)) > 1:
        raise refuse(
            func,
            f"cannot cache what block {block!r} writes: other blocks write {target.name!r} too",
            hint="decompose_reduction comes after cache_write",
        )
    if memory != "global":
        refuse_external(func, last_block(path), f"cannot cache what block {block!r} writes in {scope!r} memory")
    root = _root_of(path)
    for b in blocks_in(path[root]):
        if b.name != block and target in read_buffers(b):
            raise refuse(
                func, f"cannot cache what block {block!r} writes: {b.name!r} reads {target.name!r} in the same loops"
            )
    used_names, names = used_names_of(func), block_names(func)
    cache = Buffer(fresh_name(f"{target.name}_{scope}", used_names), target.dtype, target.shape, memory)
    copied = replace_at(func, path, replace_buffers(last_block(path), {target: cache}))
    copy = copy_nest(fresh_name(cache.name, names), cache, target, used_names)
    nest_path = root_path(block_path(copied, block))
    result = replace_at(copied, nest_path, seq((nest_path[-1], copy)))
    return replace(result, buffers=(*result.buffers, cache)), cache_block_name(copy)


def cache_read(
    func: PrimFunc, block: str, buffer: str, scope: str, consumers: tuple[str, ...] | None = None
) -> tuple[PrimFunc, str]:
    """Let a block (and the blocks named in `consumers`) read a copy of a buffer.

    Before::

        for i in 0..64:
            block C(vi = i): C[vi] = A[vi] * 2

    After `cache_read("C", "A", "local")`::

        for i0 in 0..64:
            block A_local(vi0 = i0): A_local[vi0] = A[vi0]
        for i in 0..64:
            block C(vi = i): C[vi] = A_local[vi] * 2

    Returns the copying block. It stands before the outermost loop around the first consumer. Refuses buffers that the
    block does not read, and buffers that are written in the same loops or later.
    """
    names = (block, *(consumers or ()))
    paths = {name: block_path(func, name) for name in names}
    readable = {b.name: b for b in read_buffers(last_block(paths[block]))}
    if buffer not in readable:
        raise refuse(
            func, f"cannot cache {buffer!r} for block {block!r}: it does not read it; it reads {', '.join(readable)}"
        )
    memory = _scope(func, f"cannot cache {buffer!r}", scope)
    for path in paths.values():
        refuse_external(func, last_block(path), f"cannot cache {buffer!r}")
    if any(intrinsics_in(p[-1]) for p in paths.values()):
        raise refuse(func, f"cannot cache {buffer!r} for block {block!r}: an intrinsic reads it", hint="tensorize last")
    source = readable[buffer]
    order = [b.name for b in blocks_in(func.body)]
    first = min(names, key=order.index)
    place = root_path(paths[first])
    start = order.index(next(blocks_in(place[-1])).name)
    for writer in writers_of(func, source):
        if order.index(writer.name) >= start:
            raise refuse(
                func, f"cannot cache {buffer!r} for block {block!r}: block {writer.name!r} writes it after that place"
            )
    used_names = used_names_of(func)
    cache = Buffer(fresh_name(f"{buffer}_{scope}", used_names), source.dtype, source.shape, memory)
    copy = copy_nest(fresh_name(cache.name, block_names(func)), source, cache, used_names)
    result = replace_at(func, place, seq((copy, place[-1])))
    chosen = set(names)

    def redirect(b: Block) -> Stmt:
        return redirect_reads(b, source, cache) if b.name in chosen else b

    body = map_blocks(result.body, redirect)
    return replace(result, body=body, buffers=(*result.buffers, cache)), cache_block_name(copy)


def written_by(func: PrimFunc, block: str, buffer: str | None = None) -> Buffer:
    """The buffer that block `block` writes: the one named `buffer` if it writes several."""
    written = written_buffers(last_block(block_path(func, block)))
    if buffer is None and len(written) == 1:
        return written[0]
    match = next((b for b in written if b.name == buffer), None)
    if match is None:
        names = ", ".join(b.name for b in written)
        what = f"does not write {buffer!r}" if buffer is not None else "writes several buffers, name one"
        raise refuse(func, f"block {block!r} {what}; it writes {names}")
    return match


def swap_buffer(func: PrimFunc, old: Buffer, new: Buffer) -> PrimFunc:
    """`func` with buffer `new`, of equal rank, in place of `old`."""
    if old == new:
        return func
    body = map_blocks(func.body, lambda b: replace_buffers(b, {old: new}) if uses(b, old) else b)
    params = tuple(new if b == old else b for b in func.params)
    buffers = tuple(new if b == old else b for b in func.buffers)
    return replace(func, params=params, body=body, buffers=buffers)


def redirect_reads(block: Block, old: Buffer, new: Buffer) -> Stmt:
    """`block` with its loads, but not its stores, of buffer `old` redirected to `new`."""
    memo: dict[Expr, Expr] = {}

    def on(e: Expr) -> Expr | None:
        return Load(new, e.indices) if isinstance(e, Load) and e.buffer == old else None

    return map_stmt(block, lambda _: None, lambda e: map_expr(e, on, memo))


def copy_nest(name: str, source: Buffer, target: Buffer, used_names: set[str]) -> Stmt:
    """Loops around a block `name` that copy the buffer `source` to `target`, over the shape of `target`. New names are
    added to `used_names`."""
    iters: list[BlockIter] = []
    loops: list[For] = []
    for k, extent in enumerate(target.shape):
        var = Var(fresh_name(f"v{source.name}_{k}", used_names))
        loop = Var(fresh_name(loop_name(var), used_names))
        iters.append(BlockIter(var, extent, "spatial", loop))
        loops.append(For(loop, extent, EMPTY))
    point = tuple(it.var for it in iters)
    return nest(loops, Block(name, tuple(iters), Store(target, point, Load(source, point))))


def cache_block_name(stmt: Stmt) -> str:
    """The name of the only block in `stmt`."""
    return next(blocks_in(stmt)).name


def _root_of(path: Path) -> int:
    """The index in `path` of the outermost loop, or of the block itself if no loop is around it."""
    return next(k for k, s in enumerate(path) if isinstance(s, For | Block))


def root_path(path: Path) -> Path:
    return path[: _root_of(path) + 1]


class MemoryPrimitives:
    """A class with the primitives on buffers, from which `Schedule` and `Stage` inherit."""

    __slots__ = ()
    set_scope = set_scope
    cache_write = cache_write
