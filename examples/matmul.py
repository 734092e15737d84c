"""A 1024x1024x1024 matrix product, scheduled step by step: `make example-matmul`.

Each step changes the schedule only, prints the loops that come out of it, and is timed. NumPy (OpenBLAS) on one thread
is the bar, and so is the schedule that the compiler itself would take; rounds of two alternate, and the ratio is the
median over the rounds, since machines are noisy. `docs/course/matmul.md` says what each step does and why.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy is imported

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.schedule.stages import StageSchedule
from tilewright.targets.target import Target

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


def steps(c: te.Tensor, s: StageSchedule) -> Iterator[tuple[str, str]]:
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


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def race(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """Medians of both in seconds, and the median over the rounds of their time by ours (above 1: we are faster)."""
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    mine, other = zip(*pairs, strict=True)
    return statistics.median(mine), statistics.median(other), statistics.median(b / a for a, b in pairs)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1024, help=f"a multiple of {COLUMNS} (default 1024)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds against NumPy")
    options = parser.parse_args(arguments)
    n, rounds = options.size, options.rounds
    x, y = np.random.default_rng(0).standard_normal((2, n, n), np.float32)
    z = np.empty((n, n), np.float32)
    wanted = x @ y

    tensors = product(n)
    schedule = te.create_schedule(tensors[-1])
    times: dict[str, float] = {}
    for name, why in steps(tensors[-1], schedule):
        kernel = tw.build(schedule, tensors, name=name.replace("-", "_"))
        print(f"\n=== {name}: {why}\n\n{kernel.source('loops')}")
        z[:] = np.nan
        times[name] = seconds(lambda f=kernel: f(x, y, z))  # type: ignore[misc]
        assert np.abs(z - wanted).max() <= 1e-5 * n, f"{name} is wrong"
        if times[name] < 0.5:
            times[name] = statistics.median(seconds(lambda f=kernel: f(x, y, z)) for _ in range(9))  # type: ignore[misc]
        print(f"{times[name] * 1e3:.1f} ms, {2 * n**3 / times[name] / 1e9:.1f} GFLOP/s on one thread")

    mine, numpy, ratio = race(lambda: kernel(x, y, z), lambda: np.matmul(x, y, out=z), rounds)
    planned = tw.build(tw.plan(tensors))
    _, plan_time, of_plan = race(lambda: kernel(x, y, z), lambda: planned(x, y, z), rounds)
    cores = max(2, Target.host().cores)
    shared = tw.build(schedule, tensors, threads=cores)
    together = statistics.median(seconds(lambda: shared(x, y, z)) for _ in range(9))
    print(f"\n{'step':16}{'ms':>10}{'GFLOP/s':>10}{'times naive':>13}")
    rows = {**times, "last, with NumPy": mine, "NumPy": numpy, "our plan": plan_time, f"{cores} threads": together}
    for name, spent in rows.items():
        print(f"{name:16}{spent * 1e3:10.1f}{2 * n**3 / spent / 1e9:10.1f}{times['naive'] / spent:13.1f}")
    speedup = times["naive"] / mine
    print(f"\nlast step on one thread: {ratio:.2f} of NumPy's speed (bar 0.95), {speedup:.0f} times naive (bar 20)")
    print(f"{of_plan:.2f} of the speed of our own plan (bar 0.95)")
    return 0 if ratio >= 0.95 and of_plan >= 0.95 and speedup >= 20 else 1


if __name__ == "__main__":
    raise SystemExit(main())
