"""The loops of attention on a GPU (`attention.py` has the plan): a block has some rows of a head, each warp 16 of them,
and loops over the keys with an online softmax (Milakov and Gimelshein 2018, "Online normalizer calculation for
softmax"; Dao 2023, "FlashAttention-2", algorithm 1).

for head, rows:     threads copy Q[rows, depth] to shared memory
    for keys:       threads copy K[keys, depth] and V[depth, keys], while the step before is computed
                    warps:  scores = Q K^T * scale + mask           in registers, as sums of products are
                            top, total, o = those of all keys so far
                            o += exp(scores - top) V                whose first factor stays in registers
    threads:        y = o / total

Lanes 4g to 4g + 3 of a warp share rows g and g + 8 (`schedule/mma_intrinsics.py`). They exchange the greatest scores;
each sums a part of the total, and the parts are added at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tilewright.arith import prove
from tilewright.ir.dtype import DType, f32, i64
from tilewright.ir.expr import (
    Buffer,
    Expr,
    Load,
    Var,
    as_int,
    call,
    cast,
    ceildiv,
    const,
    equal,
    maximum,
    minimum,
    select,
)
from tilewright.ir.loops import Allocate, Barrier, For, If, Intrinsic, Let, Region, Stmt, Store, seq
from tilewright.ir.rewrite import fresh_name
from tilewright.ops.loopnest import Nest
from tilewright.plans.attention.operands import Operands
from tilewright.plans.attention.rows import AttentionRows
from tilewright.plans.attention.rows import Tile as RowTile
from tilewright.plans.gpu.copies import Copier, Side
from tilewright.plans.gpu.product_tiles import WARP, Moving, Shared, shape_of
from tilewright.schedule.mma_intrinsics import DEPTH, MMA, MMA_HELD, QUAD, QUAD_REDUCE
from tilewright.support.classes import dataclass
from tilewright.targets.gpu import COPY_BYTES

ROWS = 16
"""The rows of a warp."""
STAGES = 2
"""The number of tiles of keys, and of values, that are used in turns."""
CORE = 8
"""The lines of a core matrix, and the columns of a fragment of sums."""


@dataclass(frozen=True, slots=True)
class Values:
    """The layout of attention's values in shared memory: columns are lines and keys are depth, in transposed core
    matrices. For f32, even keys come before odd ones in these.

    [stage, column // 8, key // 8, key % 8 // 2, key % 2, column % 8]      types of 16 bits
    [stage, column // 8, key // 8, key % 2, key % 8 // 2, column % 8]      f32
    """

    buffer: Buffer

    def place(self, stage: Expr, line: Expr, k: Expr) -> tuple[Expr, ...]:
        """The indices in `buffer` of the element at column `line` and key `k` of a stage's tile."""
        pair = (k % CORE // 2, k % 2)
        return stage, line // CORE, k // CORE, *(pair[::-1] if self.buffer.dtype is f32 else pair), line % CORE

    def region(self, stage: Expr, column: Expr, group: Expr, within: Expr) -> Region:
        """The operand of the second product that holds the values of two columns: numbers `within` and `within` + 1 of
        the eight in group `column`."""
        one, zero, two, four = const(1), const(0), const(2), const(QUAD)
        groups, inner = (one, (two, four)) if self.buffer.dtype is f32 else (two, (four, two))
        middle = tuple((zero, n) for n in inner)
        return Region(self.buffer, ((stage, one), (column, one), (group, groups), *middle, (within, two)))


class AttentionTiles:
    """Builds the loops of one attention with `warps` warps in a block and `keys` keys in a step."""

    def __init__(self, operands: Operands, params: Sequence[Buffer], sizes: Mapping[str, int], names: set[str]) -> None:
        self.names = names
        self.warps, self.each = sizes["warps"], sizes["keys"]
        nest = Nest("attention", params)  # rows' arithmetic as expressions: no statement goes there
        self.rows = rows = AttentionRows(nest, operands, RowTile(ROWS, CORE, self.each, 1, 1), None)
        self.attrs, self.dtype = operands.attrs, operands.q.dtype
        self.tall = ROWS * self.warps
        self.depth, self.out_depth = (as_int(d) or 0 for d in (rows.depth, rows.out_depth))
        self.deep = -(-self.depth // DEPTH[self.dtype]) * DEPTH[self.dtype]
        self.wide = -(-self.out_depth // CORE)
        self.x, self.y = self.new("tile"), self.new("head")
        self.b, self.h = self.y // self.attrs.heads, self.y % self.attrs.heads
        self.buffers: list[Buffer] = []
        self.copier = Copier(self.new, self.by_threads, self.warps * WARP, STAGES)
        self.q_tile, self.k_tile = (
            Shared(self.shared(name, shape_of(self.dtype, stages, lines, self.deep, False)), across=False)
            for name, stages, lines in (("q_tile", 1, self.tall), ("k_tile", STAGES, self.each))
        )
        shape = (STAGES, self.wide, self.each // CORE, *((2, 4) if self.dtype is f32 else (4, 2)), CORE)
        self.v_tile = Values(self.shared("v_tile", shape))
        fragments = self.each // CORE
        self.scores = self.own("scores", f32, fragments, 2, 2)
        self.shares = self.scores if self.dtype is f32 else self.own("shares", self.dtype, fragments, 2, 2)
        self.o = self.own("o", f32, self.wide, 2, 2)
        self.top, self.part, self.new_top, self.factor, self.total = (
            self.own(name, f32, 2) for name in ("top", "part", "new_top", "factor", "total")
        )

    def new(self, name: str, t: DType = i64) -> Var:
        name = fresh_name(name, self.names)
        self.names.add(name)
        return Var(name, t)

    def shared(self, name: str, shape: Sequence[int]) -> Buffer:
        self.buffers.append(Buffer(self.new(name).name, self.dtype, tuple(map(const, shape)), "shared"))
        return self.buffers[-1]

    def own(self, name: str, t: DType, *shape: int) -> Buffer:
        """A new buffer in registers, with `shape` for each thread."""
        self.buffers.append(Buffer(self.new(name).name, t, tuple(map(const, (self.warps, WARP, *shape))), "local"))
        return self.buffers[-1]

    def nest(self) -> Stmt:
        body = seq([self.by_threads(self.cleared), *self.steps(), self.by_threads(self.finished)])
        for b in reversed(self.buffers):
            body = Allocate(b, body)
        body = For(self.x, ceildiv(self.rows.rows, self.tall), body, "thread", "blockIdx.x")
        batch, _, _ = self.rows.dims(self.rows.q, 0)
        return For(self.y, batch * self.attrs.heads, body, "thread", "blockIdx.y")

    def by_threads(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """The loops over all threads of a block around `body(warp, lane)`."""
        lane = self.new("lane")
        if self.warps == 1:
            return For(lane, const(WARP), body(const(0), lane), "thread", "threadIdx.x")
        warp = self.new("warp")
        inner = For(lane, const(WARP), body(warp, lane), "thread", "threadIdx.x")
        return For(warp, const(self.warps), inner, "thread", "threadIdx.y")

    # Steps over the keys

    @property
    def count(self) -> Expr:
        """The number of steps of a block: over all keys, or up to the last key that its last row sees."""
        keys = self.rows.keys
        if self.attrs.causal:
            last = minimum((self.x + 1) * self.tall, self.rows.rows)
            keys = maximum(minimum(last + (keys - self.rows.rows), keys), 0)
        return ceildiv(keys, self.each)

    def steps(self) -> list[Stmt]:
        """The steps of a block, pipelined: copies of the next keys run while some are computed. The block's part of Q
        is copied first."""
        zero, step = const(0), self.new("step")
        queries, later = self.copier.copied(self.side(0, self.x * self.tall), zero, zero), step + 1
        first = seq([queries, *self.copies(zero, zero)])
        body = [
            Barrier("block"),
            If(later < self.count, seq(self.copies(later, later % STAGES))),
            self.by_threads(partial(self.computed, step, step % STAGES)),
        ]
        begun = first if prove(self.count > 0) else If(self.count > 0, first)
        return [begun, For(step, self.count, seq(body))]

    def copies(self, step: Expr, stage: Expr) -> list[Stmt]:
        """Loops that copy the keys and the values of one step into the shared memory of `stage`."""
        zero = const(0)
        return [
            self.copier.copied(self.side(1, step * self.each), zero, stage),
            self.copier.copied(self.side(2, zero), step, stage),
        ]

    def side(self, operand: int, first: Expr) -> Side:
        """The description of the copy of queries, keys or values (`operand` 0 to 2) whose first row is `first`. For
        values the roles are exchanged: their columns are the tile's lines, and the keys its depth."""
        across = operand == 2
        depth = self.out_depth if across else self.depth
        width = COPY_BYTES // self.dtype.itemsize
        width = 1 if depth % width else width
        heads = self.h if operand == 0 else self.h // (self.attrs.heads // self.attrs.groups)

        def value(line: Expr, deep: Expr, lane: Expr) -> Expr:
            s, d = (deep, line) if across else (line, deep)
            d = d * width + lane if width > 1 else d
            if operand == 0:
                return self.rows.q[self.rows.at(0, self.b, s, heads, d)]
            buffer = self.rows.k if operand == 1 else self.rows.v
            new = buffer[self.rows.at(operand, self.b, s - self.rows.earlier, heads, d)]
            if not self.rows.past:
                return new
            past = self.rows.past[operand]
            return select(s < self.rows.earlier, past[self.b + self.attrs.past_first, heads, s, d], new)

        moving = Moving(width, across, under_way=False)
        length = self.rows.rows if operand == 0 else self.rows.keys
        if across:
            return Side(value, const(depth), length, first, self.wide * CORE, self.each, moving, self.v_tile)
        count, tile = (self.tall, self.q_tile) if operand == 0 else (self.each, self.k_tile)
        return Side(value, length, const(depth), first, count, self.deep, moving, tile)

    # A warp's steps

    def over(self, body: Callable[[Expr, Expr, Expr], Stmt], fragments: int) -> Stmt:
        """Unrolled loops around `body(fragment, row, column)` over the sums that a thread holds in registers: in each
        of `fragments` fragments two rows by two columns."""
        unrolled = self.copier.unrolled
        return unrolled("j", fragments, lambda j: unrolled("r", 2, lambda r: unrolled("c", 2, lambda c: body(j, r, c))))

    def of_rows(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """An unrolled loop around `body(r)` over the two rows (of each fragment of 16) that a thread holds."""
        return self.copier.unrolled("r", 2, body)

    def cleared(self, warp: Expr, lane: Expr) -> Stmt:
        zero = const(0.0, f32)
        state = self.of_rows(
            lambda r: seq([Store(self.top, (warp, lane, r), self.rows.low), Store(self.total, (warp, lane, r), zero)])
        )
        return seq([state, self.over(lambda j, r, c: Store(self.o, (warp, lane, j, r, c), zero), self.wide)])

    def row(self, warp: Expr, lane: Expr, r: Expr) -> Expr:
        """The query row that a thread's row `r` (0 or 1) is, from the numbers of its warp and lane."""
        return self.x * self.tall + warp * ROWS + r * CORE + lane // QUAD

    def computed(self, step: Expr, stage: Expr, warp: Expr, lane: Expr) -> Stmt:
        """The statements, for the thread `lane` of the warp `warp`, of step `step` of the loop over keys, whose copies
        are in `stage`: scores, online softmax, and the product with the values."""
        return seq(
            [
                self.multiplied(stage, warp, lane),
                self.seen(step, warp, lane),
                *self.softmax(warp, lane),
                self.weighted(stage, warp, lane),
            ]
        )

    def multiplied(self, stage: Expr, warp: Expr, lane: Expr) -> Stmt:
        """The statements, for the thread `lane` of the warp `warp`, of the first product of a step: the warp's queries
        times the step's keys, whose copies are in `stage`, stored to the scores."""
        deep, zero = DEPTH[self.dtype], const(0.0, f32)
        groups = deep * self.dtype.itemsize // COPY_BYTES
        unrolled, fragments = self.copier.unrolled, self.each // CORE
        intrin = MMA[self.dtype, (False, False)]

        def fragment(k: Expr, j: Expr) -> Stmt:
            a = self.q_tile.region(const(0), warp * 2, 2, lane // QUAD, 1, k * groups, groups)
            b = self.k_tile.region(stage, j, 1, lane % QUAD * 2, 2, k * groups, groups)
            return Intrinsic(intrin.name, (self.sums(self.scores, warp, lane, j),), (a, b))

        cleared = self.over(lambda j, r, c: Store(self.scores, (warp, lane, j, r, c), zero), fragments)
        products = unrolled("k", self.deep // deep, lambda k: unrolled("j", fragments, lambda j: fragment(k, j)))
        return seq([cleared, products])

    def sums(self, buffer: Buffer, warp: Expr, lane: Expr, j: Expr) -> Region:
        """The part of `buffer` that holds the sums of fragment `j` of the thread `lane` of the warp `warp`, as operand
        of an instruction."""
        one, zero, two = const(1), const(0), const(2)
        return Region(buffer, ((warp, one), (lane, one), (j, one), (zero, two), (zero, two)))

    def seen(self, step: Expr, warp: Expr, lane: Expr) -> Stmt:
        """The statements, for the thread `lane` of the warp `warp`, that apply scale and mask to the scores of step
        `step`; beyond the last key scores are minus infinity."""
        rows, keys, exact = self.rows, self.rows.keys, prove(equal(self.rows.keys % self.each, 0))

        def one(j: Expr, r: Expr, c: Expr) -> Stmt:
            at = (warp, lane, j, r, c)
            i, key = self.new("i"), self.new("key")
            clipped = minimum(i, rows.rows - 1), key if exact else minimum(key, keys - 1)
            value = rows.score(Load(self.scores, at), self.b, self.h, *clipped)
            stored = Store(self.scores, at, value if exact else select(key < keys, value, rows.low))
            place = step * self.each + j * CORE + lane % QUAD * 2 + c
            return Let(i, self.row(warp, lane, r), Let(key, place, stored))

        return self.over(one, self.each // CORE)

    def softmax(self, warp: Expr, lane: Expr) -> list[Stmt]:
        """The statements, for the thread `lane` of the warp `warp`, of the running softmax of a step: probabilities
        without the division, and earlier sums scaled to the new maximum."""
        fragments, one = self.each // CORE, const(1)
        exp = partial(call, "exp_nonpositive")

        def at(r: Expr) -> tuple[Expr, Expr, Expr]:
            return warp, lane, r

        def greatest(j: Expr, r: Expr, c: Expr) -> Stmt:
            return Store(self.part, at(r), call("larger", self.part[at(r)], self.scores[warp, lane, j, r, c]))

        def exchanged(r: Expr) -> Stmt:
            return Intrinsic(
                QUAD_REDUCE["larger", f32].name,
                (Region(self.new_top, ((warp, one), (lane, one), (r, one))),),
                (Region(self.part, ((warp, one), (lane // QUAD * QUAD, const(QUAD)), (r, one))),),
            )

        def base(r: Expr) -> Expr:
            return select(equal(self.new_top[at(r)], self.rows.low), self.rows.number(0.0), self.new_top[at(r)])

        def updated(r: Expr) -> Stmt:
            total = self.total[at(r)] * self.factor[at(r)]
            return seq(
                [
                    Store(self.factor, at(r), exp(self.top[at(r)] - base(r))),
                    Store(self.top, at(r), self.new_top[at(r)]),
                    Store(self.total, at(r), total),
                ]
            )

        def share(j: Expr, r: Expr, c: Expr) -> Stmt:
            place = (warp, lane, j, r, c)
            value = self.new("share", f32)
            steps = [
                Store(self.shares, place, cast(value, self.dtype)),
                Store(self.total, at(r), self.total[at(r)] + value),
            ]
            return Let(value, exp(self.scores[place] - base(r)), seq(steps))

        def scaled(j: Expr, r: Expr, c: Expr) -> Stmt:
            place = (warp, lane, j, r, c)
            return Store(self.o, place, self.o[place] * self.factor[at(r)])

        return [
            self.of_rows(lambda r: Store(self.part, at(r), self.top[at(r)])),
            self.over(greatest, fragments),
            self.of_rows(exchanged),
            self.of_rows(updated),
            self.over(share, fragments),
            self.over(scaled, self.wide),
        ]

    def weighted(self, stage: Expr, warp: Expr, lane: Expr) -> Stmt:
        """The statement, for the thread `lane` of the warp `warp`, that adds the products of the warp's probabilities
        with the step's values, in buffer `stage`, to the result's sums."""
        groups = DEPTH[self.dtype] // CORE
        one, zero, two, unrolled = const(1), const(0), const(2), self.copier.unrolled

        def fragment(k: Expr, d: Expr) -> Stmt:
            lanes = (lane // QUAD * QUAD, const(QUAD))
            a = Region(self.shares, ((warp, one), lanes, (k * groups, const(groups)), (zero, two), (zero, two)))
            b = self.v_tile.region(stage, d, k * groups, lane % QUAD * 2)
            return Intrinsic(MMA_HELD[self.dtype].name, (self.sums(self.o, warp, lane, d),), (a, b))

        steps = self.each // DEPTH[self.dtype]
        return unrolled("k", steps, lambda k: unrolled("d", self.wide, lambda d: fragment(k, d)))

    def finished(self, warp: Expr, lane: Expr) -> Stmt:
        """The end of a block, for the thread `lane` of the warp `warp`: sums of probabilities are added across the four
        lanes of a row, and results are divided by them and stored."""
        one, rows = const(1), self.rows

        def summed(r: Expr) -> Stmt:
            return Intrinsic(
                QUAD_REDUCE["add", f32].name,
                (Region(self.part, ((warp, one), (lane, one), (r, one))),),
                (Region(self.total, ((warp, one), (lane // QUAD * QUAD, const(QUAD)), (r, one))),),
            )

        def one_of(j: Expr, r: Expr, c: Expr) -> Stmt:
            i, d = self.new("i"), self.new("d")
            value = cast(rows.quotient(self.o[warp, lane, j, r, c], self.part[warp, lane, r]), rows.y.dtype)
            stored: Stmt = Store(rows.y, rows.at(3, self.b, i, self.h, d), value)
            if self.out_depth % CORE:
                stored = If(d < self.out_depth, stored)
            if not prove(equal(rows.rows % self.tall, 0)):
                stored = If(i < rows.rows, stored)
            return Let(i, self.row(warp, lane, r), Let(d, j * CORE + lane % QUAD * 2 + c, stored))

        return seq([self.of_rows(summed), self.over(one_of, self.wide)])


__all__ = ["CORE", "ROWS", "STAGES", "AttentionTiles"]
