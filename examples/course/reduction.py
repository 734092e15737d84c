"""The product of two long vectors, one sum of millions of numbers, step by step: `make example-reduction`.

The last step is raced against NumPy (OpenBLAS) and the schedule that the compiler itself would take.
`docs/course/reduction.md` says what each step does and why.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import tilewright as tw
from examples.course.lesson import Lesson, Peer, Step, options, take
from tilewright import te
from tilewright.schedule.stages import StageSchedule

PARTS, LANES = 64, 64
"""Parts of the vectors that threads may take, and chains of additions that run side by side in each."""


def dot(n: int) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """The sum of the products of two vectors' elements, as a tensor expression."""
    x, y = te.placeholder((n,), name="x"), te.placeholder((n,), name="y")
    k = te.reduce_axis((0, n), name="k")
    return x, y, te.compute((1,), lambda i: te.sum(x[k] * y[k], axis=k), name="dot")


def steps(result: te.Tensor, s: StageSchedule) -> Iterator[Step]:
    """Apply one step after the other to `s`; give the name and the reason of each."""
    total = s[result]
    yield "naive", "as the expression says: one chain of additions, each of which waits for the one before"

    part, _ = total.split(total.loops[-1], nparts=PARTS)
    parts = total.rfactor(part)
    yield "parts", f"a sum for each of {PARTS} parts, and the sum of these: the parts do not wait for one another"

    _, part, k = parts.loops
    parts.reorder(part, parts.loops[0])
    _, lane = parts.split(k, factor=LANES)
    lanes = parts.rfactor(lane, factor_axis=2)
    lanes.set_scope("local")
    lanes.compute_at(parts, parts.loops[0])
    yield (
        "side by side",
        f"in a part {LANES} chains run side by side: a core hides the latency of one behind the others",
    )

    _, lane, k, *ones = lanes.loops
    lanes.reorder(k, *ones, lane)
    _, _, last = parts.loops
    start, _ = lanes.decompose_reduction(k), parts.decompose_reduction(last)
    for stage in (start, lanes, parts):
        stage.vectorize(stage.loops[-1])
    yield "in registers", "the chains are lanes of vectors, and all of them stay in registers"

    parts.parallel(parts.loops[0])
    yield "parallel", "threads share the parts"


SMALL = ("--size", "8192")
"""Arguments that make it quick."""


def main(arguments: list[str] | None = None) -> int:
    parsed = options(__doc__, {"size": 1 << 24}, arguments)
    x, y = np.random.default_rng(0).standard_normal((2, parsed.size), np.float32)
    result, spare = np.empty((2, 1), np.float32)
    tensors = dot(parsed.size)
    schedule = te.create_schedule(tensors[-1])
    planned = tw.build(tw.plan(tensors))
    peers = {
        "NumPy": Peer(lambda: np.dot(x, y), 0.95),
        "our own plan": Peer(lambda: planned(x, y, spare), 0.95),
    }
    wanted = np.dot(x.astype(np.float64), y)
    error = 1e-3 * parsed.size**0.5  # of one chain, whose sums are some sqrt(size) large
    lesson = Lesson(
        tensors,
        schedule,
        steps(tensors[-1], schedule),
        (x, y, result),
        (wanted,),
        error,
        8 * parsed.size,
        "GB/s",
        peers,
    )
    return take(lesson, parsed.rounds)


if __name__ == "__main__":
    raise SystemExit(main())
