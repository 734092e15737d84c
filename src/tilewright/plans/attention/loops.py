"""The loops of attention: register tiles over packed keys and values, the softmax of a block of rows between them.

    for batch and head:                                      threads; or head and sequence of packed rows
        kt[panel, d, lane] = k;  vp[panel, j, lane] = v      panels of `width`, once a head
        for block of row tiles:
            for block of keys:                               one if the keys are few
                scores = q kt * scale + mask                 tiles of rows x width in registers
                m, l, scores = softmax so far                online: Milakov and Gimelshein 2018, "Online normalizer
                o = o * exp(m_old - m) + scores vp           calculation for softmax"
            y = o / l

For few rows (decoding) packing would not pay (`direct.py`). A last tile that is not full overlaps the tile before it:
both write the same values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tilewright.ir.expr import Buffer, Expr, as_int, call, cast, ceildiv, const, maximum, minimum, select
from tilewright.ir.loops import PrimFunc
from tilewright.ops.loopnest import Nest
from tilewright.ops.lowered.attention import ORDERS
from tilewright.plans.attention.direct import DirectLoops
from tilewright.plans.attention.factors import Factors, OrdinaryFactors, PairedFactors
from tilewright.plans.attention.matrix_factors import MatrixFactors, has_pieces
from tilewright.plans.attention.operands import Operands
from tilewright.plans.attention.rows import AttentionRows, Span, Tile
from tilewright.schedule.dot_intrinsics import Dot, named_dot

F32_ROWS = 4
"""The number of rows of a tile for heads whose numbers cannot be split into pieces."""
DIRECT_KEYS = 4
"""The number of keys of a block for a single row, if tiles are chosen for any number of rows."""


def attention_loops(name: str, operands: Operands, params: Sequence[Buffer], tile: Tile) -> PrimFunc:
    """The loop program of attention with the tiles `tile`, as a function called `name` with parameters `params`."""
    nest, attrs = Nest(name, params), operands.attrs
    dot = None if attrs.dot is None else named_dot(attrs.dot)
    with heads(nest, operands) as (b, h, g, span):
        rows = AttentionRows(nest, operands, tile, span)
        if dot is not None and attrs.terms:
            with has_pieces(rows, b, h, g) as fine:
                with nest.when(fine):
                    AttentionLoops(rows, MatrixFactors(rows, dot, attrs.terms)).head(b, h, g)
                with nest.when(call("not", fine)):
                    rows = AttentionRows(nest, operands, replace(tile, rows=F32_ROWS), span)
                    AttentionLoops(rows, factors_of(rows, None)).head(b, h, g)
        else:
            AttentionLoops(rows, factors_of(rows, dot)).head(b, h, g)
    return nest.finish()


def factors_of(rows: AttentionRows, dot: Dot | None) -> Factors:
    """The way that factors are stored and multiplied: without `dot` in the type of the sums, with a dot instruction in
    pairs, with an instruction for matrices in matrix registers."""
    if dot is None:
        return OrdinaryFactors(rows)
    return PairedFactors(rows, dot) if dot.rows == 1 else MatrixFactors(rows, dot)


@contextmanager
def heads(nest: Nest, operands: Operands) -> Iterator[tuple[Expr, Expr, Expr, Span | None]]:
    """The parallel loop over batch entries, or packed sequences, and query heads. Yields (batch entry, query head, head
    of the keys that it uses, rows of the packed sequence or None)."""
    attrs, starts = operands.attrs, operands.starts
    batch, rows = (operands.q.shape[k] for k in ORDERS[attrs.order[0]][:2])
    each = attrs.heads // attrs.groups
    if starts is None:
        with (
            nest.loop("bh", batch * attrs.heads, parallel=True) as bh,
            nest.let("b", bh // attrs.heads) as b,
            nest.let("h", bh % attrs.heads) as h,
            nest.let("g", bh % attrs.heads // each) as g,
        ):
            yield b, h, g, None
        return
    count = starts.shape[0]
    with (  # all sequences of a head together: threads get heads, which take equal times
        nest.loop("hs", attrs.heads * count, parallel=True) as hs,
        nest.let("h", hs // count) as h,
        nest.let("s", hs % count) as s,
        nest.let("first", within(starts[s], const(0), rows)) as first,
        nest.let("next", starts[minimum(s + 1, count - 1)]) as following,
        nest.let("end", select(s + 1 < count, within(following, first, rows), rows)) as end,
        nest.let("length", end - first) as length,
    ):
        yield const(0), h, h // each, Span(first, length)


def within(e: Expr, lo: Expr, hi: Expr) -> Expr:
    """`e`, a number that a caller passes, clamped to `lo`..`hi`."""
    return minimum(maximum(e, lo), hi)


class AttentionLoops:
    """Emits the statements of attention, from the arithmetic of a row and a form of factors."""

    def __init__(self, task: AttentionRows, factors: Factors) -> None:
        self.task, self.factors = task, factors
        self.nest, self.tile = task.nest, task.tile

    def head(self, b: Expr, h: Expr, g: Expr) -> None:
        """Emit the statements for all rows of query head `h` of batch `b`, whose keys and values are of head `g`."""
        nest, task, known = self.nest, self.task, as_int(self.task.rows) is not None
        if not self.tile.tiles:
            DirectLoops(task, task.tile_rows if known else 1, self.tile.steps, task.all_rows).head(b, h, g)
        elif known:
            self.tiled(b, h, g)
        else:
            with nest.when(task.rows >= task.tile_rows):
                self.tiled(b, h, g)
            with nest.when(task.rows < task.tile_rows):
                DirectLoops(task, 1, DIRECT_KEYS, const(task.tile_rows)).head(b, h, g)

    def tiled(self, b: Expr, h: Expr, g: Expr) -> None:
        nest, width, rows, tiles = self.nest, self.tile.width, self.task.tile_rows, self.task.tiles
        chunks = ceildiv(self.task.out_depth, width)
        with (
            self.factors.held(),
            nest.allocate(
                "kt", self.factors.dtype, (self.task.most_panels, *self.factors.panel(1, self.task.depth))
            ) as kt,
            nest.allocate("vp", self.factors.dtype, (chunks, *self.factors.panel(2, self.task.room))) as vp,
            nest.allocate("scores", self.task.type, (self.task.held, rows, self.task.stride)) as scores,
            nest.allocate("state", self.task.type, (self.task.held, rows, 4)) as state,
            nest.allocate(
                "o", self.task.type, (chunks, self.task.held, rows, width) if self.task.online else (1, 1, 1, 1)
            ) as o,
        ):
            self.factors.pack(kt, vp, b, g)
            with nest.loop("rb", ceildiv(self.task.count, tiles)) as rb:
                first, here = rb * tiles, minimum(self.task.count - rb * tiles, tiles)
                self.factors.take(b, h, first, here)
                whole = const(True) if not self.task.online else self.task.keys <= self.task.block
                with nest.when(whole):
                    self.scores(kt, scores, b, h, first, here, const(0), self.task.panels)
                    self.softmax_tiles(scores, state, here, self.task.panels, first=True)
                    self.values(vp, scores, state, None, b, h, first, here, const(0), self.task.keys)
                if self.task.online:
                    with nest.when(self.task.keys > self.task.block):
                        self.online_blocks(kt, vp, scores, state, o, b, h, first, here)

    def scores(
        self, kt: Buffer, scores: Buffer, b: Expr, h: Expr, first: Expr, here: Expr, panel: Expr, panels: Expr
    ) -> None:
        """Emit scores[t, r, column] of head `h` of batch `b` for `here` tiles of query rows, from tile `first` on, and
        `panels` panels of keys, from number `panel` on; columns past the last key are minus infinity."""
        nest, width, rows = self.nest, self.tile.width, self.task.tile_rows
        with (
            nest.loop("p", panels) as p,
            nest.loop("t", here) as t,
            nest.allocate("acc", self.task.type, (rows, width)) as acc,
        ):
            i0 = self.task.row(first + t, const(0))
            self.factors.score_products(acc, kt, panel + p, t, b, h, i0)
            with nest.loop("r", rows, kind=self.factors.kind) as r, nest.loop("x", width, kind="vectorized") as x:
                j = (panel + p) * width + x
                # Read under no condition, or the sums would be in memory.
                with nest.let("product", acc[r, x]) as product:
                    value = self.task.score(product, b, h, i0 + r, j)
                    nest.store(scores, (t, r, p * width + x), select(j < self.task.keys, value, self.task.low))

    def softmax_tiles(self, scores: Buffer, state: Buffer, here: Expr, panels: Expr, first: bool) -> None:
        nest = self.nest
        with nest.loop("t", here) as t, nest.loop("r", self.task.tile_rows) as r:
            self.task.softmax(scores, (t, r), panels, state, (t, r, const(0)), self.factors.keep, first=first)

    def values(
        self,
        vp: Buffer,
        scores: Buffer,
        state: Buffer,
        o: Buffer | None,
        b: Expr,
        h: Expr,
        first: Expr,
        here: Expr,
        key: Expr,
        keys: Expr,
    ) -> None:
        """Emit the scores of head `h` of batch `b` times the `keys` packed values from number `key` on, for `here`
        tiles of rows, from tile `first` on. Without `o` the result is divided by the softmax's sum and stored to y;
        else it is added to `o`, whose old sums are first scaled by `state[..., 2]`."""
        nest, width, rows = self.nest, self.tile.width, self.task.tile_rows
        with (
            nest.loop("c", vp.shape[0]) as c,
            nest.loop("t", here) as t,
            nest.allocate("acc", self.task.type, (rows, width)) as acc,
        ):
            if o is not None:
                with nest.loop("r", rows, kind=self.factors.kind) as r, nest.loop("x", width, kind="vectorized") as x:
                    nest.store(acc, (r, x), o[c, t, r, x] * state[t, r, 2])
            self.factors.value_products(acc, scores, vp, c, t, key, keys, o is not None)
            with nest.loop("r", rows, kind=self.factors.kind) as r, nest.loop("x", width, kind="vectorized") as x:
                if o is None:
                    i = self.task.row(first + t, r)
                    self.task.finish(acc[r, x], state[t, r, 1], b, i, h, c * width + x, self.task.whole)
                else:
                    nest.store(o, (c, t, r, x), acc[r, x])

    def online_blocks(
        self,
        kt: Buffer,
        vp: Buffer,
        scores: Buffer,
        state: Buffer,
        o: Buffer,
        b: Expr,
        h: Expr,
        first: Expr,
        here: Expr,
    ) -> None:
        """Emit the result of `here` tiles of rows from tile `first` on, of query head `h` of batch `b`, by an online
        softmax: one block of keys after another, with a running maximum and sum of each row in `state` and the sums of
        values in `o`. `kt`, `vp`: packed keys and values."""
        nest, width, rows = self.nest, self.tile.width, self.task.tile_rows
        chunks, each = vp.shape[0], self.task.block // width
        with nest.loop("t", here) as t, nest.loop("r", rows) as r:
            nest.store(state, (t, r, 0), self.task.low)
            nest.store(state, (t, r, 1), 0.0)
            with nest.loop("c", chunks) as c, nest.loop("x", width, kind="vectorized") as x:
                nest.store(o, (c, t, r, x), 0.0)
        with nest.loop("kb", ceildiv(self.task.panels, each)) as kb:
            panels = minimum(self.task.panels - kb * each, each)
            keys = minimum(self.task.keys - kb * self.task.block, self.task.block)
            self.scores(kt, scores, b, h, first, here, kb * each, panels)
            self.softmax_tiles(scores, state, here, panels, first=False)
            self.values(vp, scores, state, o, b, h, first, here, kb * self.task.block, keys)
        if self.task.substitute is not None:
            self.replace_rows(vp, state, o, here)
        with (
            nest.loop("t", here) as t,
            nest.loop("r", rows) as r,
            nest.loop("c", chunks) as c,
            nest.loop("x", width, kind="vectorized") as x,
        ):
            self.task.finish(
                o[c, t, r, x], state[t, r, 1], b, self.task.row(first + t, r), h, c * width + x, self.task.whole
            )

    def replace_rows(self, vp: Buffer, state: Buffer, o: Buffer, here: Expr) -> None:
        """Emit the result of rows all of whose keys are hidden (their sum of probabilities is not positive) in the
        `here` tiles: `o` becomes the sum of all values times the operand `substitute`, which stands for each
        probability."""
        nest, width = self.nest, self.tile.width
        assert self.task.substitute is not None
        with (
            nest.loop("t", here) as t,
            nest.loop("r", self.task.tile_rows) as r,
            nest.when(call("not", state[t, r, 1] > self.task.number(0.0))),
        ):
            nest.store(state, (t, r, 1), 1.0)
            with nest.loop("c", vp.shape[0]) as c:
                with nest.loop("x", width, kind="vectorized") as x:
                    nest.store(o, (c, t, r, x), 0.0)
                with nest.loop("j", self.task.keys) as j, nest.loop("x", width, kind="vectorized") as x:
                    value = self.factors.value(vp, c, j, x) * cast(self.task.substitute, self.task.type)
                    nest.store(o, (c, t, r, x), o[c, t, r, x] + value)
