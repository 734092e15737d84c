"""Let the last two tiles of a symbolic number of rows be of about equal size.

    for io in 0..(n + 3)//4 {                        for io in 0..n//4 - uneven {
      for ii in unrolled 0..4 {                        for ii in unrolled 0..4 { C[io*4 + ii] = x } }
        if io*4 + ii < n { C[io*4 + ii] = x }   ->   for end in 0..ends {
      } }                                              for ii in unrolled 0..rows { C[first + ii] = x } }

A tile of one row waits for each of its multiply-adds and for loads of a panel that no other row shares: 14 rows take
less time as two tiles of 7 than as one of 13 and one of 1. `rows` depends on n and `end`, and gets a version for each
of its values (`remainder.py`), as the remainder would, so there is no more code. If n is a multiple of the tile, one
row short of one, or less than a tile, nothing changes. If registers have room for one more row (`LastTile`), a single
remaining row joins the last tile, so that panels are read once; that is one more version. Numbers of rows that cannot
occur have no version: of 10 rows in tiles of 8 the last two tiles have 5 each, and inside a variant for `n != 1`
(`plans/framework/variants.py`) one row never remains.

A loop qualifies if its variable occurs only in row numbers: then every division of the rows computes the same. The
epilogue of a tile has no versions, which would be much code: the products of the last tiles reach it through memory.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.ir.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    Var,
    all_of,
    as_int,
    const,
    equal,
    is_const,
    maximum,
    minimum,
    select,
)
from tilewright.ir.loops import Allocate, For, If, Let, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.notes import find, without
from tilewright.ir.rewrite import (
    exprs_of,
    fresh_name,
    map_exprs_of,
    map_stmt,
    names_of,
    rebuild,
    replace_buffers,
    replace_stmt,
    substitute,
    variables,
    walk,
    walk_expr,
    with_children,
)
from tilewright.plans.matmul.contraction import LastTile
from tilewright.support.classes import dataclass
from tilewright.transform.loops.conditions import bound_loops_of
from tilewright.transform.loops.copies import copy_fresh, stored_tile
from tilewright.transform.loops.remainder import MAX_REMAINDER, all_after, all_rows, by_remainder
from tilewright.transform.loops.simplify import simplify_stmt

MAX_SEPARATE = 6
"""The largest number of rows that get a version for being all rows of the function and another for being half of the
last rows: in larger products, one version for both hides how they prefetch."""


def even_tails(func: PrimFunc) -> PrimFunc:
    """The function in which the last two tiles of a symbolic number of rows are about equal."""
    body = _evened(func.body, {}, frozenset(), names_of(func))
    return func if body is func.body else func.with_body(body)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """A loop over tiles of `size` rows, `rows` in all. A last tile may have up to `most` rows; `inner` are the
    variables of the loops over the rows of a tile."""

    loop: For
    rows: Expr
    size: int
    most: int
    inner: frozenset[Var]
    conditions: frozenset[Expr]


def _evened(s: Stmt, outer: dict[Var, Expr], never: frozenset[Expr], used_names: set[str]) -> Stmt:
    """The statement `s`, inside of loops with the extents `outer`, with the last tiles of its loops evened out.
    `never`: conditions that do not hold here. New names are added to `used_names`."""
    if isinstance(s, For):
        tiles = _tiles(s, outer)
        evened = None if tiles is None else _split(tiles, outer, never, used_names)
        if evened is not None:
            return evened
        outer = {**outer, s.var: s.extent}
    if isinstance(s, If) and s.orelse is not None:
        then, orelse = (
            _evened(s.then, outer, never, used_names),
            _evened(s.orelse, outer, never | {s.condition}, used_names),
        )
        return with_children(s, (then, orelse))
    return with_children(s, tuple([_evened(c, outer, never, used_names) for c in s.children])) if s.children else s


def _fewest(tiles: _Tiles, never: frozenset[Expr]) -> int:
    """The least number of rows in a last tile that has rows: all rows if they are fewer than a tile, else the smaller
    half of the last rows. `never`: conditions on the number of rows that do not hold."""
    if type(tiles.rows) is not Var:
        return 1
    least = max(1, tiles.rows.lo or 0)
    while equal(tiles.rows, least) in never:
        least += 1
    return min(least, (tiles.most + 1) // 2)


def _tiles(loop: For, outer: dict[Var, Expr]) -> _Tiles | None:
    """The tiles that a loop, inside of loops with the extents `outer`, goes over, if each row is guarded by the
    condition that it exists; None otherwise."""
    if loop.kind != "serial":
        return None
    inside = list(walk(loop.body))
    rows = [s for s in inside if isinstance(s, For) and s.kind == "unrolled" and _bounded(s, loop) is not None]
    sizes, counts = {as_int(s.extent) for s in rows}, {_bounded(s, loop) for s in rows}
    if len(sizes) != 1 or len(counts) != 1:
        return None
    (size,), (count,) = sizes, counts
    conditions = frozenset(s.body.condition for s in rows if isinstance(s.body, If))
    if size is None or count is None or not 2 < size <= MAX_REMAINDER + 1 or _otherwise(inside, loop.var, conditions):
        return None
    an = Analyzer({**outer, **{s.var: s.extent for s in (loop, *rows)}})
    whole = an.simplify((count + (size - 1)) // size) is an.simplify(loop.extent)
    if not (whole or type(loop.extent) is Const) or not all_after(loop.body, set(conditions)):
        return None
    note = find(loop.notes, LastTile)
    most = size if note is None or note.rows > MAX_REMAINDER else note.rows
    return _Tiles(loop, count, size, most, frozenset(s.var for s in rows), conditions)


def _bounded(rows: For, tiles: For) -> Expr | None:
    """The number n of rows if the test `tile * extent + row < n` guards the body of the loop `rows`. If the test is
    `first + tile * extent + row < n` and the number of tiles is known, the number of rows from `first` on. None
    otherwise."""
    size, inside, tile = as_int(rows.extent), rows.body, tiles.var
    if size is None or not isinstance(inside, If) or inside.orelse is not None:
        return None
    condition = inside.condition
    if type(condition) is not Op or condition.name != "lt":
        return None
    index, count = condition.args
    first, most = Analyzer().simplify(index - tile * size - rows.var), as_int(tiles.extent)
    if type(count) is Const or not {tile, rows.var}.isdisjoint((*variables(count), *variables(first))):
        return None
    if most is None:
        return count if is_const(first, 0) else None
    # A part that begins after the last row has none, where a loop around goes on to it.
    return None if is_const(first, 0) else maximum(minimum(count - first, most * size), const(0))


def _otherwise(inside: list[Stmt], tile: Var, conditions: frozenset[Expr]) -> bool:
    """Whether the tile's number occurs in a condition not in `conditions`, in a select's condition, or in a loop's
    extent."""
    for s in inside:
        if isinstance(s, If | For):
            (e,) = exprs_of(s)
            if e not in conditions and tile in variables(e):
                return True
        nodes = (n for e in exprs_of(s) for n in walk_expr(e) if type(n) is Op and n.name == "select")
        if any(tile in variables(n.args[0]) for n in nodes):
            return True
    return False


def _split(tiles: _Tiles, outer: dict[Var, Expr], never: frozenset[Expr], used_names: set[str]) -> Stmt | None:
    """The loop over whole tiles, followed by the loop over the last ones, inside of loops with the extents `outer`;
    None if the tile's variables occur outside of row numbers. `never`: conditions that do not hold here. New names are
    added to `used_names`."""
    loop, size, most = tiles.loop, tiles.size, tiles.most
    end, rows, first = (Var(fresh_name(f"{loop.var.name}_{what}", used_names)) for what in ("end", "rows", "first"))
    try:
        body = _with_rows(loop.body, tiles)
        moved = _Mover(tiles, body, first, rows).statement(body)
    except _ElsewhereError:
        return None
    known = {**outer, rows: const(size if most == size else most + 1)}

    def tidy(s: Stmt) -> Stmt:
        copy = copy_fresh(s, used_names)
        an = Analyzer({**known, **{c.var: c.extent for c in walk(copy) if isinstance(c, For)}})
        return bound_loops_of(simplify_stmt(copy, an), an)

    def of_rows(s: Stmt, count: int) -> Stmt:
        # Less than half a tile is never the rest of more rows, but all there are, or all of a strip.
        alone = all_rows(s, count) if count <= MAX_SEPARATE else s
        if alone is s or count < (size + 1) // 2:
            return tidy(alone)
        return If(equal(tiles.rows, count), tidy(alone), tidy(s))

    deferred = _epilogue_after(moved, tiles, rows, used_names)
    products = moved if deferred is None else deferred.products
    cases = by_remainder(products, Analyzer(known), MAX_REMAINDER, of_rows, least=_fewest(tiles, never), never=size)
    if cases is None:
        return None
    if deferred is not None:
        cases = Allocate(deferred.raw, seq([cases, tidy(deferred.epilogue)]))
    an = Analyzer({**outer, end: const(2)})
    rest = tiles.rows % size
    uneven = all_of((size <= tiles.rows, rest > most - size, rest < size - 1))
    joined = all_of((size <= tiles.rows, equal(rest, 1))) if most > size else const(False)
    whole = an.simplify(tiles.rows // size - select(uneven | joined, const(1), const(0)))
    each = (rest + (size + 1) - end) // 2
    values = {
        rows: select(uneven, each, select(joined, const(most), rest)),
        first: whole * size + select(uneven, end * substitute(each, {end: const(0)}), const(0)),
    }
    for var, value in values.items():
        cases = Let(var, an.simplify(value), cases)
    held = map_stmt(loop.body, lambda s: s.then if isinstance(s, If) and s.condition in tiles.conditions else None)
    ends = an.simplify(select(uneven, const(2), minimum(rest, 1)))
    return seq([replace(loop, extent=whole, body=held, notes=without(loop.notes, LastTile)), For(end, ends, cases)])


def _with_rows(body: Stmt, tiles: _Tiles) -> Stmt:
    """The statements of a tile with loops and buffers enlarged to the most rows that a tile has."""
    if tiles.most == tiles.size:
        return body
    accesses = [
        *((s.buffer, s.indices) for s in walk(body) if isinstance(s, Store)),
        *((n.buffer, n.indices) for s in walk(body) for e in exprs_of(s) for n in walk_expr(e) if type(n) is Load),
    ]
    grown: dict[Buffer, Buffer] = {}
    for buffer in (s.buffer for s in walk(body) if isinstance(s, Allocate)):
        of_row = {k for b, at in accesses if b == buffer for k, index in enumerate(at) if index in tiles.inner}
        shape = [const(tiles.most) if k in of_row else n for k, n in enumerate(buffer.shape)]
        grown[buffer] = replace(buffer, shape=tuple(shape))

    def longer(s: Stmt) -> Stmt | None:
        return replace(s, extent=const(tiles.most)) if isinstance(s, For) and s.var in tiles.inner else None

    return map_stmt(replace_buffers(body, grown), longer)


@dataclass(frozen=True, slots=True)
class _Deferred:
    """Products that are stored in the buffer `raw`, and the epilogue that reads them row by row."""

    products: Stmt
    raw: Buffer
    epilogue: Stmt


def _epilogue_after(moved: Stmt, tiles: _Tiles, rows: Var, used_names: set[str]) -> _Deferred | None:
    """The statement `moved`, which computes one of `tiles`, split into its products and the epilogue for its first
    `rows` rows; None if the epilogue computes nothing or has another form. New names are added to `used_names`."""
    if not isinstance(moved, Allocate) or not isinstance(moved.body, Seq):
        return None
    tile, (*before, last) = moved.buffer, moved.body.stmts
    if not isinstance(last, For) or last.var not in tiles.inner or not isinstance(last.body, If):
        return None
    nodes = [n for s in walk(last) for e in exprs_of(s) for n in walk_expr(e)]
    places = {n.indices for n in nodes if type(n) is Load and n.buffer == tile}
    rows_at = {k for indices in places for k, index in enumerate(indices) if last.var in variables(index)}
    if all(isinstance(s.value, Load) for s in walk(last) if isinstance(s, Store)) or len(rows_at) != 1:
        return None
    (place,) = rows_at
    if any(indices[place] is not last.var for indices in places):
        return None
    raw = Buffer(fresh_name(f"{tile.name}_raw", used_names), tile.dtype, tile.shape, tile.scope)
    keep = stored_tile(raw, tile, used_names)
    of_row = _nest(keep)[place]
    keep = replace_stmt(keep, of_row, replace(of_row, body=If(of_row.var < rows, of_row.body))) or keep
    epilogue = replace_buffers(replace(last, extent=rows, kind="serial", body=last.body.then), {tile: raw})
    return _Deferred(replace(moved, body=seq([*before, keep])), raw, epilogue)


def _nest(s: Stmt) -> list[For]:
    """The loops of a perfect nest, from the outermost."""
    return [s, *_nest(s.body)] if isinstance(s, For) else []


class _ElsewhereError(Exception):
    """Raised if the variable of the loop over tiles, or that of a row in the tile, occurs elsewhere than in
    `tile * size + row`."""


class _Mover:
    """Rewrites the `body` of a loop over tiles for the `rows` rows from `first` on: `first + row` replaces `tile * size
    + row`. Buffers that the body allocates are indexed by the row in the tile, as before."""

    __slots__ = ("first", "memo", "own", "rows", "tiles")

    def __init__(self, tiles: _Tiles, body: Stmt, first: Expr, rows: Expr) -> None:
        self.tiles, self.first, self.rows = tiles, first, rows
        self.own = {s.buffer for s in walk(body) if isinstance(s, Allocate)}
        self.memo: dict[Expr, Expr] = {}

    def statement(self, s: Stmt) -> Stmt:
        if isinstance(s, Store):
            indices = s.indices if self.is_own(s) else tuple(map(self.expr, s.indices))
            return Store(s.buffer, indices, self.expr(s.value))
        s = map_exprs_of(with_children(s, tuple(map(self.statement, s.children))), self.expr)
        if isinstance(s, For) and s.var in self.tiles.inner and isinstance(s.body, If):
            return replace(s, body=If(s.var < self.rows, s.body.then))
        return s

    def is_own(self, access: Store | Load) -> bool:
        """Whether an access is to a buffer of the tile, whose indices do not depend on the tile's number."""
        return access.buffer in self.own and not any(self.tiles.loop.var in variables(i) for i in access.indices)

    def expr(self, e: Expr) -> Expr:
        bound = self.tiles.inner | {self.tiles.loop.var}
        if bound.isdisjoint(variables(e)) or (isinstance(e, Load) and self.is_own(e)):
            return e
        if e not in self.memo:
            row = self.row(e)
            self.memo[e] = self.parts(e) if row is None else row
        return self.memo[e]

    def parts(self, e: Expr) -> Expr:
        if not e.children:
            raise _ElsewhereError
        return rebuild(e, [self.expr(c) for c in e.children])

    def row(self, e: Expr) -> Expr | None:
        """`e` with `first + row` in place of `tile * size + row`; None if it does not depend on one row number
        alone."""
        tile = self.tiles.loop.var
        inner = [v for v in variables(e) if v in self.tiles.inner]
        if len(inner) != 1 or not e.dtype.is_int or any(type(n) is Load for n in walk_expr(e)):
            return None
        number = Var("row")
        of_row = Analyzer().simplify(substitute(e, {inner[0]: number - tile * self.tiles.size}))
        return None if tile in variables(of_row) else substitute(of_row, {number: self.first + inner[0]})
