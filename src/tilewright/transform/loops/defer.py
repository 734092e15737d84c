"""Deferred epilogues: the epilogue of a tile is computed piece by piece between the products of the next tile.

    for t in 0..16 @defer(lanes=16) {
      alloc tile: f32[4, 64] in local
      tile = 0
      for k in 0..64 { tile[...] = tile[...] + x[4*t + ..., k] * w[k, ...] }
      for r in unrolled 0..4 { for v in vectorized 0..64 { y[4*t + r, v] = tanh(tile[r, v]) } }
    }

becomes

    alloc raw: f32[4, 64]
    { alloc tile; tile = 0; for k in 0..64 { tile[...] = ... of tile 0 }; raw = tile }
    for t in 0..15 {
      alloc tile: f32[4, 64] in local
      tile = 0
      for r in 0..4 { for p in 0..4 {
        for v in vectorized 0..16 { y[4*t + r, p*16 + v] = tanh(raw[r, p*16 + v]) }
        for k in 0..4 { tile[...] = tile[...] + x[4*(t + 1) + ..., (r*4 + p)*4 + k] * w[(r*4 + p)*4 + k, ...] }
      } }
      raw = tile
    }
    for r in unrolled 0..4 { for v in vectorized 0..64 { y[60 + r, v] = tanh(raw[r, v]) } }

All elements of a tile are complete at the same time. Their functions are then more instructions than an out-of-order
core looks ahead, and the multipliers idle meanwhile. Interleaved with products, the functions use the units that
products leave free (software pipelining: Lam 1988).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.ir.expr import Buffer, Expr, Var, as_int, const
from tilewright.ir.loops import Allocate, For, If, Intrinsic, PrimFunc, Stmt, Store, seq
from tilewright.ir.notes import Unroll, find, without
from tilewright.ir.rewrite import fresh_name, map_stmt, names_of, replace_buffers, substitute_stmt, walk
from tilewright.plans.matmul.contraction import Defer
from tilewright.support.classes import dataclass
from tilewright.transform.loops.copies import copy_fresh, stored_tile
from tilewright.transform.loops.merge import parts, touched, written

WRITTEN_OUT = 8
"""The largest number of reduction steps after one piece of an epilogue that are unrolled."""


def defer_epilogues(func: PrimFunc) -> PrimFunc:
    """The function in which loops over tiles with the note `Defer` have deferred epilogues, where possible."""
    used_names = names_of(func)
    body = map_stmt(func.body, lambda s: _statement(s, used_names))
    return func if body is func.body else func.with_body(body)


def _statement(s: Stmt, used_names: set[str]) -> Stmt | None:
    note = find(s.notes, Defer) if isinstance(s, For) else None
    if not isinstance(s, For) or note is None:
        return None
    ordinary = replace(s, notes=without(s.notes, Defer))
    tile = _tile(ordinary) if s.kind == "serial" else None
    pieces = None if tile is None else _pieces(tile, note.lanes)
    return ordinary if tile is None or pieces is None else _deferred(ordinary, tile, pieces, used_names)


@dataclass(frozen=True, slots=True)
class _Tile:
    """The parts of a loop over tiles: the tile's buffer, the statements before the reduction, the reduction, the loops
    of the epilogue (the last one vectorized) and the epilogue's store."""

    buffer: Buffer
    before: tuple[Stmt, ...]
    reduction: For
    nest: tuple[For, ...]
    store: Store

    @property
    def depth(self) -> int:
        return as_int(self.reduction.extent) or 0


@dataclass(frozen=True, slots=True)
class _Pieces:
    """How an epilogue is divided: into `count` pieces of `width` elements of a row, each followed by `steps` steps of
    the next tile's reduction."""

    width: int
    count: int
    steps: int


def _tile(loop: For) -> _Tile | None:
    """The parts of a loop over tiles; None if its body is not an allocation, a reduction and an epilogue."""
    if not isinstance(loop.body, Allocate) or loop.body.buffer.scope != "local":
        return None
    buffer, stmts = loop.body.buffer, parts(loop.body.body)
    serial = [k for k, s in enumerate(stmts) if isinstance(s, For) and s.kind == "serial"]
    if serial != [len(stmts) - 2] or any(isinstance(x, Intrinsic | Allocate | If) for s in stmts for x in walk(s)):
        return None
    *before, reduction, last = stmts
    assert isinstance(reduction, For)
    nest: list[For] = []
    while isinstance(last, For):
        nest.append(last)
        last = last.body
    kinds = [x.kind for x in nest]
    if not isinstance(last, Store) or not kinds or kinds != ["unrolled"] * (len(kinds) - 1) + ["vectorized"]:
        return None
    # Only the tile itself goes from the products to the epilogue, and nothing comes back.
    products = seq([*before, reduction])
    if without(reduction.notes, Unroll) or written(products) != {buffer} or last.buffer in touched(products):
        return None
    return _Tile(buffer, tuple(before), reduction, tuple(nest), last)


def _pieces(tile: _Tile, lanes: int) -> _Pieces | None:
    """The division of an epilogue into pieces of one vector of `lanes`, or of several vectors if the reduction has
    fewer steps than there are vectors; None if no width divides a row."""
    extents = [as_int(x.extent) for x in tile.nest]
    if None in extents:
        return None
    *rows, line = (n or 0 for n in extents)
    for width in range(lanes, line + 1, lanes):
        count = prod(rows) * line // width
        if line % width == 0 and 0 < count <= tile.depth:
            return _Pieces(width, count, tile.depth // count)
    return None


def _deferred(loop: For, tile: _Tile, pieces: _Pieces, used_names: set[str]) -> Stmt:
    raw = Buffer(fresh_name(f"{tile.buffer.name}_raw", used_names), tile.buffer.dtype, tile.buffer.shape, "local")
    deferred = replace_buffers(tile.nest[0], {tile.buffer: raw})
    begin, keep = seq(tile.before), stored_tile(raw, tile.buffer, used_names)

    def products(*stmts: Stmt) -> Stmt:
        return copy_fresh(Allocate(tile.buffer, seq([*stmts, keep])), used_names)

    def at(s: Stmt, t: Expr) -> Stmt:
        return substitute_stmt(s, {loop.var: t})

    first = at(products(begin, tile.reduction), const(0))
    # Of the tile whose number is the loop's the pieces, of the next one the products.
    next_tile = Var(fresh_name(loop.var.name, used_names))
    reduction = at(tile.reduction, next_tile)
    assert isinstance(reduction, For)
    following = replace(tile, reduction=reduction)
    mixed = products(at(begin, next_tile), *_mixed(following, deferred, pieces, used_names))
    turns = replace(loop, extent=loop.extent - 1, body=substitute_stmt(mixed, {next_tile: loop.var + 1}))
    whole = seq([first, turns, at(copy_fresh(deferred, used_names), loop.extent - 1)])
    return Allocate(raw, whole if as_int(loop.extent) else If(loop.extent >= 1, whole))


def _mixed(tile: _Tile, deferred: Stmt, pieces: _Pieces, used_names: set[str]) -> list[Stmt]:
    """The pieces of the deferred epilogue, each followed by some steps of the reduction of `tile`, then the remaining
    steps. New names are added to `used_names`."""
    loops: list[tuple[Var, int]] = []
    number: Expr = const(0)
    inner = deferred
    for old in tile.nest:
        assert isinstance(inner, For)
        extent = as_int(old.extent) or 1
        count = extent if old.kind == "unrolled" else extent // pieces.width
        var = Var(fresh_name(old.var.name, used_names))
        if old.kind == "unrolled":
            inner = substitute_stmt(inner.body, {old.var: var})
        else:
            lane = Var(fresh_name(old.var.name, used_names))
            inner = For(
                lane,
                const(pieces.width),
                substitute_stmt(inner.body, {old.var: var * pieces.width + lane}),
                "vectorized",
            )
        loops.append((var, count))
        number = number * count + var
    body = seq([inner, _steps(tile.reduction, number * pieces.steps, pieces.steps, used_names)])
    for var, count in reversed(loops):
        body = For(var, const(count), body)
    done = pieces.count * pieces.steps
    left = tile.depth - done
    return [body, _steps(tile.reduction, const(done), left, used_names)] if left else [body]


def _steps(reduction: For, first: Expr, count: int, used_names: set[str]) -> Stmt:
    """Steps `first` to `first + count` of a reduction; at most `WRITTEN_OUT` are unrolled. New names are added to
    `used_names`."""
    step = Var(fresh_name(reduction.var.name, used_names))
    body = substitute_stmt(copy_fresh(reduction.body, used_names), {reduction.var: first + step})
    is_short = count <= WRITTEN_OUT
    return For(
        step, const(count), body, "unrolled" if is_short else "serial", None, () if is_short else reduction.notes
    )
