"""Products `a' b` of operands that change with each call: read where they lie, against copied first.

    python -m benchmarks.bench_in_place [--only 256x256x1024 64x64x2048] [--rounds 25]

Sizes are rows, columns and depth. Both are timed in turns; the last column says what `multiplies_in_place` of
plans/matmul/tiles.py takes on this machine.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import numpy as np

from tilewright import ops
from tilewright.compiler import compile_program
from tilewright.ir.dtype import f32
from tilewright.ir.expr import const
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.plans.matmul.tiles import multiplies_in_place
from tilewright.runtime.model import Model
from tilewright.targets.target import Target
from tilewright.transform.layout import matmul

SIZES = (
    "64x64x256 64x64x2048 64x64x4096 64x64x8192 64x17x16384 128x64x2048 256x64x1024 512x64x2048 300x32x1024 "
    "128x128x256 128x128x1024 128x128x2048 128x128x4096 192x192x1024 192x192x2048 256x128x1024 128x256x1024 "
    "512x128x1024 256x256x128 256x256x512 256x256x1024 384x384x1024 512x512x128 512x512x1024 1024x1024x1024"
)
WORK = 2e7
"""Multiply-adds of a turn, at least."""


@contextmanager
def taken(place: bool) -> Iterator[None]:
    """Operands are read in place, or copied, whatever is better."""
    before = matmul.multiplies_in_place
    matmul.multiplies_in_place = lambda *_, **__: place
    try:
        yield
    finally:
        matmul.multiplies_in_place = before


def product(rows: int, columns: int, depth: int, *, place: bool) -> Model:
    b = GraphBuilder("product")
    a = b.input("a", TensorType(f32, (const(depth), const(rows))))
    c = b.input("b", TensorType(f32, (const(depth), const(columns))))
    y = ops.emit1(b, "matmul", a, c, transpose_a=True, transpose_b=False)
    with taken(place):
        return Model(compile_program(b.finish((y,))))


def measure(rows: int, columns: int, depth: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each turn in place and of each with copies."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(depth, n)).astype(np.float32) for n in (rows, columns))
    models = [product(rows, columns, depth, place=place) for place in (True, False)]
    calls = max(1, int(WORK / (rows * columns * depth)))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for model, own in zip(models, times, strict=True):
            start = time.perf_counter()
            for _ in range(calls):
                model(a, b)
            own.append((time.perf_counter() - start) / calls)
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_in_place", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="*", default=SIZES.split(), help="these sizes")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args(arguments)
    os.environ["TILEWRIGHT_CACHE"] = "0"  # what is kept does not know that it was taken
    print(f"{'product':>18}  {'GFLOP/s in place':>16}  {'copied':>8}  {'copied / in place':>18}  taken")
    for size in options.only:
        rows, columns, depth = map(int, size.split("x"))
        place, copied = measure(rows, columns, depth, options.rounds)
        ratio = median(b / a for a, b in zip(place, copied, strict=True))
        speeds = [2e-9 * rows * columns * depth / min(t) for t in (place, copied)]
        here = multiplies_in_place(rows, columns, depth, 4, Target.host(), turned=True)
        word = "in place" if here else "copied"
        print(f"{size:>18}  {speeds[0]:16.1f}  {speeds[1]:8.1f}  {ratio:18.3f}  {word}", flush=True)


if __name__ == "__main__":
    main()
