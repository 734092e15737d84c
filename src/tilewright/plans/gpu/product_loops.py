"""The loops of one product on a GPU (`products.py` has the plan).

for y, x in tiles: for k in steps:      threads copy A[rows, depth] and B[columns, depth] to shared memory
                                        warps:  sums[rows, columns] += A[rows, depth] B[columns, depth]
                   threads:             result[...] = relu(sums[...] + bias[...])

Where copies are of 16 bytes, they go on while tiles are multiplied (`cp.async`): there are several tiles of each
factor, one a stage, and the barrier before a step waits for its copies alone. It also says that all have multiplied the
step before, whose tiles the next copies are written to.

for k in 0..S - 1:  copy step k
for k in steps:     barrier: step k is there, those of the S - 2 steps after it may be under way
                    copy step k + S - 1 to the tiles of step k - 1;  multiply step k
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, gcd

from tilewright.ir.expr import Buffer, Expr, Load, Var, all_of, as_int, const, is_const, select
from tilewright.ir.loops import (
    Allocate,
    Barrier,
    Block,
    BlockIter,
    For,
    If,
    Intrinsic,
    Let,
    Region,
    Stmt,
    Store,
    seq,
)
from tilewright.ir.rewrite import fresh_name, loads, map_expr, substitute
from tilewright.plans.gpu.contractions import Contraction, Factor, extent_of
from tilewright.plans.gpu.elements import places_of
from tilewright.plans.gpu.product_tiles import WARP, Moving, Shared, Tile, depth_of, loaded, moving_of, shape_of
from tilewright.schedule.mma_intrinsics import COPY_ASYNC, COPY_ONE_ASYNC, DEPTH, MMA, SUMS, WIDE
from tilewright.support.classes import dataclass

UNROLLED = 4
"""Copies of a thread that are unrolled."""


@dataclass(frozen=True, slots=True)
class _Side:
    """A factor with what its copies need: its lines and how many there are, the first one of the block's tile, how many
    a tile has, and how it is moved to shared memory."""

    factor: Factor
    lines: tuple[BlockIter, ...]
    limit: Expr
    first: Expr
    count: int
    moving: Moving
    shared: Shared


class Product:
    """The loops of one product."""

    def __init__(self, c: Contraction, epilogue: Block | None, sizes: Mapping[str, int], names: set[str]) -> None:
        self.c = c
        self.epilogue = epilogue
        self.names = names
        t, together = c.dtype, bool(sizes["together"])
        warps = sizes["row_warps"], sizes["column_warps"]
        self.tile = tile = Tile(sizes["rows"], sizes["columns"], *warps, depth_of(t, together), together)
        self.m, self.n, self.k = (extent_of(x) for x in (c.rows, c.columns, c.depth))
        self.x, self.y, self.z = self.new("tile_x"), self.new("tile_y"), self.new("batch")
        self.stages, self.splits = sizes["stages"], sizes["splits"]
        self.partial = self.partial_sums() if self.splits > 1 else None
        self.a = self.side("a_tile", c.a, c.rows, self.m, self.y * tile.rows, tile.rows)
        self.b = self.side("b_tile", c.b, c.columns, self.n, self.x * tile.columns, tile.columns)
        shape = (tile.row_warps * tile.column_warps, WARP, tile.high, tile.wide, 2, 2)
        self.sums = self.buffer("sums", "local", shape, SUMS[t])

    def side(self, name: str, f: Factor, lines: tuple[BlockIter, ...], limit: Expr, first: Expr, count: int) -> _Side:
        moving = moving_of(f, lines, self.c)
        shape = shape_of(f.dtype, self.stages, count, self.tile.depth, moving.across)
        shared = Shared(self.buffer(name, "shared", shape, f.dtype), moving.across)
        return _Side(f, lines, limit, first, count, moving, shared)

    def new(self, name: str) -> Var:
        name = fresh_name(name, self.names)
        self.names.add(name)
        return Var(name)

    def buffer(self, name: str, scope: str, shape: Sequence[int], t: object) -> Buffer:
        return Buffer(self.new(name).name, t, tuple(map(const, shape)), scope)  # type: ignore[arg-type]

    def nest(self) -> Stmt:
        tile = self.tile
        steps = self.steps() if self.stages == 1 else self.pipelined()
        body = seq([self.by_threads(self.cleared), *steps, self.by_threads(self.finished)])
        for b in (self.sums, self.b.shared.buffer, self.a.shared.buffer):
            body = Allocate(b, body)
        loops = (
            (self.x, ceil_div(self.n, tile.columns), "blockIdx.x"),
            (self.y, ceil_div(self.m, tile.rows), "blockIdx.y"),
            (self.z, extent_of(self.c.batch) * self.splits, "blockIdx.z"),
        )
        for var, extent, index in loops:
            body = For(var, extent, body, "thread", index)  # type: ignore[arg-type]
        return body

    def steps(self) -> list[Stmt]:
        """Copies and products, one after the other."""
        step = self.new("step")
        zero = const(0)
        return [For(step, self.count, seq([*self.copies(step, zero), self.by_threads(partial(self.multiplied, zero))]))]

    def pipelined(self) -> list[Stmt]:
        """Copies of later steps while one is multiplied, in tiles that take turns."""
        early = self.stages - 1
        barrier = Barrier("block", self.stages - 2)
        first = self.new("first")
        begun = seq([barrier, self.there_is(first, seq(self.copies(first, first)))])
        step = self.new("step")
        later = step + early
        body = [
            barrier,
            self.there_is(later, seq(self.copies(later, later % self.stages))),
            self.by_threads(partial(self.multiplied, step % self.stages)),
        ]
        return [For(first, const(early), begun), For(step, self.count, seq(body))]

    @property
    def count(self) -> Expr:
        """Steps of depth of a block."""
        return ceil_div(self.k, self.tile.depth) // self.splits

    @property
    def split(self) -> Expr:
        """The part of the depth that a block adds."""
        return self.z % self.splits

    def partial_sums(self) -> Buffer:
        """Memory for the sums of each part of the depth."""
        shape = (const(self.splits), *self.c.result.buffer.shape)
        return Buffer(self.new("partial").name, self.c.result.buffer.dtype, shape)

    def there_is(self, step: Expr, body: Stmt) -> Stmt:
        """The work of a step, if there is one of this number. There are as many as stages, if that is known."""
        condition = const(True) if isinstance(step, Var) and as_int(self.count) is not None else step < self.count
        return body if is_const(condition, True) else If(condition, body)

    def by_threads(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """The steps of all threads, given the numbers of warp and lane."""
        warp, lane = self.new("warp"), self.new("lane")
        inner = For(lane, const(WARP), body(warp, lane), "thread", "threadIdx.x")
        warps = self.tile.row_warps * self.tile.column_warps
        return For(warp, const(warps), inner, "thread", "threadIdx.y")

    def unrolled(self, name: str, extent: int, body: Callable[[Expr], Stmt]) -> Stmt:
        var = self.new(name)
        return For(var, const(extent), body(var), "unrolled")

    def each(self, body: Callable[[Expr, Expr, Expr, Expr], Stmt], columns: Callable[[Expr, Expr, Stmt], Stmt]) -> Stmt:
        """The work on each sum of a thread: `body` is given the numbers of the fragments of rows and columns, and of
        the row and the column in them, `columns` what is done in one column."""
        tile = self.tile

        def column(j: Expr, c: Expr) -> Stmt:
            rows = lambda i: self.unrolled("r", 2, lambda r: body(i, j, r, c))  # noqa: E731
            return columns(j, c, self.unrolled("i", tile.high, rows))

        return self.unrolled("j", tile.wide, lambda j: self.unrolled("c", 2, lambda c: column(j, c)))

    def cleared(self, warp: Expr, lane: Expr) -> Stmt:
        zero = const(0, self.sums.dtype)
        return self.each(lambda i, j, r, c: Store(self.sums, (warp, lane, i, j, r, c), zero), lambda _j, _c, s: s)

    # Copies to shared memory

    def copies(self, step: Expr, stage: Expr) -> list[Stmt]:
        """The loops that fill both tiles of a stage."""
        return [self.copied(self.a, step, stage), self.copied(self.b, step, stage)]

    def copied(self, side: _Side, step: Expr, stage: Expr) -> Stmt:
        """Threads bring the tile of a factor: eight neighbours the eight lines of a core matrix, or, of single
        elements, what is next to each other in memory."""
        tile, moving = self.tile, side.moving
        total = side.count * tile.depth // moving.width
        rounds = max(1, ceil(total / tile.threads))

        def bring(warp: Expr, lane: Expr) -> Stmt:
            def one(q: Expr) -> Stmt:
                e, m, d = self.new("e"), self.new("line"), self.new("d")
                line, deep, lines, depths = self.assigned(side, e)
                stored = self.moved(side, (m, d), (line, deep), stage)
                whole = self.split * self.count + step
                stored = Let(m, side.first // lines + line, Let(d, whole * (tile.depth // depths) + deep, stored))
                if total % tile.threads:
                    stored = If(e < total, stored)
                return Let(e, q * tile.threads + warp * WARP + lane, stored)

            return self.rounds(rounds, one)

        return self.by_threads(bring)

    def rounds(self, count: int, body: Callable[[Expr], Stmt]) -> Stmt:
        """A thread's work that is done so often, partly unrolled: more would take registers for addresses."""
        each = gcd(count, UNROLLED)
        if each == count:
            return self.unrolled("q", count, body) if count > 1 else body(const(0))
        turn = self.new("turn")
        return For(turn, const(count // each), self.unrolled("q", each, lambda q: body(turn * each + q)))

    def assigned(self, side: _Side, e: Expr) -> tuple[Expr, Expr, int, int]:
        """The work of the thread of number `e`: the line and the depth in the tile, in units of so many of them."""
        moving, depth = side.moving, self.tile.depth
        width = moving.width
        if moving.across:
            groups = side.count // width
            return e // 8 % groups, e // (8 * groups) * 8 + e % 8, width, 1
        if width > 1:
            groups = depth // width
            return e // (8 * groups) * 8 + e % 8, e // 8 % groups, 1, width
        if side.factor.along in [it.var for it in self.c.depth]:
            return e // depth, e % depth, 1, 1
        return e % side.count, e // side.count, 1, 1

    def moved(self, side: _Side, source: tuple[Var, Var], target: tuple[Expr, Expr], stage: Expr) -> Stmt:
        """Elements of a factor to shared memory, or zeros where they are not inside of the factor. `source`
        and `target` are line and depth in the factor and in the tile, in units of what is moved at once."""
        width, across = side.moving.width, side.moving.across
        zero, buffer = const(0, side.factor.dtype), side.shared.buffer
        line, deep = (target[0] * width, target[1]) if across else (target[0], target[1] * width)
        inside = all_of(self.within(side, *source))
        if width == 1:
            return self.moved_one(side, source, side.shared.place(stage, line, deep), inside)
        place = side.shared.place(stage, line, deep)
        v = self.new("v")
        cleared = For(v, const(width), Store(buffer, (*place[:-1], v), zero), "vectorized")
        if self.stages > 1:
            moved = self.moved_async(side, source, place)
            return moved if is_const(inside, True) else If(inside, moved, cleared)
        u = self.new("v")
        stored = For(u, const(width), Store(buffer, (*place[:-1], u), self.value(side, *source, u)), "vectorized")
        return stored if is_const(inside, True) else If(inside, stored, cleared)

    def moved_one(self, side: _Side, source: tuple[Var, Var], place: tuple[Expr, ...], inside: Expr) -> Stmt:
        """A single element, by a copy that goes on, if it can."""
        value, zero, buffer = self.value(side, *source, const(0)), const(0, side.factor.dtype), side.shared.buffer
        pair = loaded(value) if self.stages > 1 and side.moving.under_way else None
        if pair is None:
            return Store(buffer, place, select(inside, value, zero))
        condition, read = pair
        one = const(1)
        to, from_ = (Region(b, tuple((i, one) for i in at)) for b, at in ((buffer, place), (read.buffer, read.indices)))
        copy = Intrinsic(COPY_ONE_ASYNC[side.factor.dtype].name, (to,), (from_,))
        needed = all_of([inside, condition])
        return copy if is_const(needed, True) else If(needed, copy, Store(buffer, place, zero))

    def moved_async(self, side: _Side, source: tuple[Var, Var], place: tuple[Expr, ...]) -> Stmt:
        """A copy of 16 bytes that goes on while the thread does other things."""
        one, width = const(1), const(side.moving.width)
        read = self.value(side, *source, const(0))
        assert isinstance(read, Load)
        starts = (*place[:-1], const(0))
        to, from_ = (
            Region(b, (*((i, one) for i in at[:-1]), (at[-1], width)))
            for b, at in ((side.shared.buffer, starts), (read.buffer, read.indices))
        )
        return Intrinsic(COPY_ASYNC[side.factor.dtype].name, (to,), (from_,))

    def within(self, side: _Side, line: Expr, deep: Expr) -> Iterator[Expr]:
        """Conditions for elements to be inside of the factor, those that may fail."""
        width, across = side.moving.width, side.moving.across
        known, depth = as_int(side.limit), as_int(self.k)
        if known is None or known % side.count:
            yield (line * width if across else line) < side.limit
        if depth is None or depth % self.tile.depth:
            yield (deep if across else deep * width) < self.k

    def value(self, side: _Side, line: Expr, deep: Expr, lane: Expr) -> Expr:
        """A factor at a line and a depth, in units of what is moved at once, of which it is element `lane`."""
        width, across = side.moving.width, side.moving.across
        lines, depth = list(side.lines), list(self.c.depth)
        grouped = (lines if across else depth) if width > 1 else []
        if grouped:
            grouped[-1] = replace(grouped[-1], extent=grouped[-1].extent // width)
        places = self.at(self.c.batch, self.z // self.splits) | self.at(lines, line) | self.at(depth, deep)
        if grouped:
            places[grouped[-1].var] = places[grouped[-1].var] * width + lane
        return substitute(side.factor.value, places)

    def at(self, iters: Sequence[BlockIter], number: Expr) -> dict[Var, Expr]:
        """The iterators of a point by its number among theirs."""
        return dict(zip((it.var for it in iters), places_of(number, [it.extent for it in iters]), strict=True))

    # Products

    def multiplied(self, stage: Expr, warp: Expr, lane: Expr) -> Stmt:
        """The products of one step's tiles."""
        return (self.together if self.tile.together else self.by_warp)(stage, warp, lane)

    def by_warp(self, stage: Expr, warp: Expr, lane: Expr) -> Stmt:
        tile, t, two = self.tile, self.c.dtype, const(2)
        deep = DEPTH[t]
        groups = deep * t.itemsize // 16
        intrin = MMA[t, (self.a.shared.across, self.b.shared.across)]

        def fragment(k: Expr, i: Expr, j: Expr) -> Stmt:
            a = self.a.shared.region(stage, tile.row(warp, i) * 2, 2, lane // 4, 1, k * groups, groups)
            b = self.b.shared.region(stage, tile.column(warp) + j, 1, lane % 4 * 2, 2, k * groups, groups)
            return Intrinsic(intrin.name, (self.own(warp, lane, i, (j, const(1)), two),), (a, b))

        return self.unrolled(
            "k", tile.depth // deep,
            lambda k: self.unrolled(
                "i", tile.high, lambda i: self.unrolled("j", tile.wide, lambda j: fragment(k, i, j))
            ),
        )  # fmt: skip

    def together(self, stage: Expr, warp: Expr, lane: Expr) -> Stmt:
        tile, t = self.tile, self.c.dtype
        groups = tile.depth * t.itemsize // 16
        intrin = WIDE[t, tile.wide * 8, (self.a.shared.across, self.b.shared.across)]

        def fragments(i: Expr) -> Stmt:
            a = self.a.shared.region(stage, tile.row(warp, i) * 2, 2, lane // 4, 1, const(0), groups)
            b = self.b.shared.region(stage, tile.column(warp), tile.wide, lane % 4 * 2, 2, const(0), groups)
            own = self.own(warp, lane, i, (const(0), const(tile.wide)), const(2))
            return Intrinsic(intrin.name, (own,), (a, b))

        return self.unrolled("i", tile.high, fragments) if tile.high > 1 else fragments(const(0))

    def own(self, warp: Expr, lane: Expr, i: Expr, j: tuple[Expr, Expr], two: Expr) -> Region:
        """A thread's sums of one fragment of rows, of some of columns."""
        one, zero = const(1), const(0)
        return Region(self.sums, ((warp, one), (lane, one), (i, one), j, (zero, two), (zero, two)))

    # Results

    def finished(self, warp: Expr, lane: Expr) -> Stmt:
        tile = self.tile
        known_m, known_n = as_int(self.m), as_int(self.n)

        n = self.new("n")

        def one(i: Expr, j: Expr, r: Expr, c: Expr) -> Stmt:
            m = self.new("m")
            stored = self.result(Load(self.sums, (warp, lane, i, j, r, c)), m, n)
            if known_m is None or known_m % tile.rows:
                stored = If(m < self.m, stored)
            return Let(m, self.y * tile.rows + tile.row(warp, i) * 16 + r * 8 + lane // 4, stored)

        def column(j: Expr, c: Expr, inner: Stmt) -> Stmt:
            if known_n is None or known_n % tile.columns:
                inner = If(n < self.n, inner)
            return Let(n, self.x * tile.columns + (tile.column(warp) + j) * 8 + lane % 4 * 2 + c, inner)

        return self.each(one, column)

    def result(self, total: Expr, m: Expr, n: Expr) -> Stmt:
        """The store of one sum, or of what follows of it."""
        c = self.c
        own = self.at(c.batch, self.z // self.splits) | self.at(c.rows, m) | self.at(c.columns, n)
        if self.partial is not None:
            return Store(self.partial, (self.split, *(substitute(i, own) for i in c.result.indices)), total)
        if self.epilogue is None:
            return Store(c.result.buffer, tuple(substitute(i, own) for i in c.result.indices), total)
        store = self.epilogue.body
        assert isinstance(store, Store)
        (read,) = {x for x in loads(store.value) if x.buffer == c.result.buffer}
        places: dict[Var, Expr] = {it.var: const(0) for it in self.epilogue.iters}
        for index, var in zip(read.indices, c.result.indices, strict=True):
            assert isinstance(index, Var) and isinstance(var, Var)
            places[index] = own[var]
        value = map_expr(
            substitute(store.value, places),
            lambda e: total if isinstance(e, Load) and e.buffer == c.result.buffer else None,
        )
        return Store(store.buffer, tuple(substitute(i, places) for i in store.indices), value)


def ceil_div(a: Expr, b: int) -> Expr:
    return (a + (b - 1)) // b


__all__ = ["Product", "ceil_div"]
