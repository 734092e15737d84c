"""The statements that the loops of attention (`loops.py`) run for one row: scores with scale and mask, softmax,
result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from tilewright.arith import prove
from tilewright.ir.dtype import boolean
from tilewright.ir.expr import Buffer, Expr, as_int, call, cast, ceildiv, const, equal, is_const, minimum, select
from tilewright.ops.dims import accumulator
from tilewright.ops.loopnest import Nest
from tilewright.ops.lowered.attention import ORDERS, guarded
from tilewright.plans.attention.operands import Operands
from tilewright.support.classes import dataclass

Keep = Callable[[Buffer, tuple[Expr, ...], Expr], None]
"""A function (buffer, indices of a score, probability) that emits the store of the probability in place of the
score."""


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one of several packed sequences: the number of the first one, and how many they are."""

    first: Expr
    length: Expr


@dataclass(frozen=True, slots=True)
class Tile:
    """The sizes of a tile of attention.

    `rows` x `width` accumulators; `keys` is the number of keys whose scores are held at once, a multiple of `width`;
    `tiles` of rows share a pass over these keys. If `tiles` is 0, `rows` read keys and values in place, `steps` keys at
    once. `steps`: unrolled steps of a product. `side`: of the squares in which registers transpose keys on their way
    into a panel, a divisor of `width` and the depth (1: by elements).
    """

    rows: int
    width: int
    keys: int
    tiles: int
    steps: int
    side: int = 1


class AttentionRows:
    """Emits, through `nest`, the statements that attention's loops run for one query row: scores with scale and mask,
    softmax, result. Its attributes are the operands and sizes, of one packed sequence if there is a `span`."""

    def __init__(self, nest: Nest, operands: Operands, tile: Tile, span: Span | None) -> None:
        self.nest, self.attrs, self.tile = nest, operands.attrs, tile
        q, k = operands.q, operands.k
        self.q, self.k, self.v, self.y = q, k, operands.v, operands.y
        self.mask, self.scale, self.substitute = operands.mask, operands.scale, operands.substitute
        past_k, past_v, attrs = operands.past_k, operands.past_v, operands.attrs
        self.type = accumulator(q.dtype)
        _, self.rows, self.depth = self.dims(q, 0)
        self.first = const(0) if span is None else span.first
        self.past = {1: past_k, 2: past_v} if past_k is not None and past_v is not None else {}
        self.earlier = const(0) if past_k is None else past_k.shape[2]
        self.keys = self.earlier + self.dims(k, 1)[1]
        self.room = self.keys
        """The number of keys for which there is memory."""
        self.all_rows = self.rows
        """The number of rows of all sequences."""
        if span is not None:
            self.rows = self.keys = span.length
        _, _, self.out_depth = self.dims(self.v, 2)
        self.heads, self.groups = attrs.heads, attrs.groups
        known, width = as_int(self.keys), tile.width
        self.panels = ceildiv(self.keys, width)
        self.online = not prove(self.keys <= max(tile.keys, width))
        most = tile.keys // width if known is None or self.online else -(-known // width)
        self.block = max(1, most) * width
        rows = as_int(self.rows)
        self.tile_rows = tile.rows if rows is None else max(1, min(tile.rows, rows))
        self.count = ceildiv(self.rows, self.tile_rows)
        self.tiles = min(tile.tiles, as_int(self.count) or tile.tiles)
        tallest = ceildiv(self.room if span is not None else self.rows, self.tile_rows)
        self.held = const(self.tiles) if rows is not None else minimum(tallest, self.tiles)
        self.most_panels = ceildiv(self.room, width)
        self.stride: Expr = const(self.block + (width if self.block % 256 == 0 else 0))
        if known is None:  # a width more: rows of scores shall be in different cache sets
            self.stride = minimum(self.most_panels * width, self.block) + width
        self.whole = (as_int(self.out_depth) or 1) % width == 0
        self.low = const(float("-inf"), self.type)

    def dims(self, buffer: Buffer, operand: int) -> tuple[Expr, Expr, Expr]:
        """The extents of an operand: (batch, sequence, depth)."""
        b, s, _, d = (buffer.shape[k] for k in ORDERS[self.attrs.order[operand]])
        return b, s, d

    def at(self, operand: int, b: Expr, s: Expr, h: Expr, d: Expr) -> tuple[Expr, ...]:
        """The indices of an element of q, k, v or y (`operand` 0 to 3): batch `b`, position `s` in the sequence, head
        `h`, element `d`."""
        h = h if operand == 3 else h + self.attrs.first[operand]
        point = b, self.first + s, h, d
        return tuple(point[k] for k in ORDERS[self.attrs.order[operand]])

    def read(self, operand: int, b: Expr, j: Expr, g: Expr, d: Expr, past: bool) -> Expr:
        """The element (batch `b`, key `j`, head `g`, column `d`) of the keys (`operand` 1) or values (2), in the type
        of the sums; with `past`, of the cache of earlier keys and values."""
        if not past:
            return self.load(self.k if operand == 1 else self.v, operand, b, j, g, d)
        buffer = self.past[operand]
        assert buffer is not None
        return cast(buffer[b + self.attrs.past_first, g, j, d], self.type)

    def key_or_value(self, operand: int, b: Expr, j: Expr, g: Expr, d: Expr) -> Expr:
        """Column `d` of key (`operand` 1) or value (2) number `j`, counted over cached and new ones, of head `g` of
        batch `b`. Past the last key it reads the last one: results for such keys are unused, and a clipped index takes
        a tenth of the time of a load under a condition."""
        new = self.read(operand, b, minimum(j, self.keys - 1) - self.earlier, g, d, False)
        return select(j < self.earlier, self.read(operand, b, j, g, d, True), new) if self.past else new

    def column(self, d: Expr) -> Expr:
        """Column `d` of the values, clipped to the last one if the width of a vector does not divide the columns."""
        return d if self.whole else minimum(d, self.out_depth - 1)

    def row(self, tile: Expr, r: Expr) -> Expr:
        """The query row that is row `r` of tile number `tile`; the last tile is moved back so that it ends with the
        last row."""
        return minimum(tile * self.tile_rows, self.rows - self.tile_rows) + r

    def segments(self) -> tuple[tuple[bool, Expr, Expr], ...]:
        """The segments of keys, cached ones (if there are any) and new ones: (whether it is the cache, its first key,
        its number of keys)."""
        new = (False, self.earlier, self.keys - self.earlier)
        return ((True, const(0), self.earlier), new) if self.past else (new,)

    def number(self, value: float) -> Expr:
        return const(value, self.type)

    def score(self, raw: Expr, b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        """The score of query `i` and key `j` in head `h` of batch `b` from `raw`, their product: scaled, with the mask
        applied, and minus infinity where a causal mask hides the key."""
        value = raw
        factor = self.number(self.attrs.scale)
        if self.scale is not None:
            factor = factor * cast(self.scale, self.type)
        value = value * factor
        if self.mask is not None:
            where = self.mask_index(b, h, i, j)
            if self.mask.dtype is boolean:
                value = select(self.mask[where], value, self.number(self.attrs.fill))
            else:
                value = value + cast(self.mask[where], self.type)
        if self.attrs.causal:
            value = select(j <= i + (self.keys - self.rows), value, self.low)
        return value

    def mask_index(self, b: Expr, h: Expr, i: Expr, j: Expr) -> tuple[Expr, ...]:
        assert self.mask is not None
        rank = len(self.mask.shape)
        point = (b, h, i, j)[4 - rank :]
        return tuple(const(0) if is_const(d, 1) else p for d, p in zip(self.mask.shape, point, strict=True))

    def load(self, buffer: Buffer, operand: int, b: Expr, s: Expr, h: Expr, d: Expr) -> Expr:
        return cast(buffer[self.at(operand, b, s, h, d)], self.type)

    def quotient(self, value: Expr, total: Expr) -> Expr:
        """value / total, the division of softmax: zero if there are no keys, or if the attributes demand it for a sum
        of zero."""
        value = value * (self.number(1.0) / total)
        if self.attrs.guard:
            value = guarded(self.attrs, total, value, self.number(0.0))
        return value if prove(self.keys > 0) else select(self.keys > 0, value, self.number(0.0))

    def finish(self, value: Expr, total: Expr, b: Expr, i: Expr, h: Expr, d: Expr, whole: bool) -> None:
        """Emit y[b, i, h, d] = value / total; unless `whole`, only for columns `d` that exist."""
        value = self.quotient(value, total)
        with nullcontext() if whole else self.nest.when(d < self.out_depth):
            self.nest.store(self.y, self.at(3, b, i, h, d), cast(value, self.y.dtype))

    def softmax(
        self,
        scores: Buffer,
        row: tuple[Expr, ...],
        panels: Expr,
        state: Buffer,
        at: tuple[Expr, ...],
        keep: Keep,
        first: bool,
    ) -> None:
        """Emit scores = exp(scores - top) for one row of `panels` vectors, each stored by `keep`, as one step of an
        online softmax (`first`: it is the only one). `state[at]` holds: 0 the largest score so far, 1 the sum of
        exponentials so far, 2 the factor by which earlier sums must be scaled."""
        nest, width = self.nest, self.tile.width
        lead = at[:-1]
        top, total, factor = ((*lead, const(k)) for k in range(3))
        with (
            nest.allocate("part", self.type, (width,)) as part,
            nest.local("new", self.type) as new,
        ):
            with nest.loop("x", width, kind="vectorized") as x:
                nest.store(part, (x,), self.low)
            with nest.loop("p", panels) as p, nest.loop("x", width, kind="vectorized") as x:
                nest.store(part, (x,), call("larger", part[x], scores[(*row, p * width + x)]))
            new.set(self.low if first else state[top])
            with nest.loop("x", width, kind="vectorized") as x:
                new.set(call("larger", new.value, part[x]))
            safe = select(equal(new.value, self.low), self.number(0.0), new.value)
            with nest.let("safe", safe) as base:
                with nest.loop("x", width, kind="vectorized") as x:
                    nest.store(part, (x,), 0.0)
                with nest.loop("p", panels) as p, nest.loop("x", width, kind="vectorized") as x:
                    where = (*row, p * width + x)
                    keep(scores, where, call("exp_nonpositive", scores[where] - base))
                    nest.store(part, (x,), part[x] + scores[where])
                if first:
                    nest.store(state, total, 0.0)
                else:
                    nest.store(state, factor, call("exp_nonpositive", state[top] - base))
                    nest.store(state, total, state[total] * state[factor])
            nest.store(state, top, new.value)
            with nest.loop("x", width, kind="vectorized") as x:
                nest.store(state, total, state[total] + part[x])
            if first and self.substitute is not None:
                with nest.when(call("not", state[total] > self.number(0.0))):
                    with nest.loop("p", panels) as p, nest.loop("x", width, kind="vectorized") as x:
                        keep(scores, (*row, p * width + x), cast(self.substitute, self.type))
                    nest.store(state, total, 1.0)
