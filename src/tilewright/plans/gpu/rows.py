"""Reductions over rows on a GPU: a warp or a block of warps for each row, which it reads in vectors and keeps in
registers.

for block: for each stage in order:
    reduction                threads reduce their own elements, a warp its lanes, a block its warps (shared memory)
    of rows and columns      threads compute their elements, which stay in registers for the stages after
    of rows alone            each thread computes the row's value
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var, as_int, const, product
from tilewright.ir.loops import Allocate, Block, For, If, Intrinsic, Let, PrimFunc, Region, Seq, Stmt, Store, seq
from tilewright.ir.rewrite import fresh_name, loads, map_expr, names_of, substitute
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.cost import number
from tilewright.plans.gpu.common import candidate, inline
from tilewright.plans.gpu.contractions import contraction, extent_of
from tilewright.plans.gpu.elements import places_of
from tilewright.plans.gpu.nests import cheap
from tilewright.plans.gpu.row_stages import Rows, RowStage, rows_of
from tilewright.schedule.mma_intrinsics import WARP_REDUCE
from tilewright.schedule.routines import Routine, register
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.state import refuse
from tilewright.targets.target import Target

WARP = 32
SHORT = 1024
"""The largest number of columns for which a single warp processes a row."""
WARPS = 8
"""The number of warps of a block, each with its own row, if rows are short."""
ROW_WARPS = 16
"""The number of warps of a block that processes one row."""
HELD = 64
"""The largest number of elements, of all stages, that a thread keeps in registers."""


def build(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """`func` with a kernel that processes its stages row by row, tiled by `sizes`. Raises ScheduleError if they have no
    common rows."""
    rows = rows_of(_blocks(func))
    if rows is None:
        raise refuse(func, "the stages have no common rows")
    body = _Builder(func, rows, sizes["warps"], sizes["each"], sizes["width"]).nest()
    return replace(func, body=body, buffers=())


def _blocks(func: PrimFunc) -> list[Block]:
    """The blocks of a function, if each nest has one; () otherwise."""
    results = []
    for nest in func.body.stmts if isinstance(func.body, Seq) else (func.body,):
        while isinstance(nest, For):
            nest = nest.body
        if not isinstance(nest, Block):
            return []
        results.append(nest)
    return results


class _Builder:
    """Builds the loops of one function with `warps` warps in a block, of which `each` share a row."""

    def __init__(self, func: PrimFunc, rows: Rows, warps: int, each: int, width: int) -> None:
        self.func = func
        self.rows = rows
        self.warps, self.each, self.width = warps, each, width
        self.names = set(names_of(func))
        self.count = product(rows.rows)
        self.columns = as_int(product(rows.columns)) or 1
        self.parts = ceil(self.columns / (width * each * WARP))
        self.block = self.new("block")
        self.held: dict[Buffer, tuple[Buffer, bool]] = {}
        self.buffers: list[Buffer] = []

    def new(self, name: str) -> Var:
        name = fresh_name(name, self.names)
        self.names.add(name)
        return Var(name)

    def buffer(self, name: str, t: DType, *shape: int, scope: str = "local") -> Buffer:
        """A new buffer: in registers (scope "local") with `shape` for each thread, or of another scope with `shape` for
        the block."""
        own = (self.warps, WARP) if scope == "local" else ()
        result = Buffer(self.new(name).name, t, tuple(map(const, (*own, *shape))), scope)  # type: ignore[arg-type]
        self.buffers.append(result)
        return result

    def nest(self) -> Stmt:
        steps = [step for stage in self.rows.stages for step in self.stage(stage)]
        body = seq(steps)
        for b in reversed(self.buffers):
            body = Allocate(b, body)
        share = self.warps // self.each
        extent = self.count if share == 1 else (self.count + (share - 1)) // share
        return For(self.block, extent, body, "thread", "blockIdx.x")

    def stage(self, stage: RowStage) -> list[Stmt]:
        if stage.operator:
            return self.reduced(stage)
        return [self.elements(stage) if stage.columns else self.of_rows(stage)]

    def by_threads(self, body: Callable[[Expr, Expr, Expr, Expr], Stmt], *, whole: bool = False) -> Stmt:
        """Loops over all threads of a block around `body(warp, lane, row, number of the thread within the row)`.
        Threads of rows past the last do nothing, unless `whole`."""
        warp, lane, row, own = (self.new(n) for n in ("warp", "lane", "row", "own"))
        share, known = self.warps // self.each, as_int(self.count)
        at = self.block if share == 1 else self.block * share + warp // self.each
        inner = body(warp, lane, row, own)
        if share > 1 and (known is None or known % share) and not whole:
            inner = If(row < self.count, inner)
        place = lane if self.each == 1 else warp % self.each * WARP + lane
        inner = Let(row, at, Let(own, place, inner))
        inner = For(lane, const(WARP), inner, "thread", "threadIdx.x")
        return For(warp, const(self.warps), inner, "thread", "threadIdx.y")

    def elements_of(self, own: Expr, body: Callable[[Expr, Expr, Expr], Stmt], kind: str) -> Stmt:
        """Loops over a row's elements that thread number `own` of the row has, around `body(part, element in the
        vector, column)`. The innermost loop has this `kind`."""
        part, v = self.new("part"), self.new("v")
        group = self.new("group")
        column = group if self.width == 1 else group * self.width + v
        inner = body(part, v if self.width > 1 else const(0), column)
        if self.width > 1:
            inner = For(v, const(self.width), inner, kind)  # type: ignore[arg-type]
        if self.columns % (self.parts * self.each * WARP * self.width):
            inner = If(group < self.columns // self.width, inner)
        inner = Let(group, part * (self.each * WARP) + own, inner)
        return For(part, const(self.parts), inner, "unrolled")

    def places(self, stage: RowStage, row: Expr, column: Expr | None) -> dict[Var, Expr]:
        """Iterator of `stage` -> its value at this row and column."""
        rows = dict(enumerate(places_of(row, self.rows.rows)))
        extents = list(self.rows.columns)
        columns: dict[int, Expr] = {}
        if column is not None:
            columns = dict(enumerate(places_of(column, extents)))
        where: dict[Var, Expr] = {it.var: const(0) for it in stage.block.iters}
        for var, (kind, k) in stage.labels.items():
            where[var] = rows[k] if kind == "row" else columns[k]
        return where

    def value(self, e: Expr, places: Mapping[Var, Expr], warp: Expr, lane: Expr, part: Expr, v: Expr) -> Expr:
        """The expression `e` of a stage at `places`, where loads of earlier results become reads of the registers
        (`part`, `v`) of the thread `lane` of the warp `warp`."""

        def on(x: Expr) -> Expr | None:
            if not isinstance(x, Load) or x.buffer not in self.held:
                return None
            own, columns = self.held[x.buffer]
            return Load(own, (warp, lane, part, v) if columns else (warp, lane))

        return map_expr(substitute(e, places), on)

    def is_output(self, buffer: Buffer) -> bool:
        return buffer in self.func.params

    def elements(self, stage: RowStage) -> Stmt:
        store, output = stage.store, self.is_output(stage.store.buffer)
        read = any(stage.store.buffer in _reads(s) for s in self.rows.stages if s is not stage)
        own = (
            None
            if output and not read
            else self.buffer(f"{stage.block.name}_own", store.buffer.dtype, self.parts, self.width)
        )

        def body(warp: Expr, lane: Expr, row: Expr, mine: Expr) -> Stmt:
            def one(part: Expr, v: Expr, column: Expr) -> Stmt:
                places = self.places(stage, row, column)
                value = self.value(store.value, places, warp, lane, part, v)
                results: list[Stmt] = []
                if own is not None:
                    results.append(Store(own, (warp, lane, part, v), value))
                    value = Load(own, (warp, lane, part, v))
                if output:
                    results.append(Store(store.buffer, tuple(substitute(i, places) for i in store.indices), value))
                return seq(results)

            return self.elements_of(mine, one, "vectorized")

        result = self.by_threads(body)
        if own is not None:
            self.held[store.buffer] = own, True
        return result

    def of_rows(self, stage: RowStage) -> Stmt:
        store = stage.store
        own = self.buffer(f"{stage.block.name}_own", store.buffer.dtype)

        def body(warp: Expr, lane: Expr, row: Expr, mine: Expr) -> Stmt:
            places = self.places(stage, row, None)
            value = self.value(store.value, places, warp, lane, const(0), const(0))
            held = Store(own, (warp, lane), value)
            return seq([held, *self.written(stage, places, mine, Load(own, (warp, lane)))])

        result = self.by_threads(body)
        self.held[store.buffer] = own, False
        return result

    def written(self, stage: RowStage, places: Mapping[Var, Expr], mine: Expr, value: Expr) -> list[Stmt]:
        """The store of `value`, one per row, by the row's first thread (`mine` 0); [] if the stage is no output."""
        store = stage.store
        if not self.is_output(store.buffer):
            return []
        return [If(mine < 1, Store(store.buffer, tuple(substitute(i, places) for i in store.indices), value))]

    def reduced(self, stage: RowStage) -> list[Stmt]:
        store, init, name = stage.store, stage.block.init, stage.block.name
        assert isinstance(init, Store) and stage.value is not None
        t, operator, value = store.buffer.dtype, stage.operator, stage.value
        part_of, lanes_of = self.buffer(f"{name}_part", t), self.buffer(f"{name}_lanes", t)
        total = lanes_of if self.each == 1 else self.buffer(f"{name}_total", t)

        def own(warp: Expr, lane: Expr, row: Expr, mine: Expr) -> Stmt:
            def one(part: Expr, v: Expr, column: Expr) -> Stmt:
                places = self.places(stage, row, column)
                new = self.value(value, places, warp, lane, part, v)
                return Store(part_of, (warp, lane), Op(operator, (Load(part_of, (warp, lane)), new), t))

            return self.elements_of(mine, one, "unrolled")

        def cleared(warp: Expr, lane: Expr, _row: Expr, _mine: Expr) -> Stmt:
            return Store(part_of, (warp, lane), init.value)

        def lanes(warp: Expr, lane: Expr, _row: Expr, _mine: Expr) -> Stmt:
            one, zero = const(1), const(0)
            out = Region(lanes_of, ((warp, one), (lane, one)))
            return Intrinsic(
                WARP_REDUCE[operator, t].name, (out,), (Region(part_of, ((warp, one), (zero, const(WARP)))),)
            )

        steps = [self.by_threads(cleared, whole=True), self.by_threads(own), self.by_threads(lanes, whole=True)]
        if self.each > 1:
            steps += self.of_warps(operator, t, lanes_of, total, init.value)
        self.held[store.buffer] = total, False
        if self.is_output(store.buffer):

            def output(warp: Expr, lane: Expr, row: Expr, mine: Expr) -> Stmt:
                return seq(self.written(stage, self.places(stage, row, const(0)), mine, Load(total, (warp, lane))))

            steps.append(self.by_threads(output))
        return steps

    def of_warps(self, operator: str, t: DType, lanes_of: Buffer, total: Buffer, least: Expr) -> list[Stmt]:
        """Statements that combine by `operator` the values `lanes_of` of a block's warps into `total`, which every
        thread gets; `least` is the operator's neutral element."""
        shared = self.buffer(f"{total.name}_warps", t, self.warps, scope="shared")

        def shown(warp: Expr, lane: Expr, _row: Expr, _mine: Expr) -> Stmt:
            return If(lane < 1, Store(shared, (warp,), Load(lanes_of, (warp, lane))))

        def combined(warp: Expr, lane: Expr, _row: Expr, _mine: Expr) -> Stmt:
            k, at = self.new("k"), (warp, lane)
            step = Store(total, at, Op(operator, (Load(total, at), Load(shared, (k,))), t))
            return seq([Store(total, at, least), For(k, const(self.warps), step, "unrolled")])

        return [self.by_threads(shown, whole=True), self.by_threads(combined, whole=True)]


def _reads(stage: RowStage) -> set[Buffer]:
    return {x.buffer for x in loads(stage.store.value)}


ROUTINE = register(Routine("gpu rows", ("warps", "each", "width"), build))


def _rows(structure: Structure) -> Rows | None:
    return rows_of([s.block for s in structure.stages])


def _fits(structure: Structure, _target: Target) -> bool:
    rows = _rows(structure)
    if rows is None or any(s.operator and (s.operator, s.store.buffer.dtype) not in WARP_REDUCE for s in rows.stages):
        return False
    columns = as_int(product(rows.columns))
    if columns is None or columns < WARP or any(_is_product(s.block) for s in rows.stages):
        return False
    held = sum(s.columns and not s.operator and s.store.buffer not in structure.func.params for s in rows.stages)
    return max(1, held) * ceil(columns / (ROW_WARPS * WARP)) <= HELD


def _is_product(block: Block) -> bool:
    """Whether a block is a product of two matrices, rather than with a vector."""
    c = contraction(block)
    return c is not None and min(number(extent_of(x), UNKNOWN) for x in (c.rows, c.columns)) > VECTORS


VECTORS = 2
"""The largest number of rows or columns of a product that counts as one with vectors, whose sums are rows."""
UNKNOWN = 1 << 20


def _candidates(structure: Structure, target: Target) -> list[Candidate]:
    rows = _rows(structure)
    assert rows is not None
    columns, last = as_int(product(rows.columns)) or 1, as_int(rows.columns[-1]) or 1
    width = 4 if last % 4 == 0 and columns >= 4 * WARP and _contiguous(rows) else 1
    if columns <= SHORT:
        warps, each = WARPS, 1
    else:
        warps = each = min(ROW_WARPS, max(4, 1 << (ceil(columns / (WARP * width * 4)) - 1).bit_length()))
    return [candidate(structure, target, warps=warps, each=each, width=width)]


def _contiguous(rows: Rows) -> bool:
    """Whether all stores of values per column have the last column dimension as their last index."""
    last = ("column", len(rows.columns) - 1)
    for s in rows.stages:
        if s.columns and not s.operator:
            index = s.store.indices[-1] if s.store.indices else None
            if not isinstance(index, Var) or s.labels.get(index) != last:
                return False
    return True


def _apply(s: Schedule, structure: Structure, chosen: Candidate, _target: Target) -> None:
    for stage in structure.stages:
        if cheap(structure, stage):
            inline(s, structure, stage)
    s.implement(ROUTINE.name, **dict(chosen.knobs))


PLAN = Plan("gpu rows", _fits, _candidates, _apply, refines=("gpu nests", "gpu product"))

__all__ = ["PLAN", "ROUTINE", "build"]
