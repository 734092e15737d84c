"""Let an output's memory hold the intermediate from which it is computed element by element, if rows are long.

    for i in 0..n {                                    for i in 0..n {
      for j in 0..m { e[i, j] = exp(x[i, j]) }           for j in 0..m { y[i, j] = exp(x[i, j]) }
      ... s = sum of e[i, :] ...                   ->    ... s = sum of y[i, :] ...
      for j in 0..m { y[i, j] = e[i, j] / s } }          for j in 0..m { y[i, j] = y[i, j] / s } }

A separate intermediate with rows larger than the first-level cache would occupy additional memory in the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.expr import Buffer, Expr, Var, as_int
from tilewright.ir.loops import Block, For, PrimFunc, Stmt, Store
from tilewright.ir.notes import MayAlias, Streaming, find, without
from tilewright.ir.rewrite import exprs_of, loads, replace_buffers, variables, walk, with_children
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class _Place:
    """A block and its enclosing loops, the outermost first."""

    block: Block
    loops: tuple[For, ...]

    @property
    def writes(self) -> set[Buffer]:
        return {s.buffer for s in walk(self.block) if isinstance(s, Store)}

    @property
    def reads(self) -> dict[Buffer, set[tuple[Expr, ...]]]:
        result: dict[Buffer, set[tuple[Expr, ...]]] = {}
        for s in walk(self.block):
            for e in exprs_of(s):
                for load in loads(e):
                    result.setdefault(load.buffer, set()).add(load.indices)
        return result


def reuse_outputs(func: PrimFunc, least: int) -> PrimFunc:
    """The function in which outputs hold intermediates whose rows have more than `least` bytes."""
    if not func.buffers or find(func.notes, MayAlias):
        return func
    places = list(_places(func.body, ()))
    for buffer in func.buffers:
        output = next((p for p in func.params if _may_hold(places, buffer, p, least)), None)
        if output is not None:
            body = _without_streaming(replace_buffers(func.body, {buffer: output}), output)
            retained = tuple(b for b in func.buffers if b is not buffer)
            return reuse_outputs(replace(func, body=body, buffers=retained), least)
    return func


def _places(s: Stmt, loops: tuple[For, ...]) -> list[_Place]:
    if isinstance(s, Block):
        return [_Place(s, loops)]
    inner = (*loops, s) if isinstance(s, For) else loops
    return [place for child in s.children for place in _places(child, inner)]


def _may_hold(places: Sequence[_Place], buffer: Buffer, output: Buffer, least: int) -> bool:
    if buffer.dtype is not output.dtype or buffer.shape != output.shape or buffer.scope != "global":
        return False
    makers = [k for k, p in enumerate(places) if buffer in p.writes]
    writers = [k for k, p in enumerate(places) if output in p.writes]
    readers = [k for k, p in enumerate(places) if buffer in p.reads]
    if len(makers) != 1 or len(writers) != 1 or any(output in p.reads for p in places):
        return False
    maker, writer = places[makers[0]], places[writers[0]]
    store = writer.block.body
    ordinary = all(isinstance(p.block.body, Store) and p.block.init is None for p in (maker, writer))
    if not ordinary or not isinstance(store, Store) or max(readers, default=-1) != writers[0]:
        return False
    return writer.reads.get(buffer) == {store.indices} and _same_rows(maker, writer, least, buffer.dtype.itemsize)


def _same_rows(maker: _Place, writer: _Place, least: int, size: int) -> bool:
    """Whether in each iteration of the loops around both blocks `maker` computes the elements that `writer` writes,
    more than `least` bytes of elements of `size` bytes."""
    shared = {a.var for a, b in zip(maker.loops, writer.loops, strict=False) if a is b}
    if len(maker.block.iters) != len(writer.block.iters):
        return False
    for a, b in zip(maker.block.iters, writer.block.iters, strict=True):
        outer: list[set[Var]] = [set(variables(it.binding)) & shared for it in (a, b)]
        if a.extent is not b.extent or outer[0] != outer[1]:
            return False
        if outer[0]:
            fixed = {x.var for p in (maker, writer) for x in p.loops if as_int(x.extent) == 1}
            if any(set(variables(it.binding)) - shared - fixed for it in (a, b)):
                return False
        else:
            size *= as_int(a.extent) or 1
    stores = [p.block.body for p in (maker, writer)]
    points = [tuple(it.var for it in p.block.iters) for p in (maker, writer)]
    identity = all(isinstance(s, Store) and s.indices == point for s, point in zip(stores, points, strict=True))
    return identity and size > least


def _without_streaming(s: Stmt, output: Buffer) -> Stmt:
    """The statement with ordinary stores instead of streaming ones to `output`, which is read again."""
    result = with_children(s, tuple(_without_streaming(c, output) for c in s.children)) if s.children else s
    if isinstance(result, For) and any(isinstance(x, Store) and x.buffer == output for x in walk(result)):
        return replace(result, notes=without(result.notes, Streaming)) if find(result.notes, Streaming) else result
    return result
