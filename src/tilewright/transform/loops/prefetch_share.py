"""Prefetch a later kernel's data while this kernel computes, spread evenly over its iterations.

    kernel(x, w, y) {                            kernel(x, w, y, upcoming: u8[n]) {
      for p in 0..28 parallel {                    for p in 0..28 parallel {
        for k in 0..512 {                   ->       for k in 0..512 @prefetch_share(source=upcoming, ...) {
          ... a tile's multiply-adds ...               ... a tile's multiply-adds ...

Each iteration prefetches its share of the buffer (`codegen/llvm/prefetch.py`), so that the transfer keeps pace with the
arithmetic: prefetched all at once it would delay the kernel's own loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilewright.codegen.llvm.prefetch import most_iterations
from tilewright.ir.dtype import u8
from tilewright.ir.expr import Buffer, as_int, const
from tilewright.ir.loops import For, PrimFunc, Stmt
from tilewright.ir.notes import BufferName, PrefetchShare, with_note
from tilewright.ir.rewrite import fresh_name, map_stmt, names_of, walk
from tilewright.support.classes import dataclass

Nest = tuple[For, ...]


@dataclass(frozen=True, slots=True)
class WeightPrefetch:
    """A request to prefetch the first `nbytes` bytes of a buffer of `size` bytes."""

    size: int
    nbytes: int


def prefetch_upcoming(func: PrimFunc, prefetch: WeightPrefetch, line: int) -> PrimFunc:
    """A flat function with one more parameter, before its workspaces: the weights of a later kernel, of which its
    longest loop nest, if it has one, prefetches as many bytes as `prefetch` says. `line`: bytes of a cache line."""
    upcoming = Buffer(fresh_name("upcoming", names_of(func)), u8, (const(prefetch.size),))
    count = len(func.params) - len(func.workspaces)
    params = (*func.params[:count], upcoming, *func.params[count:])
    func = replace(func, params=params)
    nest = max(_nests(func.body, ()), key=_work, default=None)
    if nest is None:
        return func
    loop = _loop(nest, prefetch, line)
    noted = replace(loop, notes=with_note(loop.notes, PrefetchShare(BufferName(upcoming.name), prefetch.nbytes)))
    return func.with_body(map_stmt(func.body, lambda s: replace(noted, body=s.body) if s is loop else None))


def _nests(s: Stmt, enclosing: Nest) -> Iterator[Nest]:
    """The innermost loops of `s` that stay loops in the machine code, each with its enclosing loops. Nests with unknown
    iteration counts are left out."""
    if isinstance(s, For):
        enclosing = (*enclosing, s)
        if s.kind not in ("serial", "parallel") or None in _counts(enclosing):
            return
        if _is_tile(s):
            yield enclosing
            return
    for child in s.children:
        yield from _nests(child, enclosing)


def _is_tile(loop: For) -> bool:
    """Whether all loops inside are unrolled or vectorized, at least one of them vectorized."""
    kinds = {inner.kind for inner in walk(loop.body) if isinstance(inner, For)}
    return loop.kind == "serial" and "vectorized" in kinds and kinds <= {"vectorized", "unrolled"}


def _work(nest: Nest) -> int:
    """The number of iterations of a nest, including its unrolled and vectorized loops."""
    inside = max(_copies(s) for s in nest[-1].body.children or (nest[-1].body,))
    return inside * prod(count or 0 for count in _counts(nest))


def _counts(nest: Nest) -> list[int | None]:
    """For each loop of a nest its largest number of iterations; None for a loop where it is not known."""
    return [count for _, count in most_iterations(nest)]


def _copies(s: Stmt) -> int:
    inner = max((_copies(c) for c in s.children), default=1)
    return inner * (as_int(s.extent) or 1) if isinstance(s, For) else inner


def _loop(nest: Nest, prefetch: WeightPrefetch, line: int) -> For:
    """The innermost loop of the nest whose iterations each prefetch at least a line; else the outermost serial loop."""
    loops = [loop for loop in nest if loop.kind == "serial"]
    for k in range(len(nest), 0, -1):
        runs = prod(count or 1 for count in _counts(nest[:k]))
        if nest[k - 1].kind == "serial" and prefetch.nbytes >= line * runs:
            return nest[k - 1]
    return loops[0]
