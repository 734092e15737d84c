"""`attention` with both products by a dot instruction: pairs of bf16 factors, sums and softmax in f32.

    kt[panel, d / 2, lane, :] = bf16(k);  vp[panel, j / 2, lane, :] = bf16(v)      once a head
    q2[tile, row, d] = bf16(q)                                                     once for a block of tiles
    scores[row, lanes] += dot(q2[row, d : d + 2], kt[d / 2, lanes, :])
    p2[row, j] = bf16(exp(scores - top))                                           summed before they are rounded
    y[row, lanes] += dot(p2[row, j : j + 2], vp[j / 2, lanes, :])

Few rows (decoding) are computed as ever: memory bounds them, and nothing is packed for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import DType, bf16
from tilewright.ir.expr import Buffer, Expr, as_int, cast, ceildiv, const, select
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import Region
from tilewright.ops.lowered.attention_loops import AttentionLoops
from tilewright.ops.lowered.attention_rows import AttentionAttrs, Tile
from tilewright.schedule.dot_intrinsics import named_dot
from tilewright.support.errors import ShapeError

ONE = const(1)


class PairedAttention(AttentionLoops):
    """The loops where the attribute `dot` names an instruction; the depth of q and k is a multiple of its group."""

    q2: Buffer
    p2: Buffer

    def __init__(
        self, types: Sequence[TensorType | None], attrs: AttentionAttrs, out: Sequence[TensorType], tile: Tile
    ) -> None:
        super().__init__(types, attrs, out, tile)
        assert attrs.dot is not None
        self.dot = named_dot(attrs.dot)
        if tile.width % self.dot.lanes or (as_int(self.depth) or 1) % self.dot.group:
            expected = f"a width of whole {self.dot.lanes} lanes, a depth of whole groups of {self.dot.group}"
            got = f"{tile.width} and {self.depth}"
            raise ShapeError("the dot instruction does not fit attention", expected=expected, got=got)

    @property
    def packed_type(self) -> DType:
        return bf16

    def panel(self, count: Expr) -> tuple[Expr | int, ...]:
        return ceildiv(count, self.dot.group), self.tile.width, self.dot.group

    def tiled(self, b: Expr, h: Expr, g: Expr) -> None:
        shape = (self.held, self.tile_rows)
        with (
            self.nest.allocate("q2", bf16, (*shape, self.depth)) as self.q2,
            self.nest.allocate("p2", bf16, (*shape, self.stride)) as self.p2,
        ):
            super().tiled(b, h, g)

    def take_rows(self, b: Expr, h: Expr, first: Expr, here: Expr) -> None:
        nest = self.nest
        with (
            nest.loop("t", here) as t,
            nest.loop("r", self.tile_rows) as r,
            nest.loop("d", self.depth, kind="vectorized") as d,
        ):
            nest.store(self.q2, (t, r, d), cast(self.load(self.q, 0, b, self.row(first + t, r), h, d), bf16))

    def pack(self, kt: Buffer, vp: Buffer, b: Expr, g: Expr) -> None:
        nest, width, group = self.nest, self.tile.width, self.dot.group
        with (
            nest.loop("p", self.panels) as p,
            nest.loop("d", kt.shape[1]) as d,
            nest.loop("x", width * group, kind="vectorized") as x,
        ):
            value = self.packed(1, b, p * width + x // group, g, d * group + x % group)
            nest.store(kt, (p, d, x // group, x % group), cast(value, bf16))
        with (
            nest.loop("j", vp.shape[1]) as j,
            nest.loop("c", vp.shape[0]) as c,
            nest.loop("x", width * group, kind="vectorized") as x,
        ):
            at = c * width + x // group
            value = self.packed(2, b, j * group + x % group, g, at)
            if not self.whole:
                value = select(at < self.out_depth, value, self.number(0.0))
            nest.store(vp, (c, j, x // group, x % group), cast(value, bf16))

    def keep(self, scores: Buffer, where: tuple[Expr, ...], value: Expr) -> None:
        super().keep(scores, where, value)
        if len(where) > 1:  # a row of a tile
            self.nest.store(self.p2, where, cast(scores[where], bf16))

    def score_products(self, acc: Buffer, kt: Buffer, panel: Expr, t: Expr, b: Expr, h: Expr, first: Expr) -> None:
        self.products(acc, self.q2, t, kt, panel, const(0), kt.shape[1])

    def value_products(
        self, acc: Buffer, scores: Buffer, vp: Buffer, chunk: Expr, t: Expr, key: Expr, keys: Expr
    ) -> None:
        self.products(acc, self.p2, t, vp, chunk, key // self.dot.group, ceildiv(keys, self.dot.group))

    def packed_value(self, vp: Buffer, chunk: Expr, j: Expr, lane: Expr) -> Expr:
        return cast(vp[chunk, j // self.dot.group, lane, j % self.dot.group], self.type)

    def products(
        self, acc: Buffer, rows: Buffer, t: Expr, panels: Buffer, panel: Expr, first: Expr, count: Expr
    ) -> None:
        """`acc` += the rows of a tile times `count` groups of a panel, from group `first` on."""
        nest, (lanes, group) = self.nest, (self.dot.lanes, self.dot.group)
        with (
            nest.loop("k", count, copies=self.tile.steps) as k,
            nest.loop("r", self.tile_rows, kind="unrolled") as r,
            nest.loop("v", self.tile.width // lanes, kind="unrolled") as v,
        ):
            sums = Region(acc, ((r, ONE), (v * lanes, const(lanes))))
            left = Region(rows, ((t, ONE), (r, ONE), (k * group, const(group))))
            right = ((panel, ONE), (first + k, ONE), (v * lanes, const(lanes)), (const(0), const(group)))
            nest.call(self.dot.name, (sums,), (left, Region(panels, right)))
