"""Let the last tile of a transposition overlap the one before, where it has fewer rows.

    t0: rows 0..16 of x, to y[k, 0..16]                t0: rows 0..16 of x, to y[k, 0..16]
    t1: rows 16..28, to y[k, 16..28]             ->    t1: rows 12..28, to y[k, 12..28]

Both are then moved by one function (`codegen/llvm/transposed.py`) in whole vectors. What both write is equal, so the
source may not be the destination; a function with `MayAlias` stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.arith import simplify
from tilewright.ir.expr import Expr, Load, Var, as_int, const
from tilewright.ir.loops import Allocate, For, If, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.notes import MayAlias, find
from tilewright.ir.rewrite import loads, names_of, substitute, with_children
from tilewright.support.classes import dataclass
from tilewright.transform.loops.copies import copy_fresh

FEWEST = 8
"""The least number of rows of a whole tile: smaller ones are transposed where they stand."""


def whole_tiles(func: PrimFunc) -> PrimFunc:
    """The function whose last tiles are moved back until they are whole."""
    if find(func.notes, MayAlias) is not None:
        return func
    names: set[str] = set()
    body = _moved(func.body, func, names)
    return func if body is func.body else func.with_body(body)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile that one loop fills row by row and one stores column by column, and the parts of it: the source's and the
    destination's indices by the row `row` of the first and the lane `lane` of the second loop."""

    stmt: Allocate
    fill: For
    drain: For
    load: Load
    store: Store

    @property
    def row(self) -> Var:
        return self.fill.var

    @property
    def lane(self) -> Var:
        return _inner(self.drain).var

    @property
    def sizes(self) -> tuple[object, ...]:
        """All that two tiles have in common that are parts of one transposition, without their numbers of rows."""
        return (
            *(self.stmt.buffer.dtype, self.stmt.buffer.shape, self.load.buffer, self.store.buffer),
            *(_inner(self.fill).extent, self.drain.extent),
        )


def _inner(loop: For) -> For:
    assert isinstance(loop.body, For)
    return loop.body


def _moved(s: Stmt, func: PrimFunc, names: set[str]) -> Stmt:
    """`s` with the last tiles in it moved back. `names` has the function's names once a copy has been made."""
    if not s.children:
        return s
    s = with_children(s, tuple([_moved(c, func, names) for c in s.children]))
    if not isinstance(s, Seq):
        return s
    stmts = list(s.stmts)
    for k in range(1, len(stmts)):
        stmts[k] = _after(stmts[k - 1], stmts[k], func, names)
    return s if all(a is b for a, b in zip(stmts, s.stmts, strict=True)) else seq(stmts)


def _after(first: Stmt, second: Stmt, func: PrimFunc, names: set[str]) -> Stmt:
    """The statement `second`, which runs right after `first`, or the tile in it moved back over that of `first`. Under
    equal conditions, this holds for each branch."""
    if isinstance(first, If) and isinstance(second, If):
        if first.condition != second.condition or loads(first.condition):  # the first may write what the second loads
            return second
        branches = zip(first.children, second.children, strict=False)
        parts = tuple([_after(a, b, func, names) for a, b in branches])
        return with_children(second, parts) if len(parts) == len(second.children) else second
    whole, last = _tile(first), _tile(second)
    if whole is None or last is None or whole.sizes != last.sizes or whole.load.buffer is whole.store.buffer:
        return second
    rows, count = as_int(whole.fill.extent), as_int(last.fill.extent)
    if rows is None or count is None or not 0 < count < rows or rows < FEWEST or not _follows(whole, last, rows):
        return second
    names |= names_of(func) if not names else set()
    load = Load(whole.load.buffer, _shifted(whole.load.indices, whole.row, count))
    store = Store(whole.store.buffer, _shifted(whole.store.indices, whole.lane, count), whole.store.value)
    filling = _inner(whole.fill).body
    assert isinstance(filling, Store)
    fill = replace(whole.fill, body=replace(_inner(whole.fill), body=Store(filling.buffer, filling.indices, load)))
    drain = replace(whole.drain, body=replace(_inner(whole.drain), body=store))
    return copy_fresh(replace(whole.stmt, body=Seq((fill, drain))), names)


def _shifted(indices: tuple[Expr, ...], v: Var, by: int) -> tuple[Expr, ...]:
    return tuple(simplify(substitute(i, {v: v + by})) for i in indices)


def _follows(whole: _Tile, last: _Tile, rows: int) -> bool:
    """Whether `last` moves what the tile `whole` would move if it had more rows than its own `rows`."""
    names = {
        last.row: whole.row,
        last.lane: whole.lane,
        _inner(last.fill).var: _inner(whole.fill).var,
        last.drain.var: whole.drain.var,
    }

    def equal(a: tuple[Expr, ...], b: tuple[Expr, ...], v: Var) -> bool:
        renamed = (simplify(substitute(i, names)) for i in b)
        return all(x is y or x == y for x, y in zip(_shifted(a, v, rows), renamed, strict=True))

    return equal(whole.load.indices, last.load.indices, whole.row) and equal(
        whole.store.indices, last.store.indices, whole.lane
    )


def _tile(s: Stmt) -> _Tile | None:
    match s:
        case Allocate(
            body=Seq(
                (
                    For(kind="unrolled", body=For(kind="vectorized", body=Store(filled, into, Load() as load))) as fill,
                    For(
                        kind="unrolled", body=For(kind="vectorized", body=Store(_, _, Load() as read) as store)
                    ) as drain,
                )
            )
        ):
            pass
        case _:
            return None
    loops = (fill, _inner(fill), drain, _inner(drain))
    if any(loop.notes for loop in loops) or filled != s.buffer or read.buffer != s.buffer or store.buffer == s.buffer:
        return None
    if load.buffer == s.buffer or as_int(fill.extent) != as_int(_inner(drain).extent):
        return None
    zero = const(0)
    put, got = into, read.indices
    if len(into) < 2 or any(i != zero for i in (*put[:-2], *got[:-2])):
        return None
    if put[-2:] != (fill.var, loops[1].var) or got[-2:] != (loops[3].var, drain.var):
        return None
    return _Tile(s, fill, drain, load, store)
