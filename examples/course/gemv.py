"""A matrix times a vector at the speed of memory, step by step: `make example-gemv`.

The last step is raced against NumPy (OpenBLAS), the schedule that the compiler itself would take, and a pass that only
reads the matrix. `docs/course/gemv.md` says what each step does and why.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import tilewright as tw
from examples.course.lesson import Lesson, Peer, Step, options, take
from tilewright import te
from tilewright.schedule.stages import StageSchedule

LANES, ROWS = 64, 4
"""Sums of a row that run side by side, and rows that are read together."""


def product(n: int) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """y = A x, as a tensor expression."""
    a, x = te.placeholder((n, n), name="A"), te.placeholder((n,), name="x")
    k = te.reduce_axis((0, n), name="k")
    y = te.compute((n,), lambda i: te.sum(a[i, k] * x[k], axis=k), name="y")
    return a, x, y


def steps(y: te.Tensor, s: StageSchedule) -> Iterator[Step]:
    """Apply one step after the other to `s`; give the name and the reason of each."""
    total = s[y]
    yield "naive", "as the expression says: each element of y is one chain of additions"

    _, k = total.loops
    _, lane = total.split(k, factor=LANES)
    sums = total.rfactor(lane, factor_axis=1)
    row, lane = total.loops
    sums.set_scope("local")
    sums.compute_at(total, row)
    yield "side by side", f"a row is summed up in {LANES} chains, whose sums are added at its end"

    group, row = total.split(row, factor=ROWS)
    sums.compute_at(total, group)
    _, sum_lane, k, sum_row = sums.loops
    sums.reorder(k, sum_row, sum_lane)
    yield "rows together", f"{ROWS} rows are read side by side: what is read of x serves all of them"

    start, _ = sums.decompose_reduction(k), total.decompose_reduction(lane)
    for stage in (start, sums):
        stage.unroll(stage.loops[-2])
    for stage in (start, sums, total):
        stage.vectorize(stage.loops[-1])
    yield "in registers", "the chains are lanes of vectors, and all of them stay in registers"

    total.parallel(group)
    yield "parallel", "threads share the rows"


SMALL = ("--size", "128")
"""Arguments that make it quick."""


def main(arguments: list[str] | None = None) -> int:
    parsed = options(__doc__, {"size": 4096}, arguments)
    n = parsed.size
    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((n, n), np.float32), rng.standard_normal(n, np.float32)
    y, spare = np.empty((2, n), np.float32)
    tensors = product(n)
    schedule = te.create_schedule(tensors[-1])
    planned = tw.build(tw.plan(tensors))
    peers = {
        "NumPy": Peer(lambda: np.matmul(a, x, out=spare), 0.95),
        "our own plan": Peer(lambda: planned(a, x, spare), 0.95),
        "reading A": Peer(lambda: a.max(), 0.95),
    }
    wanted = a.astype(np.float64) @ x
    lesson = Lesson(
        tensors, schedule, steps(tensors[-1], schedule), (a, x, y), (wanted,), 1e-5 * n, 4 * n * n, "GB/s", peers
    )
    return take(lesson, parsed.rounds)


if __name__ == "__main__":
    raise SystemExit(main())
