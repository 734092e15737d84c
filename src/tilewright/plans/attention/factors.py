"""The factors of attention's two products, in the forms in which tiles of rows multiply them: single, or paired for a
dot instruction.

    single    kt[panel, d, lane] = k;                 scores[row, lanes] += q[row, d] * kt[panel, d, lanes]
              vp[chunk, j, lane] = v;                 y[row, lanes] += p[row, j] * vp[chunk, j, lanes]

    paired    kt[panel, d / 2, lane, :] = bf16(k);    scores[row, lanes] += dot(q2[row, d : d + 2], kt[d / 2, lanes, :])
              vp[chunk, j / 2, lane, :] = bf16(v);    y[row, lanes] += dot(p2[row, j : j + 2], vp[j / 2, lanes, :])

Panels are packed once per head. Paired rows, q2 = bf16(q), are computed once for a block of tiles; p2 = bf16(exp(scores
- top)) are summed before they are rounded, and the softmax is in f32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tilewright.arith import prove_equal
from tilewright.ir.dtype import DType, bf16
from tilewright.ir.expr import Buffer, Expr, cast, ceildiv, const, select
from tilewright.ir.loops import LoopKind, Region
from tilewright.ops.loopnest import Nest
from tilewright.plans.attention.rows import AttentionRows
from tilewright.schedule.dot_intrinsics import Dot

ONE = const(1)


def clear(nest: Nest, acc: Buffer) -> None:
    """Emit zeros into the accumulators `acc`."""
    rows, width = acc.shape
    with nest.loop("r", rows, kind="unrolled") as r, nest.loop("x", width, kind="vectorized") as x:
        nest.store(acc, (r, x), 0.0)


class Factors(Protocol):
    """A form in memory of the factors of attention's two products, with the statements that multiply them.

    dtype            the element type of panels
    kind             of the loops over a tile's rows: unrolled if sums are in vector registers
    panel            the shape of a panel of keys (operand 1) or values (2) that is summed over `count`
    held             allocates memory for the rows' factors, for the statements inside
    take             emits the preparation of the queries of `here` tiles from tile `first` on
    pack             emits the packing of a head's panels
    keep             emits the store of a probability (before the division by the sum) in place of its score
    score_products   emits the rows of tile `t`, from row `first` on, times a panel of keys, stored in `acc`
    value_products   emits the probabilities of tile `t` times `keys` values of a panel from `key` on, stored in `acc`,
                     or added to it if `earlier` products are there
    value            an element of a panel of values
    """

    @property
    def dtype(self) -> DType: ...

    @property
    def kind(self) -> LoopKind: ...

    def panel(self, operand: int, count: Expr) -> tuple[Expr | int, ...]: ...

    @contextmanager
    def held(self) -> Iterator[None]: ...

    def take(self, b: Expr, h: Expr, first: Expr, here: Expr) -> None: ...

    def pack(self, kt: Buffer, vp: Buffer, b: Expr, g: Expr) -> None: ...

    def keep(self, scores: Buffer, where: tuple[Expr, ...], value: Expr) -> None: ...

    def score_products(self, acc: Buffer, kt: Buffer, panel: Expr, t: Expr, b: Expr, h: Expr, first: Expr) -> None: ...

    def value_products(
        self, acc: Buffer, scores: Buffer, vp: Buffer, chunk: Expr, t: Expr, key: Expr, keys: Expr, earlier: bool
    ) -> None: ...

    def value(self, vp: Buffer, chunk: Expr, j: Expr, lane: Expr) -> Expr: ...


class OrdinaryFactors:
    """Factors in the type of the sums; rows of queries are read from the operand, not copied."""

    def __init__(self, rows: AttentionRows) -> None:
        self.rows, self.nest, self.tile = rows, rows.nest, rows.tile

    @property
    def dtype(self) -> DType:
        return self.rows.type

    @property
    def kind(self) -> LoopKind:
        return "unrolled"

    def panel(self, operand: int, count: Expr) -> tuple[Expr | int, ...]:
        return count, self.tile.width

    @contextmanager
    def held(self) -> Iterator[None]:
        yield

    def take(self, b: Expr, h: Expr, first: Expr, here: Expr) -> None:
        pass

    def pack(self, kt: Buffer, vp: Buffer, b: Expr, g: Expr) -> None:
        rows, nest, width, side = self.rows, self.nest, self.tile.width, self.tile.side
        with nest.loop("p", rows.panels) as p:
            if side > 1:
                with (
                    nest.loop("xo", width // side) as xo,
                    nest.loop("do", rows.depth // side) as do,
                    nest.allocate("square", rows.type, (side, side)) as square,
                ):
                    x0, d0 = xo * side, do * side
                    with nest.loop("x", side, kind="unrolled") as x, nest.loop("d", side, kind="vectorized") as d:
                        nest.store(square, (x, d), rows.key_or_value(1, b, p * width + x0 + x, g, d0 + d))
                    with nest.loop("d", side, kind="unrolled") as d, nest.loop("x", side, kind="vectorized") as x:
                        nest.store(kt, (p, d0 + d, x0 + x), square[x, d])
            else:
                with nest.loop("d", rows.depth) as d, nest.loop("x", width, kind="vectorized") as x:
                    nest.store(kt, (p, d, x), rows.key_or_value(1, b, p * width + x, g, d))
        for past, start, length in rows.segments():
            with nest.loop("j", length) as j:
                whole = rows.out_depth // width
                with nest.loop("c", whole) as c, nest.loop("x", width, kind="vectorized") as x:
                    nest.store(vp, (c, start + j, x), rows.read(2, b, j, g, c * width + x, past))
                if not rows.whole:
                    with nest.loop("x", width, kind="vectorized") as x:
                        value = rows.read(2, b, j, g, whole * width + x, past)
                        inside = whole * width + x < rows.out_depth
                        nest.store(vp, (whole, start + j, x), select(inside, value, rows.number(0.0)))

    def keep(self, scores: Buffer, where: tuple[Expr, ...], value: Expr) -> None:
        self.nest.store(scores, where, value)

    def score_products(self, acc: Buffer, kt: Buffer, panel: Expr, t: Expr, b: Expr, h: Expr, first: Expr) -> None:
        rows, nest = self.rows, self.nest
        clear(nest, acc)
        with (
            nest.loop("d", rows.depth, copies=self.tile.steps) as d,
            nest.loop("r", rows.tile_rows, kind="unrolled") as r,
            nest.loop("x", self.tile.width, kind="vectorized") as x,
        ):
            nest.store(acc, (r, x), acc[r, x] + rows.load(rows.q, 0, b, first + r, h, d) * kt[panel, d, x])

    def value_products(
        self, acc: Buffer, scores: Buffer, vp: Buffer, chunk: Expr, t: Expr, key: Expr, keys: Expr, earlier: bool
    ) -> None:
        nest = self.nest
        if not earlier:
            clear(nest, acc)
        with (
            nest.loop("j", keys, copies=self.tile.steps) as j,
            nest.loop("r", self.rows.tile_rows, kind="unrolled") as r,
            nest.loop("x", self.tile.width, kind="vectorized") as x,
        ):
            nest.store(acc, (r, x), acc[r, x] + scores[t, r, j] * vp[chunk, key + j, x])

    def value(self, vp: Buffer, chunk: Expr, j: Expr, lane: Expr) -> Expr:
        return vp[chunk, j, lane]


class PairedFactors:
    """Factors in bf16 for a dot instruction: the `dot.group` factors that one lane multiplies lie side by side. The
    depth of q and k is a multiple of that group, and the width of a tile a multiple of the instruction's lanes."""

    q2: Buffer
    p2: Buffer

    def __init__(self, rows: AttentionRows, dot: Dot) -> None:
        self.rows, self.nest, self.tile, self.dot = rows, rows.nest, rows.tile, dot

    @property
    def dtype(self) -> DType:
        return bf16

    @property
    def kind(self) -> LoopKind:
        return "unrolled"

    def panel(self, operand: int, count: Expr) -> tuple[Expr | int, ...]:
        return ceildiv(count, self.dot.group), self.tile.width, self.dot.group

    @contextmanager
    def held(self) -> Iterator[None]:
        rows, shape = self.rows, (self.rows.held, self.rows.tile_rows)
        with (
            self.nest.allocate("q2", bf16, (*shape, rows.depth)) as self.q2,
            self.nest.allocate("p2", bf16, (*shape, rows.stride)) as self.p2,
        ):
            yield

    def take(self, b: Expr, h: Expr, first: Expr, here: Expr) -> None:
        rows, nest = self.rows, self.nest
        with (
            nest.loop("t", here) as t,
            nest.loop("r", rows.tile_rows) as r,
            nest.loop("d", rows.depth, kind="vectorized") as d,
        ):
            nest.store(self.q2, (t, r, d), cast(rows.load(rows.q, 0, b, rows.row(first + t, r), h, d), bf16))

    def pack(self, kt: Buffer, vp: Buffer, b: Expr, g: Expr) -> None:
        rows, nest, width, group = self.rows, self.nest, self.tile.width, self.dot.group
        with (
            nest.loop("p", rows.panels) as p,
            nest.loop("d", kt.shape[1]) as d,
            nest.loop("x", width * group, kind="vectorized") as x,
        ):
            value = rows.key_or_value(1, b, p * width + x // group, g, d * group + x % group)
            nest.store(kt, (p, d, x // group, x % group), cast(value, bf16))
        with (
            nest.loop("j", vp.shape[1]) as j,
            nest.loop("c", vp.shape[0]) as c,
            nest.loop("x", width * group, kind="vectorized") as x,
        ):
            at = j * group + x % group
            value = rows.key_or_value(2, b, at, g, rows.column(c * width + x // group))
            if not prove_equal(rows.keys % group, const(0)):  # what a group has past the last key is multiplied, too
                value = select(at < rows.keys, value, rows.number(0.0))
            nest.store(vp, (c, j, x // group, x % group), cast(value, bf16))

    def keep(self, scores: Buffer, where: tuple[Expr, ...], value: Expr) -> None:
        self.nest.store(scores, where, value)
        self.nest.store(self.p2, where, cast(scores[where], bf16))

    def score_products(self, acc: Buffer, kt: Buffer, panel: Expr, t: Expr, b: Expr, h: Expr, first: Expr) -> None:
        clear(self.nest, acc)
        self._products(acc, self.q2, t, kt, panel, const(0), kt.shape[1])

    def value_products(
        self, acc: Buffer, scores: Buffer, vp: Buffer, chunk: Expr, t: Expr, key: Expr, keys: Expr, earlier: bool
    ) -> None:
        if not earlier:
            clear(self.nest, acc)
        self._products(acc, self.p2, t, vp, chunk, key // self.dot.group, ceildiv(keys, self.dot.group))

    def value(self, vp: Buffer, chunk: Expr, j: Expr, lane: Expr) -> Expr:
        return cast(vp[chunk, j // self.dot.group, lane, j % self.dot.group], self.rows.type)

    def _products(
        self, acc: Buffer, left: Buffer, t: Expr, panels: Buffer, panel: Expr, first: Expr, count: Expr
    ) -> None:
        """Emit `acc` += left[t] * panels[panel], by the dot instruction: all rows of tile `t`, over `count` groups of
        the reduced dimension from group `first` of the panel on."""
        nest, (lanes, group) = self.nest, (self.dot.lanes, self.dot.group)
        with (
            nest.loop("k", count, copies=self.tile.steps) as k,
            nest.loop("r", self.rows.tile_rows, kind="unrolled") as r,
            nest.loop("v", self.tile.width // lanes, kind="unrolled") as v,
        ):
            sums = Region(acc, ((r, ONE), (v * lanes, const(lanes))))
            factors = Region(left, ((t, ONE), (r, ONE), (k * group, const(group))))
            right = ((panel, ONE), (first + k, ONE), (v * lanes, const(lanes)), (const(0), const(group)))
            nest.call(self.dot.name, (sums,), (factors, Region(panels, right)))
