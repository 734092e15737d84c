"""The factors of attention's products for an instruction that multiplies matrices (AMX): rounded to bf16 or f16, or
pieces of f32 (`ops/lowered/split.py`).

    kt[panel, piece, d / 2, lane, :] = pieces of k;    scores[rows, lanes] = sum of q2[piece, rows, d] kt[.., d, lanes]
    vp[chunk, piece, j / 2, lane, :] = pieces of v;    y[rows, lanes] = sum of p2[piece, rows, j] vp[.., j, lanes]

Zeros fill registers past the depth and the last keys. Pieces of queries are computed for a block of tiles; the softmax
stores probabilities directly as pieces. Each step multiplies all terms for all accumulators of a tile, in an order in
which one side's pieces stay in their registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product

from tilewright.arith import prove_equal
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, as_int, call, cast, ceildiv, const, select
from tilewright.ir.loops import LoopKind, Region
from tilewright.ops.lowered.attention import has_pieces as bounded
from tilewright.ops.lowered.split import count_of, passes, pieces_of
from tilewright.plans.attention.rows import AttentionRows
from tilewright.schedule.dot_intrinsics import Dot
from tilewright.schedule.tile_intrinsics import STORE, ZERO

ONE = const(1)
SINGLE = (((0, 0),),)
"""The terms of a product of rounded factors, for each pass over the depth: one pass with one term."""


class MatrixFactors:
    """Factors for an instruction that multiplies matrices in registers; the rows and width of a tile and the keys of a
    block are whole matrix registers. `terms` = (terms of scores, terms of values): f32 factors are split into pieces of
    bf16, and so many products of pieces are summed; () if factors are only rounded."""

    q2: Buffer
    p2: Buffer

    def __init__(self, rows: AttentionRows, dot: Dot, terms: tuple[int, ...] = ()) -> None:
        self.rows, self.nest, self.tile, self.dot = rows, rows.nest, rows.tile, dot
        self.passes = tuple(passes(n) for n in terms) if terms else (SINGLE, SINGLE)
        self.counts = tuple(count_of(n) for n in terms) if terms else (1, 1)

    @property
    def dtype(self) -> DType:
        return self.dot.a

    @property
    def kind(self) -> LoopKind:
        return "serial"

    @property
    def depth(self) -> Expr:
        """The depth rounded up to whole registers."""
        return self.whole(self.rows.depth)

    def whole(self, count: Expr) -> Expr:
        """`count`, the length of a sum, rounded up to a multiple of the instruction's depth."""
        return ceildiv(count, self.dot.depth) * self.dot.depth

    def panel(self, operand: int, count: Expr) -> tuple[Expr | int, ...]:
        group = self.dot.group
        return self.counts[operand - 1], self.whole(count) // group, self.tile.width, group

    @contextmanager
    def held(self) -> Iterator[None]:
        rows = self.rows
        with (
            self.nest.allocate("q2", self.dtype, (rows.held, self.counts[0], rows.tile_rows, self.depth)) as self.q2,
            self.nest.allocate("p2", self.dtype, (rows.held, self.counts[1], rows.tile_rows, rows.stride)) as self.p2,
        ):
            yield

    def take(self, b: Expr, h: Expr, first: Expr, here: Expr) -> None:
        rows, nest = self.rows, self.nest
        with nest.loop("t", here) as t, nest.loop("r", rows.tile_rows) as r:
            with nest.loop("d", rows.depth, kind="vectorized") as d:
                value = rows.load(rows.q, 0, b, rows.row(first + t, r), h, d)
                self._put(self.q2, 0, value, lambda piece: (t, piece, r, d))
            rest = as_int(self.depth - rows.depth) or 0
            for piece in range(self.counts[0] if rest else 0):
                with nest.loop("d", rest, kind="vectorized") as d:
                    nest.store(self.q2, (t, piece, r, rows.depth + d), 0.0)

    def pack(self, kt: Buffer, vp: Buffer, b: Expr, g: Expr) -> None:
        rows, nest, width, group = self.rows, self.nest, self.tile.width, self.dot.group
        zero = rows.number(0.0)
        with (
            nest.loop("p", rows.panels) as p,
            nest.loop("d", kt.shape[2]) as d,
            nest.loop("x", width * group, kind="vectorized") as x,
        ):
            at, lane = d * group + x % group, x // group
            inside = at if prove_equal(self.depth, rows.depth) else select(at < rows.depth, at, rows.depth - 1)
            value = rows.key_or_value(1, b, p * width + lane, g, inside)
            if inside is not at:
                value = select(at < rows.depth, value, zero)
            self._put(kt, 0, value, lambda piece: (p, piece, d, lane, x % group))
        with (
            nest.loop("j", vp.shape[2]) as j,
            nest.loop("c", vp.shape[0]) as c,
            nest.loop("x", width * group, kind="vectorized") as x,
        ):
            at, lane = j * group + x % group, x // group
            value = rows.key_or_value(2, b, at, g, rows.column(c * width + lane))
            if not prove_equal(self.whole(rows.room), rows.keys):
                value = select(at < rows.keys, value, zero)
            self._put(vp, 1, value, lambda piece: (c, piece, j, lane, x % group))

    def keep(self, scores: Buffer, where: tuple[Expr, ...], value: Expr) -> None:
        self.nest.store(scores, where, value)
        t, r, j = where
        self._put(self.p2, 1, scores[where], lambda piece: (t, piece, r, j))

    def score_products(self, acc: Buffer, kt: Buffer, panel: Expr, t: Expr, b: Expr, h: Expr, first: Expr) -> None:
        self._products(acc, 0, (self.q2, t), (kt, panel), const(0), self.depth)

    def value_products(
        self, acc: Buffer, scores: Buffer, vp: Buffer, chunk: Expr, t: Expr, key: Expr, keys: Expr, earlier: bool
    ) -> None:
        nest, (rows, width) = self.nest, acc.shape
        if not earlier:
            return self._products(acc, 1, (self.p2, t), (vp, chunk), key, self.whole(keys))
        with nest.allocate("more", self.rows.type, acc.shape) as more:
            self._products(more, 1, (self.p2, t), (vp, chunk), key, self.whole(keys))
            with nest.loop("r", rows) as r, nest.loop("x", width, kind="vectorized") as x:
                nest.store(acc, (r, x), acc[r, x] + more[r, x])
        return None

    def value(self, vp: Buffer, chunk: Expr, j: Expr, lane: Expr) -> Expr:
        group = self.dot.group
        parts = [vp[chunk, piece, j // group, lane, j % group] for piece in range(self.counts[1])]
        wide = [cast(part, self.rows.type) for part in reversed(parts)]
        return sum(wide[1:], wide[0])

    def _put(self, into: Buffer, which: int, value: Expr, where: Callable[[int], tuple[Expr | int, ...]]) -> None:
        """Emit the stores of `value` to the buffer `into`, at where(piece) for each piece: rounded, or split into the
        pieces that product `which` (0: scores, 1: values) multiplies."""
        count = self.counts[which]
        for piece, part in enumerate(pieces_of(value, count) if count > 1 else [cast(value, self.dtype)]):
            self.nest.store(into, where(piece), part)

    def _products(
        self, acc: Buffer, which: int, rows: tuple[Buffer, Expr], panels: tuple[Buffer, Expr], start: Expr, count: Expr
    ) -> None:
        """Emit `acc` = rows * panels in matrix registers, over `count` steps of the sum from number `start` of the
        panel on; `rows` and `panels` are (buffer, index of the tile or panel), and `which` is 0 for scores, 1 for
        values."""
        nest, dot, f32 = self.nest, self.dot, self.rows.type
        (left, t), (right, panel) = rows, panels
        tall, wide = self.rows.tile_rows // dot.rows, self.tile.width // dot.lanes
        registers = [(r * dot.rows, c * dot.lanes) for r in range(tall) for c in range(wide)]

        def matrix(buffer: Buffer, r: int, c: int) -> Region:
            return Region(buffer, ((const(r), const(dot.rows)), (const(c), const(dot.lanes))))

        with nest.allocate("sums", f32, acc.shape, "tiles") as sums:
            for r, c in registers:
                nest.call(ZERO[f32].name, (matrix(sums, r, c),), ())
            for terms in self.passes[which]:
                with nest.loop("k", count // dot.depth) as k:
                    for (one, other), (r, c) in product(terms, registers):
                        at = ((t, ONE), (const(one), ONE), (const(r), const(dot.rows)))
                        factor = Region(left, (*at, (k * dot.depth, const(dot.depth))))
                        step = start // dot.group + k * dot.steps
                        place = ((panel, ONE), (const(other), ONE), (step, const(dot.steps)))
                        values = Region(right, (*place, (const(c), const(dot.lanes)), (const(0), const(dot.group))))
                        nest.call(dot.name, (matrix(sums, r, c),), (factor, values))
            for r, c in registers:
                nest.call(STORE[f32].name, (matrix(acc, r, c),), (matrix(sums, r, c),))


@contextmanager
def has_pieces(rows: AttentionRows, b: Expr, h: Expr, g: Expr) -> Iterator[Expr]:
    """A context that emits, and gives as an expression, whether the products of head `h` may use pieces, from the
    largest magnitudes of its queries, keys and values. NaN is ignored there: its pieces are NaN."""
    nest, width = rows.nest, rows.tile.width

    def most(name: str, count: Expr, depth: Expr, element: Callable[[Expr, Expr], Expr]) -> Expr:
        """Emit code that raises the entry for `name` in the buffer `greatest` to the largest magnitude of element(s, d)
        for s < `count`, d < `depth`; returns a load of the entry."""
        with nest.allocate("part", rows.type, (width,)) as part:
            with nest.loop("x", width, kind="vectorized") as x:
                nest.store(part, (x,), 0.0)
            with nest.loop("s", count) as s, nest.loop("c", ceildiv(depth, width)) as c:
                with nest.loop("x", width, kind="vectorized") as x:
                    at = c * width + x
                    at = at if prove_equal(depth % width, const(0)) else select(at < depth, at, depth - 1)
                    nest.store(part, (x,), call("larger", part[x], call("abs", element(s, at))))
            with nest.loop("x", width, kind="vectorized") as x:
                nest.store(greatest, (place[name],), call("larger", greatest[place[name]], part[x]))
        return greatest[place[name]]

    place = {"q": 0, "k": 1, "v": 2}
    with nest.allocate("greatest", rows.type, (3,)) as greatest:
        for n in place.values():
            nest.store(greatest, (n,), 0.0)
        q = most("q", rows.rows, rows.depth, lambda i, d: rows.load(rows.q, 0, b, i, h, d))
        k = most("k", rows.keys, rows.depth, lambda j, d: rows.key_or_value(1, b, j, g, d))
        v = most("v", rows.keys, rows.out_depth, lambda j, d: rows.key_or_value(2, b, j, g, d))
        with nest.let("fine", bounded(q, k, v, rows.depth, rows.keys)) as fine:
            yield fine


__all__ = ["MatrixFactors", "has_pieces"]
