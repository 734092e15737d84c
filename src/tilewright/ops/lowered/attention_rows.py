"""What the loops of `attention` (`attention_loops.py`) do with one row: scores with scale and mask, softmax, result."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from tilewright.arith import prove
from tilewright.ir.attributes import Attrs, Dim, Ints
from tilewright.ir.dtype import boolean
from tilewright.ir.expr import (
    Buffer,
    Expr,
    as_int,
    call,
    cast,
    ceildiv,
    const,
    equal,
    is_const,
    minimum,
    select,
)
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import accumulator
from tilewright.ops.loopnest import Nest, buffers, zero_index


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` x `width` accumulators; `keys` whose scores are held at once (a multiple of width); `tiles` of rows that
    share a pass over them; `steps` of a product in one iteration of its loop."""

    rows: int
    width: int
    keys: int
    tiles: int
    steps: int

    @classmethod
    def of(cls, attrs: AttentionAttrs) -> Tile:
        """From a node's attributes."""
        return cls(attrs.rows, attrs.width, attrs.keys, attrs.tiles, attrs.steps)


ORDERS = {"s": (0, 1, 2, 3), "h": (0, 2, 1, 3), "t": (1, 0, 2, 3)}
"""Where batch, sequence, head and depth of an operand lie, by the letter of its order; each is its own inverse."""


@dataclass(frozen=True, slots=True)
class AttentionAttrs(Attrs):
    """See the type rule of `attention`. The tile (`rows` to `steps`, see `Tile`) changes the speed only and is right
    everywhere if none is given; `dot` names an instruction."""

    order: str
    heads: int
    groups: int
    first: Ints
    scale: float
    causal: bool
    fill: float
    guard: bool
    past_first: Dim = 0
    dot: str | None = None
    rows: int = 4
    width: int = 16
    keys: int = 512
    tiles: int = 4
    steps: int = 1


class AttentionRows:
    """What one row takes: its scores, their softmax, its part of the result; sizes from an `attention` node's types and
    attributes."""

    def __init__(
        self, types: Sequence[TensorType | None], attrs: AttentionAttrs, out: Sequence[TensorType], tile: Tile
    ) -> None:
        inputs, (y,) = buffers(types, out)
        given = [*inputs, *[None] * 8]
        q, k, v, self.mask, self.scale, self.substitute, past_k, past_v = given[:8]
        assert q is not None and k is not None and v is not None
        self.q, self.k, self.v, self.y, self.attrs, self.tile = q, k, v, y, attrs, tile
        self.nest = Nest("attention", [*(b for b in given if b is not None), y])
        self.type = accumulator(q.dtype)
        self.batch, self.rows, self.depth = self.dims(q, 0)
        self.past = {1: past_k, 2: past_v} if past_k is not None and past_v is not None else {}
        self.earlier = const(0) if past_k is None else past_k.shape[2]
        self.keys = self.earlier + self.dims(k, 1)[1]
        _, _, self.out_depth = self.dims(v, 2)
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
        self.held = const(self.tiles) if rows is not None else minimum(self.count, self.tiles)
        self.stride: Expr = const(self.block + (width if self.block % 256 == 0 else 0))
        if known is None:  # a width more: rows of scores shall be in different cache sets
            self.stride = minimum(self.panels * width, self.block) + width
        self.whole = (as_int(self.out_depth) or 1) % width == 0
        self.low = const(float("-inf"), self.type)

    def dims(self, buffer: Buffer, operand: int) -> tuple[Expr, Expr, Expr]:
        """Batch, sequence and depth of an operand."""
        b, s, _, d = (buffer.shape[k] for k in ORDERS[self.attrs.order[operand]])
        return b, s, d

    def at(self, operand: int, b: Expr, s: Expr, h: Expr, d: Expr) -> tuple[Expr, ...]:
        """The indices of an element of q, k, v or y (operands 0 to 3)."""
        h = h if operand == 3 else h + self.attrs.first[operand]
        point = b, s, h, d
        return tuple(point[k] for k in ORDERS[self.attrs.order[operand]])

    def read(self, operand: int, b: Expr, j: Expr, g: Expr, d: Expr, past: bool) -> Expr:
        """An element of the keys or values (operand 1 or 2): of those given, or of the cache before them."""
        if not past:
            return self.load(self.k if operand == 1 else self.v, operand, b, j, g, d)
        buffer = self.past[operand]
        assert buffer is not None
        return cast(buffer[b + self.attrs.past_first, g, j, d], self.type)

    def segments(self) -> tuple[tuple[bool, Expr, Expr], ...]:
        """(in the cache, first key, number of keys)."""
        new = (False, self.earlier, self.keys - self.earlier)
        return ((True, const(0), self.earlier), new) if self.past else (new,)

    def number(self, value: float) -> Expr:
        return const(value, self.type)

    def score(self, raw: Expr, b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        """A product of q and k to what the softmax takes; minus infinity past the keys and where none may be seen."""
        value = raw
        factor = self.number(self.attrs.scale)
        if self.scale is not None:
            factor = factor * self.single(self.scale)
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

    def single(self, buffer: Buffer) -> Expr:
        """The element of an array that has one."""
        return cast(buffer[zero_index(buffer)], self.type)

    def mask_index(self, b: Expr, h: Expr, i: Expr, j: Expr) -> tuple[Expr, ...]:
        assert self.mask is not None
        rank = len(self.mask.shape)
        point = (b, h, i, j)[4 - rank :]
        return tuple(const(0) if is_const(d, 1) else p for d, p in zip(self.mask.shape, point, strict=True))

    def load(self, buffer: Buffer, operand: int, b: Expr, s: Expr, h: Expr, d: Expr) -> Expr:
        return cast(buffer[self.at(operand, b, s, h, d)], self.type)

    def finish(self, value: Expr, total: Expr, b: Expr, i: Expr, h: Expr, d: Expr, whole: bool) -> None:
        """y = value / total."""
        value = value * (self.number(1.0) / total)
        if self.attrs.guard:
            value = select(total > self.number(0.0), value, self.number(0.0))
        with nullcontext() if whole else self.nest.when(d < self.out_depth):
            self.nest.store(self.y, self.at(3, b, i, h, d), cast(value, self.y.dtype))

    def softmax(
        self, scores: Buffer, row: tuple[Expr, ...], panels: Expr, state: Buffer, at: tuple[Expr, ...], first: bool
    ) -> None:
        """scores = exp(scores - top) for one row. The state's entries: 0 the greatest score so far, 1 the sum of the
        exponentials so far, 2 the factor for what was summed before."""
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
                    self.keep(scores, where, call("exp_nonpositive", scores[where] - base))
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
                        self.keep(scores, (*row, p * width + x), self.single(self.substitute))
                    nest.store(state, total, 1.0)

    def keep(self, scores: Buffer, where: tuple[Expr, ...], value: Expr) -> None:
        """Put a probability (before it is divided by the sum) where its score was."""
        self.nest.store(scores, where, value)
