"""Attention of few query rows, which read keys and values in place, since packing them into panels would not pay.

    for block of keys:                                       scores: dot products along the depth
        for tile of rows:
            parts[row, key, lane] += q[row, d, lane] * k[key, d, lane]
            scores[row, key] = sum of the lanes              of all keys of a block together (`codegen/llvm/fold.py`)
    scores = softmax
    for block of keys:                                       y grows by whole rows of v
        for some vectors of its depth, tile of rows:
            sums[row, lane] += scores[row, key] * v[key, lane]

The first tile of rows fetches a key or a value; all other tiles read it from the first-level cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from tilewright.arith import prove, prove_equal
from tilewright.ir.expr import Buffer, Expr, as_int, ceildiv, const, minimum, select
from tilewright.ops.loopnest import Nest
from tilewright.plans.attention.rows import AttentionRows

CACHED_BLOCK = 32
"""The number of values of a block that all tiles of rows, and all vectors of the depth, read from the first-level
cache."""


class DirectLoops:
    """Emits the statements for tiles of `together` rows (1 if the number of rows is unknown), with `keys` keys at once;
    there are at most `most` rows."""

    def __init__(self, task: AttentionRows, together: int, keys: int, most: Expr) -> None:
        self.task, self.nest, self.width = task, task.nest, task.tile.width
        self.together, self.keys, self.most = together, keys, most

    def head(self, b: Expr, h: Expr, g: Expr) -> None:
        """Emit the statements for all rows of query head `h` of batch `b`, whose keys and values are of head `g`."""
        nest, task = self.nest, self.task
        with (
            nest.allocate("scores", task.type, (self.most, task.most_panels * self.width)) as scores,
            nest.allocate("state", task.type, (self.most, 4)) as state,
        ):
            self.scores(scores, b, h, g)
            with nest.loop("r", task.rows) as r:
                task.softmax(scores, (r,), task.panels, state, (r, const(0)), nest.store, first=True)
            self.values(scores, state, b, h, g)

    def tiles(self) -> Iterator[tuple[Expr, int]]:
        """The first row and the number of rows of each tile: tiles of equal height in a loop, then one with the
        remaining rows."""
        whole, rest = self.task.rows // self.together, (as_int(self.task.rows) or 0) % self.together
        with self.nest.loop("t", whole) as t:
            yield t * self.together, self.together
        if rest:
            yield whole * self.together, rest

    def elements(self, *extents: int) -> AbstractContextManager[tuple[Expr, ...]]:
        """Loops over the indices in `extents`, which are unrolled, around a vectorised loop over `width` lanes; yields
        the loop variables, the lane last."""
        return _elements(self.nest, extents, self.width)

    def scores(self, scores: Buffer, b: Expr, h: Expr, g: Expr) -> None:
        """Emit `scores` = the masked and scaled products of all query rows of head `h` with all keys of head `g`, in
        batch `b`. The rest of the last panel, past the last key, is set to minus infinity."""
        nest, task, width = self.nest, self.task, self.width
        with nullcontext() if prove(task.keys > 0) else nest.when(task.keys > 0):
            with nest.loop("r", task.rows) as r, nest.loop("x", width, kind="vectorized") as x:
                nest.store(scores, (r, (task.panels - 1) * width + x), task.low)
        for past, start, length in task.segments():

            def block(j: Expr, keys: int, past: bool = past, start: Expr = start) -> None:
                for i, rows in self.tiles():
                    self.products(scores, b, h, g, i, rows, start, j, keys, past)

            known = as_int(length)
            if known is not None and known >= self.keys:
                with nest.loop("jb", ceildiv(length, self.keys)) as jb:  # a last block overlaps the one before it
                    block(minimum(jb * self.keys, length - self.keys), self.keys)
            else:
                with nest.loop("jb", length // self.keys) as jb:
                    block(jb * self.keys, self.keys)
                with nest.loop("j", length % self.keys) as j:
                    block(length // self.keys * self.keys + j, 1)

    def products(
        self, scores: Buffer, b: Expr, h: Expr, g: Expr, i: Expr, rows: int, start: Expr, j: Expr, keys: int, past: bool
    ) -> None:
        """Emit the scores of rows i .. i + `rows` - 1 of query head `h` for keys j .. j + `keys` - 1 of head `g`, in
        batch `b`. The keys are counted in a segment, the cache of earlier keys if `past`, else the new keys; its first
        key is column `start` of `scores`."""
        nest, task, width = self.nest, self.task, self.width
        parts = task.depth // width
        with (
            nest.allocate("part", task.type, (rows, keys, width)) as part,
            nest.allocate("dots", task.type, (rows, keys)) as dots,
        ):
            with self.elements(rows, keys) as at:
                nest.store(part, at, 0.0)
            with nest.loop("c", parts) as c, self.elements(rows, keys) as at:
                nest.store(part, at, part[at] + self.product(b, h, g, i, j, c * width, at, past))
            if not prove_equal(parts * width, task.depth):
                with self.elements(rows, keys) as at:
                    value = self.product(b, h, g, i, j, parts * width, at, past)
                    value = select(at[-1] < task.depth - parts * width, value, task.number(0.0))
                    nest.store(part, at, part[at] + value)
            with nest.loop("r", rows, kind="unrolled") as r:
                with nest.loop("k", keys, kind="unrolled") as k:
                    nest.store(dots, (r, k), -0.0)
                with nest.loop("k", keys, kind="unrolled") as k, nest.loop("x", width, kind="vectorized") as x:
                    nest.store(dots, (r, k), dots[r, k] + part[r, k, x])
            with nest.loop("r", rows, kind="unrolled") as r, nest.loop("k", keys, kind="vectorized") as k:
                nest.store(scores, (i + r, start + j + k), task.score(dots[r, k], b, h, i + r, start + j + k))

    def product(self, b: Expr, h: Expr, g: Expr, i: Expr, j: Expr, d: Expr, at: tuple[Expr, ...], past: bool) -> Expr:
        """The product q[i + r, d + x] * k[j + k, d + x] for `at` = (r, k, x), of query head `h` and key head `g` of
        batch `b`; with `past`, the key is read from the cache of earlier keys."""
        r, k, x = at
        return self.task.load(self.task.q, 0, b, i + r, h, d + x) * self.task.read(1, b, j + k, g, d + x, past)

    def values(self, scores: Buffer, state: Buffer, b: Expr, h: Expr, g: Expr) -> None:
        """Emit y = scores * values / sums for query head `h` of batch `b`, whose values are of head `g`, with the sums
        of the rows in column 1 of `state`."""
        nest, task, width = self.nest, self.task, self.width
        vectors = ceildiv(task.out_depth, width)
        with nest.allocate("sums", task.type, (self.most, vectors * width)) as sums:
            with nest.loop("r", task.rows) as r, nest.loop("c", vectors) as c:
                with nest.loop("x", width, kind="vectorized") as x:
                    nest.store(sums, (r, c * width + x), 0.0)
            for past, start, length in task.segments():
                whole = length // CACHED_BLOCK
                with nest.loop("jb", whole) as jb:
                    self.block(sums, scores, b, g, start, jb * CACHED_BLOCK, const(CACHED_BLOCK), past)
                self.block(sums, scores, b, g, start, whole * CACHED_BLOCK, length - whole * CACHED_BLOCK, past)
            with nest.loop("r", task.rows) as r, nest.loop("c", vectors) as c:
                with nest.loop("x", width, kind="vectorized") as x:
                    d = c * width + x
                    task.finish(sums[r, d], state[r, 1], b, r, h, d, task.whole)

    def block(
        self, sums: Buffer, scores: Buffer, b: Expr, g: Expr, start: Expr, j: Expr, count: Expr, past: bool
    ) -> None:
        """Emit `sums` += scores * values for the values j .. j + `count` - 1 of a segment, of batch `b` and head `g`.
        `past` says whether the segment is the cache of earlier keys and values or the new ones, `start` is the column
        of `scores` for its first key. Some vectors of columns are computed at a time: at most as many as there are keys
        in a block of scores, since both need one accumulator per row."""
        vectors = as_int(ceildiv(self.task.out_depth, self.width))
        assert vectors is not None
        wide = -(-vectors // -(-vectors // self.keys))
        whole, rest = divmod(vectors, wide)
        for first, strips, vectors in ((0, whole, wide), (whole * wide, 1, rest)):
            if strips and vectors:
                with self.nest.loop("s", strips) as s:
                    for i, rows in self.tiles():
                        d = (first + s * wide) * self.width
                        self.grow(sums, scores, b, g, i, rows, d, vectors, start, j, count, past)

    def grow(
        self,
        sums: Buffer,
        scores: Buffer,
        b: Expr,
        g: Expr,
        i: Expr,
        rows: int,
        d: Expr,
        vectors: int,
        start: Expr,
        j: Expr,
        count: Expr,
        past: bool,
    ) -> None:
        """Emit sums[i : i + rows, d :] += scores * values for `vectors` vectors of columns of the values, whose sums
        stay in registers meanwhile.

        Args:
            b, g: batch and head of the values.
            past, start: the segment of keys and values, the cache of earlier ones or the new ones, and the column of
                `scores` that belongs to its first key.
            j, count: the first value within the segment, and the number of values.
        """
        nest, task, width = self.nest, self.task, self.width
        with nest.allocate("acc", task.type, (vectors, rows, width)) as acc:
            with self.elements(vectors, rows) as (c, r, x):
                nest.store(acc, (c, r, x), sums[i + r, d + c * width + x])
            with nest.loop("j", count) as k, self.elements(vectors, rows) as (c, r, x):
                at = d + c * width + x
                value = task.read(2, b, j + k, g, at, past)
                if not task.whole:
                    value = select(at < task.out_depth, value, task.number(0.0))
                nest.store(acc, (c, r, x), acc[c, r, x] + scores[i + r, start + j + k] * value)
            with self.elements(vectors, rows) as (c, r, x):
                nest.store(sums, (i + r, d + c * width + x), acc[c, r, x])


@contextmanager
def _elements(nest: Nest, extents: Sequence[int], width: int) -> Iterator[tuple[Expr, ...]]:
    with ExitStack() as stack:
        outer = [stack.enter_context(nest.loop("e", n, kind="unrolled")) for n in extents]
        yield *outer, stack.enter_context(nest.loop("x", width, kind="vectorized"))
