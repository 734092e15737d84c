"""A 1024x1024x1024 matrix product, scheduled step by step: `make example-matmul`.

The last step is raced against NumPy (OpenBLAS) and against the schedule that the compiler itself would take.
`docs/course/matmul.md` says what each step does and why.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import tilewright as tw
from examples.course.lesson import Lesson, Peer, Step, options, take
from tilewright import te
from tilewright.schedule.stages import StageSchedule

ROWS, COLUMNS = 8, 32
"""The tile of the result that stays in registers: 8 rows of two vectors of 16 floats."""

Tensors = tuple[te.Tensor, te.Tensor, te.Tensor]


def product(n: int) -> Tensors:
    """C = A @ B, as a tensor expression."""
    a = te.placeholder((n, n), name="A")
    b = te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return a, b, c


def steps(c: te.Tensor, s: StageSchedule) -> Iterator[Step]:
    """Apply one step after the other to `s`; give the name and the reason of each."""
    stage = s[c]
    yield "naive", "as the expression says: each element of C is a sum over k"

    i, j, k = stage.loops
    row_tile, column_tile, row, column = stage.tile(i, j, ROWS, COLUMNS)
    yield "tiled", f"C in tiles of {ROWS} x {COLUMNS}: what a tile reads of A and B is used {COLUMNS} and {ROWS} times"

    stage.reorder(column_tile, row_tile, k, row, column)
    yield "reordered", "k outside of the tile: its innermost loop runs along rows of B and C"

    stage.vectorize(column)
    yield "vectorised", "the innermost loop becomes vector instructions"

    packed = stage.cache_read("B", "global")
    packed.transform_layout(lambda k, j: (j // COLUMNS, k, j % COLUMNS))
    depth, width = packed.loops
    panel, lane = packed.split(width, factor=COLUMNS)
    packed.reorder(panel, depth, lane)
    packed.vectorize(lane)
    yield "packed", f"B is copied into panels of {COLUMNS} columns first: a tile then reads B from front to back"

    copy = stage.cache_write("local")
    copy.reverse_compute_at(stage, row_tile)
    init = stage.decompose_reduction(k)
    for part in (init, stage, copy):
        part.unroll(part.loops[-2])
    copy.vectorize(copy.loops[-1])
    yield "register-tiled", "the tile is summed up in registers and written to C once"

    stage.parallel(column_tile)
    packed.parallel(panel)
    yield "parallel", "threads share the panels"


SMALL = ("--size", "64")
"""Arguments that make it quick."""


def main(arguments: list[str] | None = None) -> int:
    parsed = options(__doc__, {"size": 1024}, arguments)
    n = parsed.size
    x, y = np.random.default_rng(0).standard_normal((2, n, n), np.float32)
    z, spare = np.empty((2, n, n), np.float32)
    tensors = product(n)
    schedule = te.create_schedule(tensors[-1])
    planned = tw.build(tw.plan(tensors))
    peers = {
        "NumPy": Peer(lambda: np.matmul(x, y, out=spare), 0.95),
        "our own plan": Peer(lambda: planned(x, y, spare), 0.95),
    }
    lesson = Lesson(
        tensors, schedule, steps(tensors[-1], schedule), (x, y, z), (x @ y,), 1e-5 * n, 2 * n**3, peers=peers
    )
    return take(lesson, parsed.rounds)


if __name__ == "__main__":
    raise SystemExit(main())
