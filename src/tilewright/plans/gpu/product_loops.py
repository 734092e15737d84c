"""The loops of one product on a GPU (`products.py` has the plan).

for y, x in tiles: for k in steps:      threads copy A[rows, depth] and B[columns, depth] to shared memory
                                        warps:  sums[rows, columns] += A[rows, depth] B[columns, depth]
                   threads:             result[...] = relu(sums[...] + bias[...])

Copies of 16 bytes are asynchronous (`cp.async`) and run while tiles are multiplied: there are several tiles of each
factor, one per stage, and the barrier before a step waits for that step's copies only. After it, all threads have
multiplied the step before, whose tiles the next copies overwrite.

for k in 0..S - 1:  copy step k
for k in steps:     barrier: step k is there, copies of the S - 2 steps after it may still run
                    copy step k + S - 1 to the tiles of step k - 1;  multiply step k
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tilewright.ir.expr import Buffer, Expr, Load, Var, as_int, const, is_const, minimum
from tilewright.ir.loops import Allocate, Barrier, Block, BlockIter, For, If, Intrinsic, Let, Region, Stmt, Store, seq
from tilewright.ir.rewrite import fresh_name, loads, map_expr, substitute
from tilewright.plans.gpu.contractions import Contraction, Factor, extent_of
from tilewright.plans.gpu.copies import Copier, Side
from tilewright.plans.gpu.elements import places_of
from tilewright.plans.gpu.product_tiles import (
    WARP,
    Lines,
    Moving,
    Shared,
    Tile,
    depth_of,
    lines_shape,
    moving_of,
    shape_of,
)
from tilewright.plans.gpu.width import neighbours
from tilewright.schedule.mma_intrinsics import COPY_TILE, DEPTH, MMA, SUMS, WIDE, WIDE_TILE

BY_TILES = 2
"""The value of `together` for products whose factors are copied in whole tiles, by copies that one thread starts."""

PAIR = 2
"""The number of neighbouring sums of a fragment's row that a thread has."""


class Product:
    """Builds the loops of one product."""

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
        self.copier = Copier(self.new, self.by_threads, tile.threads, self.stages)
        self.by_tiles = sizes["together"] == BY_TILES
        if self.by_tiles:
            self.a_lines, self.b_lines = (
                Lines(self.buffer(name, "shared", lines_shape(t, self.stages, lines), t))
                for name, lines in (("a_tile", tile.rows), ("b_tile", tile.columns))
            )
            shared = self.b_lines.buffer, self.a_lines.buffer
        else:
            self.a, self.a_tile = self.side("a_tile", c.a, c.rows, self.m, self.y * tile.rows, tile.rows)
            self.b, self.b_tile = self.side("b_tile", c.b, c.columns, self.n, self.x * tile.columns, tile.columns)
            shared = self.b_tile.buffer, self.a_tile.buffer
        shape = (tile.row_warps * tile.column_warps, WARP, tile.high, tile.wide, 2, 2)
        self.sums = self.buffer("sums", "local", shape, SUMS[t])
        self.shared = shared

    def side(
        self, name: str, f: Factor, lines: tuple[BlockIter, ...], limit: Expr, first: Expr, count: int
    ) -> tuple[Side, Shared]:
        """For the factor `f`, called `name`, whose tile has `count` of its `lines`, from `first` on, and which ends at
        `limit`: (the description of its copies, the layout of its tiles in shared memory)."""
        moving = moving_of(f, lines, self.c)
        shape = shape_of(f.dtype, self.stages, count, self.tile.depth, moving.across)
        shared = Shared(self.buffer(name, "shared", shape, f.dtype), moving.across)
        deeper = f.along in [it.var for it in self.c.depth]
        value = partial(self.value, f, lines, moving)
        return Side(value, limit, self.k, first, count, self.tile.depth, moving, shared, deeper), shared

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
        for b in (self.sums, *self.shared):
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
        """The loop over the depth, in which each step copies two tiles and then multiplies them."""
        step = self.new("step")
        zero = const(0)
        return [For(step, self.count, seq([*self.copies(step, zero), self.by_threads(partial(self.multiplied, zero))]))]

    def pipelined(self) -> list[Stmt]:
        """The loops over steps in which copies of later steps run while one is multiplied, in tiles that are used in
        turns."""
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
        """The number of steps of the loop over the depth that each block makes."""
        return ceil_div(self.k, self.tile.depth) // self.splits

    @property
    def split(self) -> Expr:
        """The part of the depth that a block sums, as its number, where several blocks share one tile of the result."""
        return self.z % self.splits

    def partial_sums(self) -> Buffer:
        """A new buffer for the sums of each part of the depth, to be added by another kernel."""
        shape = (const(self.splits), *self.c.result.buffer.shape)
        return Buffer(self.new("partial").name, self.c.result.buffer.dtype, shape)

    def there_is(self, step: Expr, body: Stmt) -> Stmt:
        """`body`, under the condition that step `step` exists. It is left out for constants: a known number of steps is
        at least the number of stages."""
        condition = const(True) if isinstance(step, Var) and as_int(self.count) is not None else step < self.count
        return body if is_const(condition, True) else If(condition, body)

    def by_threads(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """The loops over the warps and lanes of a block around `body(warp, lane)`."""
        warp, lane = self.new("warp"), self.new("lane")
        inner = For(lane, const(WARP), body(warp, lane), "thread", "threadIdx.x")
        warps = self.tile.row_warps * self.tile.column_warps
        return For(warp, const(warps), inner, "thread", "threadIdx.y")

    def cleared(self, warp: Expr, lane: Expr) -> Stmt:
        zero, places = const(0, self.sums.dtype), []
        for name, extent in (("j", self.tile.wide), ("c", PAIR), ("i", self.tile.high), ("r", 2)):
            places.append((self.new(name), extent))
        j, c, i, r = (v for v, _ in places)
        body: Stmt = Store(self.sums, (warp, lane, i, j, r, c), zero)
        for v, extent in reversed(places):
            body = For(v, const(extent), body, "unrolled")
        return body

    # Copies to shared memory

    def copies(self, step: Expr, stage: Expr) -> list[Stmt]:
        """The statements that copy both factors' tiles of `step` into the shared memory of `stage`."""
        whole = self.split * self.count + step
        if self.by_tiles:
            return [self.by_threads(partial(self.tile_copies, whole, stage))]
        return [self.copier.copied(side, whole, stage) for side in (self.a, self.b)]

    def tile_copies(self, whole: Expr, stage: Expr, warp: Expr, lane: Expr) -> Stmt:
        """The statement in which the block's first thread (`warp` and `lane` are 0) starts the copies of both factors'
        tiles, number `whole` along the depth, to `stage` by the tensor memory accelerator."""
        c, tile = self.c, self.tile
        sides = (
            (c.a, c.rows, self.m, self.y * tile.rows, tile.rows, self.a_lines),
            (c.b, c.columns, self.n, self.x * tile.columns, tile.columns, self.b_lines),
        )
        return If(warp * WARP + lane < 1, seq(self.tile_copy(whole, stage, *side) for side in sides))

    def tile_copy(
        self, whole: Expr, stage: Expr, f: Factor, own: tuple[BlockIter, ...], limit: Expr, first: Expr, count: int,
        lines: Lines,
    ) -> Stmt:  # fmt: skip
        """The instruction that copies a tile of a factor asynchronously from memory to `lines` in shared memory.

        Args:
            whole: number of the tile along the depth.
            stage: the stage of `lines` that it fills.
            f, own: the factor, and the iterators of its lines (rows of the left one, columns of the right one).
            limit: the number of lines that the factor has; a tile that is cut off by it copies fewer.
            first, count: first line of the tile, and the number of its lines.
        """
        known = as_int(limit)
        there = const(count) if known is not None and known % count == 0 else minimum(limit - first, count)
        places = self.at(self.c.batch, self.z // self.splits) | {it.var: const(0) for it in (*own, *self.c.depth)}
        assert isinstance(f.value, Load)
        ranges = []
        for index in f.value.indices:
            if index in [it.var for it in own if as_int(it.extent) != 1]:
                ranges.append((first, there))
            elif index is f.value.indices[-1]:
                ranges.append((whole * self.tile.depth, const(self.tile.depth)))
            else:
                ranges.append((substitute(index, places), const(1)))
        source = Region(f.value.buffer, tuple(ranges))
        return Intrinsic(COPY_TILE[f.dtype, count].name, (lines.whole(stage),), (source,))

    def value(self, f: Factor, own: tuple[BlockIter, ...], moving: Moving, line: Expr, deep: Expr, lane: Expr) -> Expr:
        """Element `lane` of the copy of factor `f` at (`line`, `deep`), in units of a copy, as an expression over the
        factor's arrays."""
        width = moving.width
        lines, depth = list(own), list(self.c.depth)
        grouped = (lines if moving.across else depth) if width > 1 else []
        if grouped:
            grouped[-1] = replace(grouped[-1], extent=grouped[-1].extent // width)
        places = self.at(self.c.batch, self.z // self.splits) | self.at(lines, line) | self.at(depth, deep)
        if grouped:
            places[grouped[-1].var] = places[grouped[-1].var] * width + lane
        return substitute(f.value, places)

    def at(self, iters: Sequence[BlockIter], number: Expr) -> dict[Var, Expr]:
        """Iterator -> its value at the point with this number, in the row-major order of `iters`."""
        return dict(zip((it.var for it in iters), places_of(number, [it.extent for it in iters]), strict=True))

    # Products

    def multiplied(self, stage: Expr, warp: Expr, lane: Expr) -> Stmt:
        """The statements that multiply the tiles in `stage` and add the products to a warp's sums."""
        return (self.together if self.tile.together else self.by_warp)(stage, warp, lane)

    def by_warp(self, stage: Expr, warp: Expr, lane: Expr) -> Stmt:
        tile, t, two = self.tile, self.c.dtype, const(2)
        deep = DEPTH[t]
        groups = deep * t.itemsize // 16
        intrin = MMA[t, (self.a_tile.across, self.b_tile.across)]

        def fragment(k: Expr, i: Expr, j: Expr) -> Stmt:
            a = self.a_tile.region(stage, tile.row(warp, i) * 2, 2, lane // 4, 1, k * groups, groups)
            b = self.b_tile.region(stage, tile.column(warp) + j, 1, lane % 4 * 2, 2, k * groups, groups)
            return Intrinsic(intrin.name, (self.own(warp, lane, i, (j, const(1)), two),), (a, b))

        return self.copier.unrolled(
            "k", tile.depth // deep,
            lambda k: self.copier.unrolled(
                "i", tile.high, lambda i: self.copier.unrolled("j", tile.wide, lambda j: fragment(k, i, j))
            ),
        )  # fmt: skip

    def together(self, stage: Expr, warp: Expr, lane: Expr) -> Stmt:
        tile, t = self.tile, self.c.dtype
        groups = tile.depth * t.itemsize // 16

        def of_lines(i: Expr) -> Stmt:
            a = self.a_lines.region(stage, tile.row(warp, i) * 2, 2, lane // 4, 1)
            b = self.b_lines.region(stage, tile.column(warp), tile.wide, lane % 4 * 2, 2)
            own = self.own(warp, lane, i, (const(0), const(tile.wide)), const(2))
            return Intrinsic(WIDE_TILE[t, tile.wide * 8].name, (own,), (a, b))

        def of_cores(i: Expr) -> Stmt:
            intrin = WIDE[t, tile.wide * 8, (self.a_tile.across, self.b_tile.across)]
            a = self.a_tile.region(stage, tile.row(warp, i) * 2, 2, lane // 4, 1, const(0), groups)
            b = self.b_tile.region(stage, tile.column(warp), tile.wide, lane % 4 * 2, 2, const(0), groups)
            own = self.own(warp, lane, i, (const(0), const(tile.wide)), const(2))
            return Intrinsic(intrin.name, (own,), (a, b))

        fragments = of_lines if self.by_tiles else of_cores
        return self.copier.unrolled("i", tile.high, fragments) if tile.high > 1 else fragments(const(0))

    def own(self, warp: Expr, lane: Expr, i: Expr, j: tuple[Expr, Expr], two: Expr) -> Region:
        """The part of the sums in registers that the thread `lane` of the warp `warp` holds for fragment `i` of rows
        and the fragments `j` of columns, `two` elements each way, as operand of an instruction."""
        one, zero = const(1), const(0)
        return Region(self.sums, ((warp, one), (lane, one), (i, one), j, (zero, two), (zero, two)))

    # Results

    def finished(self, warp: Expr, lane: Expr) -> Stmt:
        """The statements that store the results of the thread `lane` of the warp `warp`; two neighbours at once if the
        results and all operands of an epilogue are contiguous."""
        tile, width = self.tile, self.neighbours
        known_m, known_n = as_int(self.m), as_int(self.n)
        first = self.new("n")

        def row(i: Expr, j: Expr, r: Expr, c: Expr) -> Stmt:
            m = self.new("m")
            stored = self.result(Load(self.sums, (warp, lane, i, j, r, c)), m, first * width + (c if width > 1 else 0))
            if width > 1:
                assert isinstance(c, Var)
                stored = For(c, const(width), stored, "vectorized")
            if known_m is None or known_m % tile.rows:
                stored = If(m < self.m, stored)
            return Let(m, self.y * tile.rows + tile.row(warp, i) * 16 + r * 8 + lane // 4, stored)

        def column(j: Expr, c: Expr) -> Stmt:
            rows = lambda i: self.copier.unrolled("r", 2, lambda r: row(i, j, r, c))  # noqa: E731
            inner = self.copier.unrolled("i", tile.high, rows)
            if known_n is None or known_n % tile.columns:
                inner = If(first * width < self.n, inner)
            place = (tile.column(warp) + j) * (8 // width) + lane % 4 * (2 // width) + (c if width == 1 else 0)
            return Let(first, self.x * (tile.columns // width) + place, inner)

        def columns(j: Expr) -> Stmt:
            return column(j, self.new("v")) if width > 1 else self.copier.unrolled("c", 2, partial(column, j))

        return self.copier.unrolled("j", tile.wide, columns)

    @property
    def neighbours(self) -> int:
        """How many neighbouring results of a row a thread stores at once: 2, or 1 if they or an epilogue's operands are
        not contiguous."""
        own = [it for it in self.c.columns if as_int(it.extent) != 1]
        index = self.c.result.indices[-1]
        if len(own) != 1 or index is not own[0].var or (as_int(self.n) or 1) % PAIR:
            return 1
        if self.epilogue is None or self.partial is not None:
            return PAIR
        return PAIR if neighbours(self.epilogue) % PAIR == 0 else 1

    def result(self, total: Expr, m: Expr, n: Expr) -> Stmt:
        """The store of `total`, the sum at row `m` and column `n`: as it is, after the epilogue, or to the partial
        sums."""
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


__all__ = ["BY_TILES", "Product", "ceil_div"]
