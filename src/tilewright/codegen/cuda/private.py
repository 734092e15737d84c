"""Split local buffers by threads: if a local buffer has elements for each thread, a thread keeps only its own.

alloc t: f32[16, 16] in local                                      alloc t: f32[] in local
for i in 0..16 thread(threadIdx.y) {                               for i in 0..16 thread(threadIdx.y) {
  for j in 0..16 thread(threadIdx.x) { t[i, j] = ... } }     ->      for j in 0..16 thread(threadIdx.x) { t[] = ... } }
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilewright.ir.expr import Buffer, Expr, Load, Var, as_int
from tilewright.ir.loops import Allocate, For, Intrinsic, PrimFunc, Region, Stmt, Store
from tilewright.ir.rewrite import exprs_of, loads, map_expr, map_stmt, variables, walk, with_children
from tilewright.support.errors import CompileError

MAX_THREADS = 1024
"""The largest number of threads in a block."""

Bound = Mapping[Var, str]
"""The type of mappings from loop variables to the thread indices that their loops are bound to."""


def of_threads(s: Stmt) -> bool:
    """Whether a statement is a loop that is bound to a thread index."""
    return isinstance(s, For) and s.thread is not None and s.thread.startswith("threadIdx")


def has_threads(s: Stmt) -> bool:
    """Whether a statement contains a loop that is bound to a hardware index."""
    return any(isinstance(x, For) and x.thread is not None and x.thread != "vthread" for x in walk(s))


def extents_of_threads(func: PrimFunc) -> dict[str, int]:
    """The number of threads of a block in each direction."""
    result: dict[str, int] = {}
    for s in walk(func.body):
        if of_threads(s):
            assert isinstance(s, For) and s.thread is not None
            extent = as_int(s.extent)
            if extent is None:
                raise CompileError(
                    f"the extent {s.extent} of {s.thread} varies", where=func.name, hint="split it by a number"
                )
            result[s.thread] = max(extent, result.get(s.thread, 1))
    total = 1
    for extent in result.values():
        total *= extent
    if total > MAX_THREADS:
        raise CompileError("too many threads in a block", where=func.name, expected=MAX_THREADS, got=total)
    return dict(sorted(result.items()))


def keep_own_elements(s: Stmt) -> Stmt:
    """Remove from each local buffer outside of thread loops the dimensions that thread indices index. Raises
    CompileError for one whose elements do not belong to single threads."""
    if isinstance(s, Allocate) and s.buffer.scope == "local" and any(map(of_threads, walk(s.body))):
        body = keep_own_elements(s.body)
        dropped = _thread_dimensions(s.buffer, body)
        retained = [d for d in range(len(s.buffer.shape)) if d not in dropped]
        own = replace(s.buffer, shape=tuple(s.buffer.shape[d] for d in retained))
        return Allocate(own, _moved(body, s.buffer, own, retained))
    return with_children(s, tuple(map(keep_own_elements, s.children))) if s.children else s


def _thread_dimensions(buffer: Buffer, body: Stmt) -> frozenset[int]:
    """The dimensions of a buffer that every access indexes by the index of the accessing thread."""
    members: set[frozenset[tuple[int, str]]] = set()
    for indices, bound in _accesses(body, buffer, {}):
        dims = [(d, bound[i]) for d, i in enumerate(indices) if isinstance(i, Var) and i in bound]
        if sorted(thread for _, thread in dims) != sorted(bound.values()):
            raise CompileError(
                f"elements of local {buffer.name!r} do not belong to single threads",
                expected=f"an index for each of {', '.join(sorted(bound.values()))}",
                got=f"{buffer.name}[{', '.join(map(str, indices))}]",
                hint='set_scope(..., "shared") lets threads share it',
            )
        members.add(frozenset(dims))
    if len(members) > 1:
        raise CompileError(
            f"elements of local {buffer.name!r} belong to other threads here than there",
            hint="bind the loops of the stages that touch it to the same indices",
        )
    return frozenset(d for dims in members for d, _ in dims)


def _accesses(s: Stmt, buffer: Buffer, bound: Bound) -> Iterator[tuple[tuple[Expr, ...], Bound]]:
    """Yield the indices of each access of `buffer` in a statement, with the thread indices that enclosing loops
    bind."""
    if isinstance(s, Store) and s.buffer == buffer:
        yield s.indices, bound
    if isinstance(s, Intrinsic):
        for r in (*s.outputs, *s.inputs):
            if r.buffer == buffer:
                yield _of_lane(r, bound), bound
    for e in exprs_of(s):
        yield from ((x.indices, bound) for x in loads(e) if x.buffer == buffer)
    inner = {**bound, s.var: s.thread} if isinstance(s, For) and of_threads(s) and s.thread else bound
    for child in s.children:
        yield from _accesses(child, buffer, inner)


WARP, QUAD = 32, 4


def _of_lane(r: Region, bound: Bound) -> tuple[Expr, ...]:
    """The indices that represent a region: its first ones, but the lane's own index in a dimension of which the region
    has one element for each lane of a warp, or for each of four lanes."""
    starts = tuple(start for start, _ in r.ranges)
    lane = next((v for v, thread in bound.items() if thread == "threadIdx.x"), None)
    if lane is None or lane in starts:
        return starts

    def is_lane(start: Expr, extent: Expr) -> bool:
        of_quad = as_int(extent) == QUAD and lane in variables(start)
        return of_quad or (as_int(start) == 0 and as_int(extent) == WARP)

    return tuple(lane if is_lane(start, extent) else start for start, extent in r.ranges)


def _moved(body: Stmt, old: Buffer, new: Buffer, dims: list[int]) -> Stmt:
    """`body` with every access of the buffer `old` replaced by one of `new`, which has only the dimensions `dims` of
    `old`."""
    own = frozenset(dims)

    def on_expr(e: Expr) -> Expr | None:
        return Load(new, tuple(e.indices[d] for d in dims)) if isinstance(e, Load) and e.buffer == old else None

    def on(s: Stmt) -> Stmt | None:
        if isinstance(s, Store) and s.buffer == old:
            return Store(new, tuple(s.indices[d] for d in dims), s.value)
        if isinstance(s, Intrinsic):
            return replace(s, outputs=tuple(map(region, s.outputs)), inputs=tuple(map(region, s.inputs)))
        return None

    def region(r: Region) -> Region:
        return Region(new, tuple(x for d, x in enumerate(r.ranges) if d in own)) if r.buffer == old else r

    return map_stmt(body, on, lambda e: map_expr(e, on_expr))
