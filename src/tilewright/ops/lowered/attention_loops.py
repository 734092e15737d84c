"""The loops of `attention`: register tiles over packed keys and values, the softmax of a block of rows between them.

    for batch and head:                                      threads
        kt[panel, d, lane] = k;  vp[panel, j, lane] = v      panels of `width`, once a head
        for block of row tiles:
            for block of keys:                               one if the keys are few
                scores = q kt * scale + mask                 tiles of rows x width in registers
                m, l, scores = softmax so far                online: Milakov and Gimelshein 2018, "Online normalizer
                o = o * exp(m_old - m) + scores vp           calculation for softmax"
            y = o / l

Few rows (decoding) would not pay for packing: there the scores are dot products along the depth, and y grows by whole
rows of v. Rows of a last tile that is not full overlap the tile before it: both write the same values.
"""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, as_int, call, ceildiv, const, minimum, select
from tilewright.ir.loops import PrimFunc
from tilewright.ops.lowered.attention_rows import AttentionRows

DIRECT_ROWS = 2
"""Up to so many query rows keys and values are read where they are."""


class AttentionLoops(AttentionRows):
    """The loop program of an `attention` node, from its inputs' types and its attributes."""

    def build(self) -> PrimFunc:
        nest, rows = self.nest, as_int(self.rows)
        with (
            nest.loop("bh", self.batch * self.heads, parallel=True) as bh,
            nest.let("b", bh // self.heads) as b,
            nest.let("h", bh % self.heads) as h,
            nest.let("g", bh % self.heads // (self.heads // self.groups)) as g,
        ):
            if rows is None:
                with nest.when(self.rows >= self.tile_rows):
                    self.tiled(b, h, g)
                with nest.when(self.rows < self.tile_rows):
                    self.direct(b, h, g)
            elif rows <= DIRECT_ROWS:
                self.direct(b, h, g)
            else:
                self.tiled(b, h, g)
        return nest.finish()

    # few rows

    def direct(self, b: Expr, h: Expr, g: Expr) -> None:
        nest, width = self.nest, self.tile.width
        with (
            nest.allocate("scores", self.type, (self.panels * width,)) as scores,
            nest.allocate("state", self.type, (4,)) as state,
            nest.loop("i", self.rows) as i,
        ):
            with nest.loop("x", width, kind="vectorized") as x:
                nest.store(scores, ((self.panels - 1) * width + x,), self.low)
            for past, start, length in self.segments():
                with nest.loop("j", length) as j, nest.local("dot", self.type) as dot:
                    dot.set(0.0)
                    with nest.loop("d", self.depth, kind="vectorized") as d:
                        dot.set(dot.value + self.load(self.q, 0, b, i, h, d) * self.read(1, b, j, g, d, past))
                    nest.store(scores, (start + j,), self.score(dot.value, b, h, i, start + j))
            self.softmax(scores, (), self.panels, state, (const(0),), first=True)
            chunk = 4 * width
            with (
                nest.loop("c", ceildiv(self.out_depth, chunk)) as c,
                nest.allocate("acc", self.type, (chunk,)) as acc,
            ):
                whole = (as_int(self.out_depth) or 1) % chunk == 0
                with nest.loop("x", chunk, kind="vectorized") as x:
                    nest.store(acc, (x,), 0.0)
                for past, start, length in self.segments():
                    with nest.loop("j", length) as j, nest.loop("x", chunk, kind="vectorized") as x:
                        at = c * chunk + x
                        value = self.read(2, b, j, g, at, past)
                        value = value if whole else select(at < self.out_depth, value, self.number(0.0))
                        nest.store(acc, (x,), acc[x] + scores[start + j] * value)
                with nest.loop("x", chunk, kind="vectorized") as x:
                    self.finish(acc[x], state[1], b, i, h, c * chunk + x, whole)

    # many rows

    def tiled(self, b: Expr, h: Expr, g: Expr) -> None:
        nest, width, rows, tiles = self.nest, self.tile.width, self.tile_rows, self.tiles
        chunks = ceildiv(self.out_depth, width)
        with (
            nest.allocate("kt", self.packed_type, (self.panels, *self.panel(self.depth))) as kt,
            nest.allocate("vp", self.packed_type, (chunks, *self.panel(self.keys))) as vp,
            nest.allocate("scores", self.type, (self.held, rows, self.stride)) as scores,
            nest.allocate("state", self.type, (self.held, rows, 4)) as state,
            nest.allocate("o", self.type, (chunks, self.held, rows, width) if self.online else (1, 1, 1, 1)) as o,
        ):
            self.pack(kt, vp, b, g)
            with nest.loop("rb", ceildiv(self.count, tiles)) as rb:
                first, here = rb * tiles, minimum(self.count - rb * tiles, tiles)
                self.take_rows(b, h, first, here)
                whole = const(True) if not self.online else self.keys <= self.block
                with nest.when(whole):
                    self.scores(kt, scores, b, h, first, here, const(0), self.panels)
                    self.softmax_tiles(scores, state, here, self.panels, first=True)
                    self.values(vp, scores, state, None, b, h, first, here, const(0), self.keys)
                if self.online:
                    with nest.when(self.keys > self.block):
                        self.online_blocks(kt, vp, scores, state, o, b, h, first, here)

    @property
    def packed_type(self) -> DType:
        return self.type

    def panel(self, count: Expr) -> tuple[Expr | int, ...]:
        """The shape of a panel that is summed over `count`."""
        return count, self.tile.width

    def take_rows(self, b: Expr, h: Expr, first: Expr, here: Expr) -> None:
        """What is to be done with the queries of `here` tiles before they are multiplied: nothing."""

    def packed(self, operand: int, b: Expr, j: Expr, g: Expr, d: Expr) -> Expr:
        """An element of the keys or values (operand 1 or 2), zero past the last one."""
        value = select(j < self.keys, self.read(operand, b, j - self.earlier, g, d, False), self.number(0.0))
        return select(j < self.earlier, self.read(operand, b, j, g, d, True), value) if self.past else value

    def pack(self, kt: Buffer, vp: Buffer, b: Expr, g: Expr) -> None:
        nest, width, zero = self.nest, self.tile.width, self.number(0.0)
        with (
            nest.loop("p", self.panels) as p,
            nest.loop("d", self.depth) as d,
            nest.loop("x", width, kind="vectorized") as x,
        ):
            nest.store(kt, (p, d, x), self.packed(1, b, p * width + x, g, d))
        for past, start, length in self.segments():
            with (
                nest.loop("j", length) as j,
                nest.loop("c", vp.shape[0]) as c,
                nest.loop("x", width, kind="vectorized") as x,
            ):
                at = c * width + x
                value = self.read(2, b, j, g, at, past)
                nest.store(vp, (c, start + j, x), value if self.whole else select(at < self.out_depth, value, zero))

    def row(self, tile: Expr, r: Expr) -> Expr:
        """Row r of a tile; the last tile ends with the last row."""
        return minimum(tile * self.tile_rows, self.rows - self.tile_rows) + r

    def scores(
        self, kt: Buffer, scores: Buffer, b: Expr, h: Expr, first: Expr, here: Expr, panel: Expr, panels: Expr
    ) -> None:
        """The scores of `here` tiles from tile `first` on with `panels` panels of keys from `panel` on."""
        nest, width, rows = self.nest, self.tile.width, self.tile_rows
        with (
            nest.loop("p", panels) as p,
            nest.loop("t", here) as t,
            nest.allocate("acc", self.type, (rows, width)) as acc,
        ):
            i0 = self.row(first + t, const(0))
            self.clear(acc)
            self.score_products(acc, kt, panel + p, t, b, h, i0)
            with nest.loop("r", rows, kind="unrolled") as r, nest.loop("x", width, kind="vectorized") as x:
                j = (panel + p) * width + x
                value = self.score(acc[r, x], b, h, i0 + r, j)
                nest.store(scores, (t, r, p * width + x), select(j < self.keys, value, self.low))

    def score_products(self, acc: Buffer, kt: Buffer, panel: Expr, t: Expr, b: Expr, h: Expr, first: Expr) -> None:
        """The rows of tile `t`, from row `first` on, times a panel of keys, added to `acc`."""
        nest = self.nest
        with (
            nest.loop("d", self.depth, copies=self.tile.steps) as d,
            nest.loop("r", self.tile_rows, kind="unrolled") as r,
            nest.loop("x", self.tile.width, kind="vectorized") as x,
        ):
            nest.store(acc, (r, x), acc[r, x] + self.load(self.q, 0, b, first + r, h, d) * kt[panel, d, x])

    def clear(self, acc: Buffer) -> None:
        nest, (rows, width) = self.nest, acc.shape
        with nest.loop("r", rows, kind="unrolled") as r, nest.loop("x", width, kind="vectorized") as x:
            nest.store(acc, (r, x), 0.0)

    def softmax_tiles(self, scores: Buffer, state: Buffer, here: Expr, panels: Expr, first: bool) -> None:
        nest = self.nest
        with nest.loop("t", here) as t, nest.loop("r", self.tile_rows) as r:
            self.softmax(scores, (t, r), panels, state, (t, r, const(0)), first=first)

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
        """Scores times `keys` values from `key` on: into y, or into o with what was there scaled."""
        nest, width, rows = self.nest, self.tile.width, self.tile_rows
        with (
            nest.loop("c", vp.shape[0]) as c,
            nest.loop("t", here) as t,
            nest.allocate("acc", self.type, (rows, width)) as acc,
        ):
            if o is None:
                self.clear(acc)
            else:
                with nest.loop("r", rows, kind="unrolled") as r, nest.loop("x", width, kind="vectorized") as x:
                    nest.store(acc, (r, x), o[c, t, r, x] * state[t, r, 2])
            self.value_products(acc, scores, vp, c, t, key, keys)
            with nest.loop("r", rows, kind="unrolled") as r, nest.loop("x", width, kind="vectorized") as x:
                if o is None:
                    i = self.row(first + t, r)
                    self.finish(acc[r, x], state[t, r, 1], b, i, h, c * width + x, self.whole)
                else:
                    nest.store(o, (c, t, r, x), acc[r, x])

    def value_products(
        self, acc: Buffer, scores: Buffer, vp: Buffer, chunk: Expr, t: Expr, key: Expr, keys: Expr
    ) -> None:
        """The probabilities of tile `t` times a panel of values from `key` on, added to `acc`."""
        nest = self.nest
        with (
            nest.loop("j", keys, copies=self.tile.steps) as j,
            nest.loop("r", self.tile_rows, kind="unrolled") as r,
            nest.loop("x", self.tile.width, kind="vectorized") as x,
        ):
            nest.store(acc, (r, x), acc[r, x] + scores[t, r, j] * vp[chunk, key + j, x])

    def packed_value(self, vp: Buffer, chunk: Expr, j: Expr, lane: Expr) -> Expr:
        return vp[chunk, j, lane]

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
        """All blocks of keys for some tiles of rows."""
        nest, width, rows = self.nest, self.tile.width, self.tile_rows
        chunks, each = vp.shape[0], self.block // width
        with nest.loop("t", here) as t, nest.loop("r", rows) as r:
            nest.store(state, (t, r, 0), self.low)
            nest.store(state, (t, r, 1), 0.0)
            with nest.loop("c", chunks) as c, nest.loop("x", width, kind="vectorized") as x:
                nest.store(o, (c, t, r, x), 0.0)
        with nest.loop("kb", ceildiv(self.panels, each)) as kb:
            panels = minimum(self.panels - kb * each, each)
            keys = minimum(self.keys - kb * self.block, self.block)
            self.scores(kt, scores, b, h, first, here, kb * each, panels)
            self.softmax_tiles(scores, state, here, panels, first=False)
            self.values(vp, scores, state, o, b, h, first, here, kb * self.block, keys)
        if self.substitute is not None:
            self.replace_rows(vp, state, o, here)
        with (
            nest.loop("t", here) as t,
            nest.loop("r", rows) as r,
            nest.loop("c", chunks) as c,
            nest.loop("x", width, kind="vectorized") as x,
        ):
            self.finish(o[c, t, r, x], state[t, r, 1], b, self.row(first + t, r), h, c * width + x, self.whole)

    def replace_rows(self, vp: Buffer, state: Buffer, o: Buffer, here: Expr) -> None:
        """Rows without a sum get the substitute for every probability."""
        nest, width = self.nest, self.tile.width
        assert self.substitute is not None
        with (
            nest.loop("t", here) as t,
            nest.loop("r", self.tile_rows) as r,
            nest.when(call("not", state[t, r, 1] > self.number(0.0))),
        ):
            nest.store(state, (t, r, 1), 1.0)
            with nest.loop("c", vp.shape[0]) as c:
                with nest.loop("x", width, kind="vectorized") as x:
                    nest.store(o, (c, t, r, x), 0.0)
                with nest.loop("j", self.keys) as j, nest.loop("x", width, kind="vectorized") as x:
                    value = self.packed_value(vp, c, j, x) * self.single(self.substitute)
                    nest.store(o, (c, t, r, x), o[c, t, r, x] + value)
