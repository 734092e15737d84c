"""Products of matrices on a GPU: a block a tile of the result, whose factors its threads copy to shared memory, and
warps that multiply fragments of them (`mma.sync`). Convolutions are products whose factors are computed where they are
copied (implicit products), and what follows pointwise is done on the sums in registers.

for y, x in tiles: for k in steps:      threads copy A[rows, depth] and B[columns, depth] to shared memory
                                        warps:  sums[rows, columns] += A[rows, depth] B[columns, depth]
                   threads:             result[...] = relu(sums[...] + bias[...])

Where copies are of 16 bytes, they go on while a tile is multiplied (`cp.async`): there are two tiles of each factor,
which take turns, and the barrier between two steps waits for the copies, too.

for p in steps / 2:     copy step 2p + 1 to tile 1;  multiply tile 0;  barrier
                        copy step 2p + 2 to tile 0;  multiply tile 1;  barrier

f32 are rounded to TF32, 10 bits of mantissa, and sums are of f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

from tilewright.ir.expr import Buffer, Expr, Load, Var, all_of, as_int, const, is_const, select
from tilewright.ir.loops import (
    Allocate,
    Block,
    BlockIter,
    For,
    If,
    Intrinsic,
    Let,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
    seq,
)
from tilewright.ir.rewrite import fresh_name, loads, map_expr, names_of, substitute, variables, walk
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.cost import Cost, number
from tilewright.plans.gpu.common import THREADS, inline
from tilewright.plans.gpu.contractions import Contraction, Factor, contraction, extent_of
from tilewright.plans.gpu.elements import nest_of, places_of
from tilewright.plans.gpu.nests import cheap
from tilewright.schedule.mma_intrinsics import COPY_ASYNC, COPY_BYTES, DEPTH, MMA, SUMS
from tilewright.schedule.routines import Routine, register
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.state import refuse
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

ROW_BYTES = 64
"""Bytes of a row of a tile in shared memory: two steps of depth."""
GAP_BYTES = 16
"""Bytes between two rows, so that the eight rows of a fragment are in different banks."""
WARP = 32
SYMBOL = 256
"""A symbolic extent counts as so many rows."""

TILES = ((128, 128, 2, 4), (128, 64, 4, 2), (64, 64, 2, 2), (32, 64, 1, 2), (16, 64, 1, 4), (64, 16, 4, 1))
"""Rows and columns of a tile, and of warps that share it."""


@dataclass(frozen=True, slots=True)
class _Tile:
    """Sizes of a tile: rows and columns of a block, of its warps, and elements of depth of a step."""

    rows: int
    columns: int
    row_warps: int
    column_warps: int
    depth: int

    @property
    def threads(self) -> int:
        return WARP * self.row_warps * self.column_warps

    @property
    def high(self) -> int:
        """Fragments of 16 rows of a warp."""
        return self.rows // (16 * self.row_warps)

    @property
    def wide(self) -> int:
        """Fragments of 8 columns of a warp."""
        return self.columns // (8 * self.column_warps)


def build(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """The function whose first contraction is a product of tiles; other stages give each element a thread. Raises
    ScheduleError for one without a contraction."""
    nests = list(func.body.stmts if isinstance(func.body, Seq) else (func.body,))
    names = set(names_of(func))
    for k, nest in enumerate(nests):
        c = contraction_of(nest)
        if c is None:
            continue
        following = nests[k + 1] if k + 1 < len(nests) else None
        epilogue = None if following is None else epilogue_of(c, following, func)
        tiles = _Product(func, c, epilogue, sizes, names).nest()
        rest = nests[k + 1 + (epilogue is not None) :]
        others = [nest_of(func, n, THREADS, names) for n in nests[:k]]
        more = [nest_of(func, n, THREADS, names) for n in rest]
        buffers = tuple(b for b in func.buffers if epilogue is None or b != c.result.buffer)
        return replace(func, body=seq([*others, tiles, *more]), buffers=buffers)
    raise refuse(func, "there is no contraction of matrices")


def contraction_of(nest: Stmt) -> Contraction | None:
    """The contraction that a nest of loops is."""
    while isinstance(nest, For):
        nest = nest.body
    return contraction(nest) if isinstance(nest, Block) else None


def epilogue_of(c: Contraction, nest: Stmt, func: PrimFunc) -> Block | None:
    """The pointwise block that a nest is, if it reads each sum once, at its own element, and nothing else does."""
    while isinstance(nest, For):
        nest = nest.body
    if not isinstance(nest, Block) or nest.is_reduction or not isinstance(nest.body, Store):
        return None
    if c.result.buffer in func.params or c.result.buffer in _read_by(func, {c.block.name, nest.name}):
        return None
    reads = {x for x in loads(nest.body.value) if x.buffer == c.result.buffer}
    others = {x.buffer for i in nest.body.indices for x in loads(i)}
    if len(reads) != 1 or c.result.buffer in others:
        return None
    (read,) = reads
    if any(not isinstance(i, Var) for i in read.indices) or len(set(read.indices)) != len(read.indices):
        return None
    own = {it.var for it in nest.iters if as_int(it.extent) != 1}
    return nest if own <= set(read.indices) else None


def _read_by(func: PrimFunc, but: set[str]) -> set[Buffer]:
    """The buffers that blocks other than these read."""
    results: set[Buffer] = set()
    for s in walk(func.body):
        if isinstance(s, Block) and s.name not in but:
            for inner in walk(s):
                if isinstance(inner, Store):
                    results |= {x.buffer for e in (inner.value, *inner.indices) for x in loads(e)}
    return results


Place = Callable[[Expr, Expr], tuple[Buffer, tuple[Expr, ...]]]
"""Where an element of a tile is in shared memory, by its line and its depth."""


class _Product:
    """The loops of one product."""

    def __init__(
        self, func: PrimFunc, c: Contraction, epilogue: Block | None, sizes: Mapping[str, int], names: set[str]
    ) -> None:
        self.c = c
        self.epilogue = epilogue
        self.names = names
        t = c.dtype
        depth = ROW_BYTES // t.itemsize
        self.tile = _Tile(sizes["rows"], sizes["columns"], sizes["row_warps"], sizes["column_warps"], depth)
        self.row = depth + GAP_BYTES // t.itemsize
        self.m, self.n, self.k = (extent_of(x) for x in (c.rows, c.columns, c.depth))
        self.x, self.y, self.z = self.new("tile_x"), self.new("tile_y"), self.new("batch")
        tile = self.tile
        self.stages = sizes["stages"]
        a, b = (tile.rows // 16, 2, 8, self.row), (tile.columns, self.row)
        self.a, self.b = ([self.buffer(n, "shared", x, t) for _ in range(self.stages)] for n, x in _named(a, b))
        shape = (tile.row_warps * tile.column_warps, WARP, tile.high, tile.wide, 2, 2)
        self.sums = self.buffer("sums", "local", shape, SUMS[t])

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
        for b in (self.sums, *self.b, *self.a):
            body = Allocate(b, body)
        loops = (
            (self.x, ceil_div(self.n, tile.columns), "blockIdx.x"),
            (self.y, ceil_div(self.m, tile.rows), "blockIdx.y"),
            (self.z, extent_of(self.c.batch), "blockIdx.z"),
        )
        for var, extent, index in loops:
            body = For(var, extent, body, "thread", index)  # type: ignore[arg-type]
        return body

    def steps(self) -> list[Stmt]:
        """Copies and products, one after the other."""
        step = self.new("step")
        return [For(step, self.count, seq([*self.copies(step, 0), self.by_threads(partial(self.multiplied, 0))]))]

    def pipelined(self) -> list[Stmt]:
        """Copies of the next step while one is multiplied, in two tiles that take turns."""
        pair = self.new("pair")
        one, two = pair * 2 + 1, pair * 2 + 2
        body = [
            self.there_is(one, seq(self.copies(one, 1))),
            self.by_threads(partial(self.multiplied, 0)),
            self.there_is(two, seq(self.copies(two, 0))),
            self.there_is(one, self.by_threads(partial(self.multiplied, 1))),
        ]
        return [*self.copies(const(0), 0), For(pair, ceil_div(self.count, 2), seq(body))]

    @property
    def count(self) -> Expr:
        """Steps of depth."""
        return ceil_div(self.k, self.tile.depth)

    def there_is(self, step: Expr, body: Stmt) -> Stmt:
        """The work of a step, if there is one of this number."""
        return If(step < self.count, body)

    def by_threads(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """The steps of all threads, given the numbers of warp and lane."""
        warp, lane = self.new("warp"), self.new("lane")
        inner = For(lane, const(WARP), body(warp, lane), "thread", "threadIdx.x")
        warps = self.tile.row_warps * self.tile.column_warps
        return For(warp, const(warps), inner, "thread", "threadIdx.y")

    def unrolled(self, name: str, extent: int, body: Callable[[Expr], Stmt]) -> Stmt:
        var = self.new(name)
        return For(var, const(extent), body(var), "unrolled")

    def each(self, warp: Expr, lane: Expr, body: Callable[[tuple[Expr, ...], Expr, Expr], Stmt]) -> Stmt:
        """The work on each sum of a thread: `body` is given the indices of the sum, its row and its column."""
        tile = self.tile

        def at(i: Expr, j: Expr, r: Expr, c: Expr) -> Stmt:
            row = (warp // tile.column_warps * tile.high + i) * 16 + r * 8 + lane // 4
            column = (warp % tile.column_warps * tile.wide + j) * 8 + lane % 4 * 2 + c
            return body((warp, lane, i, j, r, c), row, column)

        return self.unrolled(
            "i", tile.high,
            lambda i: self.unrolled(
                "j", tile.wide,
                lambda j: self.unrolled("r", 2, lambda r: self.unrolled("c", 2, lambda c: at(i, j, r, c))),
            ),
        )  # fmt: skip

    def cleared(self, warp: Expr, lane: Expr) -> Stmt:
        return self.each(warp, lane, lambda at, _r, _c: Store(self.sums, at, const(0, self.sums.dtype)))

    # Copies to shared memory

    def copies(self, step: Expr, stage: int) -> list[Stmt]:
        """The loops that fill both tiles of a stage."""
        c, tile = self.c, self.tile
        in_a, in_b = partial(self.in_a, stage), partial(self.in_b, stage)
        a = self.copied(c.a, c.rows, self.m, self.y * tile.rows, tile.rows, step, in_a)
        b = self.copied(c.b, c.columns, self.n, self.x * tile.columns, tile.columns, step, in_b)
        return [a, b]

    def in_a(self, stage: int, row: Expr, k: Expr) -> tuple[Buffer, tuple[Expr, ...]]:
        return self.a[stage], (row // 16, row // 8 % 2, row % 8, k)

    def in_b(self, stage: int, column: Expr, k: Expr) -> tuple[Buffer, tuple[Expr, ...]]:
        return self.b[stage], (column, k)

    def copied(
        self, f: Factor, lines: Sequence[BlockIter], limit: Expr, first: Expr, count: int, step: Expr, place: Place
    ) -> Stmt:
        """Threads bring `count` lines of a factor; neighbours bring what is next to each other in memory."""
        tile, iters = self.tile, lines
        width = vector_width(f, self.c)
        along_depth = width > 1 or f.along in [it.var for it in self.c.depth]
        per_line = tile.depth // width
        total = count * per_line
        rounds = max(1, ceil(total / tile.threads))

        def bring(warp: Expr, lane: Expr) -> Stmt:
            def one(q: Expr) -> Stmt:
                e, m, d = self.new("e"), self.new("line"), self.new("d")
                line = e // per_line if along_depth else e % count
                group = e % per_line if along_depth else e // count
                inside = all_of(self.within(m, limit, count, d * width))
                stored = self.moved(f, iters, (m, d), (line, group * width), width, inside, place)
                stored = Let(m, first + line, Let(d, step * per_line + group, stored))
                if total % tile.threads:
                    stored = If(e < total, stored)
                return Let(e, q * tile.threads + warp * WARP + lane, stored)

            return self.unrolled("q", rounds, one) if rounds > 1 else one(const(0))

        return self.by_threads(bring)

    def moved(
        self,
        f: Factor,
        lines: Sequence[BlockIter],
        source: tuple[Var, Var],
        target: tuple[Expr, Expr],
        width: int,
        inside: Expr,
        place: Place,
    ) -> Stmt:
        """`width` elements of a factor to a line of a tile, or zeros where they are not inside of the factor. `source`
        is the line and the number of the group of elements."""
        zero = const(0, f.dtype)
        if width == 1:
            buffer, indices = place(*target)
            return Store(buffer, indices, select(inside, self.value(f, lines, *source, 1, const(0)), zero))
        if self.stages > 1:
            moved = self.moved_async(f, lines, source, target, width, place)
            if is_const(inside, True):
                return moved
            v = self.new("v")
            buffer, indices = place(target[0], target[1] + v)
            return If(inside, moved, For(v, const(width), Store(buffer, indices, zero), "vectorized"))
        results = []
        for value in (True, False):
            v = self.new("v")
            buffer, indices = place(target[0], target[1] + v)
            stored = self.value(f, lines, *source, width, v) if value else zero
            results.append(For(v, const(width), Store(buffer, indices, stored), "vectorized"))
        return results[0] if is_const(inside, True) else If(inside, *results)

    def moved_async(
        self,
        f: Factor,
        lines: Sequence[BlockIter],
        source: tuple[Var, Var],
        target: tuple[Expr, Expr],
        width: int,
        place: Place,
    ) -> Stmt:
        """A copy of 16 bytes that goes on while the thread does other things."""
        one = const(1)
        read = self.value(f, lines, *source, width, const(0))
        buffer, indices = place(*target)
        assert isinstance(read, Load)
        to, source_ = (
            Region(b, (*((i, one) for i in at[:-1]), (at[-1], const(width))))
            for b, at in ((buffer, indices), (read.buffer, read.indices))
        )
        return Intrinsic(COPY_ASYNC[f.dtype].name, (to,), (source_,))

    def within(self, line: Expr, limit: Expr, count: int, depth: Expr) -> Iterator[Expr]:
        """Conditions for an element to be inside of the factor, those that may fail."""
        known, deep = as_int(limit), as_int(self.k)
        if known is None or known % count:
            yield line < limit
        if deep is None or deep % self.tile.depth:
            yield depth < self.k

    def value(self, f: Factor, lines: Sequence[BlockIter], line: Expr, group: Expr, width: int, lane: Expr) -> Expr:
        """A factor at a line, and at an element of a group of neighbours in depth."""
        deep = list(self.c.depth)
        deep[-1] = replace(deep[-1], extent=deep[-1].extent if width == 1 else deep[-1].extent // width)
        places = self.at(self.c.batch, self.z) | self.at(lines, line) | self.at(deep, group)
        if width > 1:
            places[deep[-1].var] = places[deep[-1].var] * width + lane
        return substitute(f.value, places)

    def at(self, iters: Sequence[BlockIter], number: Expr) -> dict[Var, Expr]:
        """The iterators of a point by its number among theirs."""
        return dict(zip((it.var for it in iters), places_of(number, [it.extent for it in iters]), strict=True))

    # Products

    def multiplied(self, stage: int, warp: Expr, lane: Expr) -> Stmt:
        tile, t = self.tile, self.c.dtype
        deep = DEPTH[t]
        row, column = warp // tile.column_warps * tile.high, warp % tile.column_warps * tile.wide

        def fragment(k: Expr, i: Expr, j: Expr) -> Stmt:
            one, two = const(1), const(2)
            sums = Region(
                self.sums,
                ((warp, one), (lane, one), (i, one), (j, one), (const(0), two), (const(0), two)),
            )
            a = Region(self.a[stage], ((row + i, one), (const(0), two), (lane // 4, one), (k * deep, const(deep))))
            b = Region(self.b[stage], (((column + j) * 8 + lane % 4 * 2, two), (k * deep, const(deep))))
            return Intrinsic(MMA[t].name, (sums,), (a, b))

        return self.unrolled(
            "k", tile.depth // deep,
            lambda k: self.unrolled(
                "i", tile.high, lambda i: self.unrolled("j", tile.wide, lambda j: fragment(k, i, j))
            ),
        )  # fmt: skip

    # Results

    def finished(self, warp: Expr, lane: Expr) -> Stmt:
        tile = self.tile
        known_m, known_n = as_int(self.m), as_int(self.n)

        def one(at: tuple[Expr, ...], row: Expr, column: Expr) -> Stmt:
            m, n = self.new("m"), self.new("n")
            conditions = []
            if known_m is None or known_m % tile.rows:
                conditions.append(m < self.m)
            if known_n is None or known_n % tile.columns:
                conditions.append(n < self.n)
            stored = self.result(Load(self.sums, at), m, n)
            if conditions:
                stored = If(all_of(conditions), stored)
            return Let(m, self.y * tile.rows + row, Let(n, self.x * tile.columns + column, stored))

        return self.each(warp, lane, one)

    def result(self, total: Expr, m: Expr, n: Expr) -> Stmt:
        """The store of one sum, or of what follows of it."""
        c = self.c
        own = self.at(c.batch, self.z) | self.at(c.rows, m) | self.at(c.columns, n)
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


def _named(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The names of the tiles, with their shapes."""
    return ("a_tile", a), ("b_tile", b)


def stages_of(c: Contraction) -> int:
    """Two tiles of each factor where copies can go on while one is multiplied, and there is a second step."""
    steps = as_int(ceil_div(extent_of(c.depth), ROW_BYTES // c.dtype.itemsize))
    wide = any(vector_width(f, c) > 1 for f in (c.a, c.b))
    return 2 if wide and (steps is None or steps > 1) else 1


def ceil_div(a: Expr, b: int) -> Expr:
    return (a + (b - 1)) // b


def vector_width(f: Factor, c: Contraction) -> int:
    """Elements of a factor that a thread copies at once: 16 bytes where it is a load whose elements follow each
    other along the depth and whose lines begin at multiples of them, else 1."""
    width = COPY_BYTES // f.dtype.itemsize
    last = c.depth[-1]
    extent = as_int(last.extent)
    if not isinstance(f.value, Load) or extent is None or extent % width:
        return 1
    *outer, inner = f.value.indices
    size = as_int(f.value.buffer.shape[-1])
    if inner is not last.var or size is None or size % width or any(last.var in variables(i) for i in outer):
        return 1
    return width


ROUTINE = register(Routine("gpu product", ("rows", "columns", "row_warps", "column_warps", "stages"), build))


def _anchor(structure: Structure) -> Contraction | None:
    return next((c for s in structure.stages if (c := contraction(s.block)) is not None), None)


def _fits(structure: Structure, target: Target) -> bool:
    gpu, c = target.gpu, _anchor(structure)
    return c is not None and gpu is not None and any(unit.a is c.dtype for unit in gpu.matrix)


def _candidates(structure: Structure, target: Target) -> list[Candidate]:
    """Tiles by how many products the busiest multiprocessor adds, by what it reads, and by how many blocks it holds at
    once, of which one multiplies while another begins or ends."""
    c, gpu = _anchor(structure), target.gpu
    assert c is not None and gpu is not None
    m, n, k, batch = (number(extent_of(x), SYMBOL) for x in (c.rows, c.columns, c.depth, c.batch))
    results = []
    for rows, columns, row_warps, column_warps in TILES:
        blocks = ceil(m / rows) * ceil(n / columns) * max(1, batch)
        waves = ceil(blocks / target.cores)
        depth = ceil(k / DEPTH[c.dtype]) * DEPTH[c.dtype]
        compute = waves * rows * columns * depth / (MULTIPLIED * 4 / c.dtype.itemsize)
        moved = waves * (rows + columns) * depth * c.dtype.itemsize / target.l2_bandwidth
        tile = (("rows", rows), ("columns", columns), ("row_warps", row_warps), ("column_warps", column_warps))
        stages = stages_of(c)
        knobs = (*tile, ("stages", stages))
        threads = WARP * row_warps * column_warps
        shared = (rows + columns) * (ROW_BYTES + GAP_BYTES) * stages
        resident = gpu.blocks(threads, rows * columns // threads + OTHER_REGISTERS, shared)
        if not resident:
            continue
        overhead = OVERHEAD / min(resident, max(1, ceil(blocks / target.cores)))
        results.append(Candidate(knobs, Cost(compute=compute, memory=moved, overhead=overhead)))
    return sorted(results, key=lambda x: x.cycles)


MULTIPLIED = 1024
"""Products of TF32 that a multiprocessor adds in a cycle (H100 whitepaper: 495 TFLOP/s without sparsity)."""
OTHER_REGISTERS = 72
"""Registers of a thread beside its sums, for addresses and fragments: ptxas took up to 84 more than sums for sm_90."""
OVERHEAD = 1500.0
"""Cycles of a block's start, first loads and last stores; estimated, not measured."""


def _apply(s: Schedule, structure: Structure, candidate: Candidate, _target: Target) -> None:
    anchor = next(stage for stage in structure.stages if contraction(stage.block) is not None)
    after = structure.after(anchor)
    for stage in structure.stages:
        if stage in after or cheap(structure, stage):
            inline(s, structure, stage)
    s.implement(ROUTINE.name, **dict(candidate.knobs))


PLAN = Plan("gpu product", _fits, _candidates, _apply, refines=("gpu nests",))

__all__ = ["PLAN", "ROUTINE", "build"]
