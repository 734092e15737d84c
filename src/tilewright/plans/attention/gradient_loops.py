"""The loops of attention's gradient: a block of rows of scores and of their gradients is held in the caches.

    for batch and head of keys:                              threads
        kb[j, d] = k;  kt[panel, d, lane], vt[panel, d, lane]        panels of keys and values, transposed
        for query head of these keys, for block of rows:
            scores = q kt * scale + mask;  sent = g vt       tiles of rows x width in registers
            row by row: p = softmax(scores)                  in the scores' place
                        s = scale * p (sent - sum p sent)    in the place of `sent`
            dq = s kb                                        tiles of rows x width
            dk += s' q;  dv += p' g                          tiles of keys x width, summed over the block's rows
        dk, dv go to their places

If one block has all rows for a head of keys, the sums of keys go directly from registers to the results. A last tile of
rows that is not full repeats the last row, which is neither summed nor stored; in a last tile of keys the sums past the
last key are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from math import isinf

from tilewright.arith import prove, prove_equal
from tilewright.ir.dtype import boolean
from tilewright.ir.expr import Buffer, Expr, as_int, call, cast, ceildiv, const, equal, minimum, select
from tilewright.ir.loops import PrimFunc
from tilewright.ops.attention_gradient import AttentionGradientAttrs
from tilewright.ops.loopnest import Nest
from tilewright.ops.lowered.attention import ORDERS, guarded
from tilewright.plans.attention.operands import Operands
from tilewright.plans.attention.rows import AttentionRows, Tile
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Results:
    """The buffers of the gradients, in the order of the operands, or one buffer with all side by side (see the type
    rule)."""

    attrs: AttentionGradientAttrs
    dq: Buffer
    dk: Buffer
    dv: Buffer

    def place(self, operand: int, b: Expr, s: Expr, h: Expr, d: Expr, rows: Expr, depth: Expr) -> tuple[Expr, ...]:
        """The indices of element (b, s, h, d) of the gradient of an operand with `rows` rows of `depth` elements."""
        attrs, point = self.attrs, (b, s, h, d)
        if not attrs.joined:
            return tuple(point[k] for k in ORDERS[attrs.order[operand]])
        column = (h + (0, attrs.heads, attrs.heads + attrs.groups)[operand]) * depth + d
        if not attrs.columns:
            return b, s, column
        row, (part, block) = b * rows + s, attrs.columns
        return row // part, column // block, row % part, const(0), column % block


def gradient_loops(name: str, operands: Operands, results: Results, params: Sequence[Buffer], tile: Tile) -> PrimFunc:
    """The loop program `name` of attention's gradient with the parameters `params`. In `operands`, `y` is the gradient
    of the forward result; `results` are the gradients that the program writes."""
    nest, attrs = Nest(name, params), operands.attrs
    batch = operands.q.shape[ORDERS[attrs.order[0]][0]]
    with (
        nest.loop("bg", batch * attrs.groups, parallel=True) as bg,
        nest.let("b", bg // attrs.groups) as b,
        nest.let("g", bg % attrs.groups) as g,
    ):
        GradientLoops(AttentionRows(nest, operands, tile, None), results).head(b, g)
    return nest.finish()


class GradientLoops:
    """Emits the statements that compute attention's gradient for one head of keys and values and the query heads that
    share it."""

    kt: Buffer
    vt: Buffer
    kb: Buffer
    dk: Buffer
    dv: Buffer
    q: Buffer
    g: Buffer
    scores: Buffer
    sent: Buffer

    def __init__(self, task: AttentionRows, results: Results) -> None:
        self.task, self.results, self.nest, self.tile = task, results, task.nest, task.tile
        self.tall, self.width = task.tile_rows, self.tile.width
        keys = as_int(task.keys)
        self.tall_keys = self.tile.rows if keys is None else max(1, min(self.tile.rows, keys))
        self.chunks, self.out_chunks = (ceildiv(d, self.width) for d in (task.depth, task.out_depth))
        self.room = ceildiv(task.keys, self.tall_keys) * self.tall_keys
        """The number of keys, rounded up to whole tiles."""
        self.block = task.held * self.tall
        """The number of rows in a block."""
        self.single = task.heads == task.groups and prove(task.rows <= self.block)
        """Whether all rows for a head of keys are in one block."""

    @contextmanager
    def memory(self) -> Iterator[None]:
        """Allocate, around the statements that follow, each thread's buffers: the packed keys and values of a head, its
        sums of dk and dv, and the rows, scores and their gradients of one block."""
        task, width, kind = self.task, self.width, self.task.type
        # A vector more: rows of scores shall be in different cache sets.
        stride = ceildiv(self.room, width) * width + width
        wide, out_wide = self.chunks * width, self.out_chunks * width
        shapes: dict[str, tuple[Expr | int, ...]] = {
            "kt": (task.most_panels, task.depth, width),
            "vt": (task.most_panels, task.out_depth, width),
            "kb": (task.keys, wide),
            "dk": (self.room, wide),
            "dv": (self.room, out_wide),
            "q": (self.block, wide),
            "g": (self.block, out_wide),
            "scores": (self.block, stride),
            "sent": (self.block, stride),
        }
        with ExitStack() as stack:
            for name, shape in shapes.items():
                if self.single and name in ("dk", "dv"):
                    continue
                setattr(self, name, stack.enter_context(self.nest.allocate(name, kind, shape)))
            yield

    def head(self, b: Expr, g: Expr) -> None:
        nest, task = self.nest, self.task
        each = task.heads // task.groups
        with self.memory():
            self.pack(b, g)
            if self.single:
                self.rows(b, g, const(0), task.rows, ceildiv(task.rows, self.tall))
                return
            for sums in (self.dk, self.dv):
                with nest.loop("j", sums.shape[0]) as j, nest.loop("d", sums.shape[1], kind="vectorized") as d:
                    nest.store(sums, (j, d), 0.0)
            with nest.loop("e", each) as e, nest.let("h", g * each + e) as h:
                with (
                    nest.loop("rb", ceildiv(task.rows, self.block)) as rb,
                    nest.let("first", rb * self.block) as first,
                    nest.let("here", minimum(task.rows - rb * self.block, self.block)) as here,
                    nest.let("tiles", ceildiv(minimum(task.rows - rb * self.block, self.block), self.tall)) as tiles,
                ):
                    self.rows(b, h, first, here, tiles)
            for operand, (result, sums) in enumerate(((self.results.dk, self.dk), (self.results.dv, self.dv)), 1):
                depth = task.depth if operand == 1 else task.out_depth
                with nest.loop("j", task.keys) as j, nest.loop("d", depth, kind="vectorized") as d:
                    nest.store(result, self.place(operand, b, j, g, d), cast(sums[j, d], result.dtype))

    def place(self, operand: int, b: Expr, s: Expr, h: Expr, d: Expr) -> tuple[Expr, ...]:
        """The indices of element (b, s, h, d) of the gradient of an operand."""
        return self.results.place(operand, b, s, h, d, self.task.rows, self.task.depth)

    def pack(self, b: Expr, g: Expr) -> None:
        """Emit the copy of the keys of head `g` of batch `b` to `kb`, and of its keys and values to panels, `kt` and
        `vt`."""
        task = self.task
        self.copied(self.kb, task.keys, task.depth, lambda j, d: task.load(task.k, 1, b, j, g, d))
        self.transposed_panels(self.kt, task.depth, lambda j, d: self.kb[j, d])
        self.transposed_panels(self.vt, task.out_depth, lambda j, d: task.load(task.v, 2, b, j, g, d))

    def transposed_panels(self, panels: Buffer, depth: Expr, element: Callable[[Expr, Expr], Expr]) -> None:
        """Fill `panels` with the rows of an operand, transposed. Lanes past the last row repeat it. Squares are
        transposed in registers as far as they divide the depth; the rest is copied element by element."""
        nest, task, width, side = self.nest, self.task, self.width, self.tile.side
        whole, last = prove_equal(task.keys % width, const(0)), task.keys - 1
        squares = (as_int(depth) or 0) // side if side > 1 else 0

        def row(j: Expr) -> Expr:
            return j if whole else minimum(j, last)

        with nest.loop("p", task.panels) as p:
            if squares:
                with (
                    nest.loop("xs", width // side) as xs,
                    nest.loop("ds", squares) as ds,
                    nest.allocate("square", task.type, (side, side)) as square,
                ):
                    x0, d0 = xs * side, ds * side
                    with nest.loop("x", side, kind="unrolled") as x, nest.loop("d", side, kind="vectorized") as d:
                        nest.store(square, (x, d), element(row(p * width + x0 + x), d0 + d))
                    with nest.loop("d", side, kind="unrolled") as d, nest.loop("x", side, kind="vectorized") as x:
                        nest.store(panels, (p, d0 + d, x0 + x), square[x, d])
            with nest.loop("d", depth - squares * side) as d, nest.loop("x", width, kind="vectorized") as x:
                at = squares * side + d
                nest.store(panels, (p, at, x), element(row(p * width + x), at))

    def copied(self, buffer: Buffer, count: Expr, depth: Expr, element: Callable[[Expr, Expr], Expr]) -> None:
        """Emit buffer[r, d] = element(r, d) for r < `count`; columns past `depth` repeat column `depth - 1`."""
        nest = self.nest
        with nest.loop("r", count) as r, nest.loop("d", buffer.shape[1], kind="vectorized") as d:
            at = d if prove_equal(buffer.shape[1], depth) else minimum(d, depth - 1)
            nest.store(buffer, (r, d), element(r, at))

    def rows(self, b: Expr, h: Expr, first: Expr, here: Expr, tiles: Expr) -> None:
        """Emit what `here` rows of query head `h`, from row `first` on, add to the gradients of queries, keys and
        values; `tiles` is the number of register tiles that cover them."""
        task, last = self.task, self.task.rows - 1
        count = tiles * self.tall
        self.copied(self.q, count, task.depth, lambda r, d: task.load(task.q, 0, b, minimum(first + r, last), h, d))
        self.copied(self.g, count, task.out_depth, lambda r, d: task.load(task.y, 3, b, minimum(first + r, last), h, d))
        self.products(self.q, self.kt, tiles, task.depth, self.scores, (b, h, first))
        self.products(self.g, self.vt, tiles, task.out_depth, self.sent, None)
        with self.nest.loop("r", here) as r:
            self.slopes(r, b, h, first)
        self.by_query(b, h, first, tiles)
        self.by_key(1, self.sent, self.q, self.chunks, here, (b, h))
        self.by_key(2, self.scores, self.g, self.out_chunks, here, (b, h))

    def clear(self, acc: Buffer) -> None:
        nest, (rows, width) = self.nest, acc.shape
        with nest.loop("r", rows, kind="unrolled") as r, nest.loop("x", width, kind="vectorized") as x:
            nest.store(acc, (r, x), 0.0)

    def products(
        self,
        left: Buffer,
        panels: Buffer,
        tiles: Expr,
        depth: Expr,
        into: Buffer,
        scored: tuple[Expr, Expr, Expr] | None,
    ) -> None:
        """Emit `into` = rows of `left` times `panels`, over `depth`, for `tiles` tiles of rows. With `scored` = (batch,
        head, first row) the products become scores: scale and mask are applied, and columns past the last key are minus
        infinity."""
        nest, task, width, tall = self.nest, self.task, self.width, self.tall
        with (
            nest.loop("p", task.panels) as p,
            nest.loop("t", tiles) as t,
            nest.allocate("acc", task.type, (tall, width)) as acc,
        ):
            self.clear(acc)
            with (
                nest.loop("d", depth, copies=self.tile.steps) as d,
                nest.loop("r", tall, kind="unrolled") as r,
                nest.loop("x", width, kind="vectorized") as x,
            ):
                nest.store(acc, (r, x), acc[r, x] + left[t * tall + r, d] * panels[p, d, x])
            with nest.loop("r", tall, kind="unrolled") as r, nest.loop("x", width, kind="vectorized") as x:
                at, j = (t * tall + r, p * width + x), p * width + x
                if scored is None:
                    nest.store(into, at, acc[r, x])
                else:
                    b, h, first = scored
                    # Read under no condition, or the sums would be in memory.
                    with nest.let("product", acc[r, x]) as product:
                        i = minimum(first + t * tall + r, task.rows - 1)
                        value = task.score(product, b, h, i, minimum(j, task.keys - 1))
                        nest.store(into, at, select(j < task.keys, value, task.low))

    def slopes(self, r: Expr, b: Expr, h: Expr, first: Expr) -> None:
        """Emit, for row `r` of the block that begins at query row `first` of head `h` of batch `b`: the softmax p in
        place of the row's scores, and the gradient of the scores, scale * p * (sent - sum of p * sent), in place of
        `sent`, the gradient of p."""
        nest, task, width, kind = self.nest, self.task, self.width, self.task.type
        scores, sent = self.scores, self.sent
        with (
            nest.allocate("part", kind, (2, width)) as part,
            nest.local("top", kind) as top,
            nest.local("total", kind) as total,
            nest.local("mean", kind) as mean,
        ):
            with nest.loop("x", width, kind="vectorized") as x:
                nest.store(part, (0, x), task.low)
            with nest.loop("p", task.panels) as p, nest.loop("x", width, kind="vectorized") as x:
                nest.store(part, (0, x), call("larger", part[0, x], scores[r, p * width + x]))
            top.set(task.low)
            with nest.loop("x", width, kind="vectorized") as x:
                top.set(call("larger", top.value, part[0, x]))
            with nest.let("base", select(equal(top.value, task.low), task.number(0.0), top.value)) as base:
                with nest.loop("k", 2, kind="unrolled") as k, nest.loop("x", width, kind="vectorized") as x:
                    nest.store(part, (k, x), 0.0)
                with nest.loop("p", task.panels) as p, nest.loop("x", width, kind="vectorized") as x:
                    at = (r, p * width + x)
                    nest.store(scores, at, call("exp_nonpositive", scores[at] - base))
                    nest.store(part, (0, x), part[0, x] + scores[at])
                    nest.store(part, (1, x), part[1, x] + scores[at] * sent[at])
            total.set(0.0)
            mean.set(0.0)
            with nest.loop("x", width, kind="vectorized") as x:
                total.set(total.value + part[0, x])
            with nest.loop("x", width, kind="vectorized") as x:
                mean.set(mean.value + part[1, x])
            one, zero, attrs = task.number(1.0), task.number(0.0), task.attrs
            share = one / total.value
            with (
                nest.let("share", guarded(attrs, total.value, share, zero) if attrs.guard else share) as share,
                nest.let("middle", mean.value * share) as middle,
                nest.loop("p", task.panels) as p,
                nest.loop("x", width, kind="vectorized") as x,
            ):
                at = (r, p * width + x)
                nest.store(scores, at, scores[at] * share)
                value = scores[at] * (sent[at] - middle) * task.number(task.attrs.scale)
                nest.store(sent, at, self.moved(value, b, h, first + r, minimum(p * width + x, task.keys - 1)))

    def moved(self, value: Expr, b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        """`value`, the gradient of the score of query `i` and key `j` (head `h` of batch `b`), or zero where a boolean
        mask replaced the score by a finite constant."""
        mask, fill = self.task.mask, self.task.attrs.fill
        if mask is None or mask.dtype is not boolean or isinf(fill):
            return value
        return select(mask[self.task.mask_index(b, h, i, j)], value, self.task.number(0.0))

    def by_query(self, b: Expr, h: Expr, first: Expr, tiles: Expr) -> None:
        """Emit the computation of dq, the gradient of the queries, for the rows of `tiles` register tiles from row
        `first` of head `h` on."""
        nest, task, width, tall, dq = self.nest, self.task, self.width, self.tall, self.results.dq
        with (
            nest.loop("c", self.chunks) as c,
            nest.loop("t", tiles) as t,
            nest.allocate("acc", task.type, (tall, width)) as acc,
        ):
            self.clear(acc)
            with (
                nest.loop("j", task.keys, copies=self.tile.steps) as j,
                nest.loop("r", tall, kind="unrolled") as r,
                nest.loop("x", width, kind="vectorized") as x,
            ):
                nest.store(acc, (r, x), acc[r, x] + self.sent[t * tall + r, j] * self.kb[j, c * width + x])
            with nest.loop("r", tall, kind="unrolled") as r, nest.loop("x", width, kind="vectorized") as x:
                i, d = first + t * tall + r, c * width + x
                whole = prove_equal(task.rows % tall, const(0)) and prove_equal(self.chunks * width, task.depth)
                with (
                    nest.let("product", acc[r, x]) as product,
                    nullcontext() if whole else nest.when((i < task.rows) & (d < task.depth)),
                ):
                    nest.store(dq, self.place(0, b, i, h, d), cast(product, dq.dtype))

    def by_key(
        self, operand: int, factors: Buffer, rows: Buffer, chunks: Expr, here: Expr, head: tuple[Expr, Expr]
    ) -> None:
        """Emit what a block of `here` query rows of a head (batch, number) contributes to the gradient of the keys
        (`operand` 1) or values (2), in `chunks` vectors of columns: factors' * rows, summed over the block. It is added
        to the buffer dk or dv or, if one block has all rows, stored to the result."""
        nest, task, width, tall = self.nest, self.task, self.width, self.tall_keys
        sums = None if self.single else self.dk if operand == 1 else self.dv
        result, depth = (self.results.dk, task.depth) if operand == 1 else (self.results.dv, task.out_depth)
        whole = prove_equal(task.keys, self.room) and prove_equal(chunks * width, depth)
        with (
            nest.loop("c", chunks) as c,
            nest.loop("t", self.room // tall) as t,
            nest.allocate("acc", task.type, (tall, width)) as acc,
        ):
            with nest.loop("r", tall, kind="unrolled") as r, nest.loop("x", width, kind="vectorized") as x:
                nest.store(acc, (r, x), 0.0 if sums is None else sums[t * tall + r, c * width + x])
            with (
                nest.loop("i", here, copies=self.tile.steps) as i,
                nest.loop("r", tall, kind="unrolled") as r,
                nest.loop("x", width, kind="vectorized") as x,
            ):
                nest.store(acc, (r, x), acc[r, x] + factors[i, t * tall + r] * rows[i, c * width + x])
            with nest.loop("r", tall, kind="unrolled") as r, nest.loop("x", width, kind="vectorized") as x:
                j, d = t * tall + r, c * width + x
                if sums is not None:
                    nest.store(sums, (j, d), acc[r, x])
                else:
                    with (
                        nest.let("product", acc[r, x]) as product,
                        nullcontext() if whole else nest.when((j < task.keys) & (d < depth)),
                    ):
                        nest.store(result, self.place(operand, head[0], j, head[1], d), cast(product, result.dtype))


__all__ = ["GradientLoops", "Results", "gradient_loops"]
