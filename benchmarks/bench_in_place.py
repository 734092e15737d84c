"""Products `a' b` of operands that change with each call: read where they lie, against copied first.

    python -m benchmarks.bench_in_place [--only 256x256x1024 64x64x2048] [--rounds 25]
    python -m benchmarks.bench_in_place --untransposed 9 [--target x86-64-v3]     nine products `a b` a call, of few
    rows

Sizes are rows, columns and depth. Both are timed in turns; the last column says what `multiplies_in_place` of
plans/matmul/tiles.py takes on this machine.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
ORDINARY_SIZES = (
    "7x128x169 8x128x169 14x128x169 16x128x169 24x128x169 32x128x169 8x128x64 16x128x64 32x128x64 8x400x64 16x400x64 "
    "8x80x400 16x80x400 12x100x100 8x256x128 8x512x256 16x512x256 32x512x256 32x512x512 64x256x256 "
    "128x256x256 128x128x64"
)
WORK = 2e7
"""Multiply-adds of a turn, at least."""


@contextmanager
def choosing(place: bool) -> Iterator[None]:
    """Operands are read in place, or copied, whatever is better."""
    before = matmul.multiplies_in_place
    matmul.multiplies_in_place = lambda *_, **__: place
    try:
        yield
    finally:
        matmul.multiplies_in_place = before


@dataclass(frozen=True, slots=True)
class Case:
    """A product of `a'`, or of `untransposed` times `a`, which is rows x depth then."""

    rows: int
    columns: int
    depth: int
    untransposed: int = 0

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.untransposed:
            return (self.untransposed, self.rows, self.depth), (self.untransposed, self.depth, self.columns)
        return (self.depth, self.rows), (self.depth, self.columns)

    @property
    def work(self) -> float:
        """Multiply-adds."""
        return float(max(1, self.untransposed) * self.rows * self.columns * self.depth)


def product(case: Case, target: Target, *, place: bool) -> Model:
    builder = GraphBuilder("product")
    a, b = (builder.input(n, TensorType(f32, tuple(map(const, s)))) for n, s in zip("ab", case.shapes(), strict=True))
    y = ops.emit1(builder, "matmul", a, b, transpose_a=not case.untransposed, transpose_b=False)
    with choosing(place):
        return Model(compile_program(builder.finish((y,)), target=target))


def measure(case: Case, target: Target, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each turn in place and of each with copies."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in case.shapes())
    models = [product(case, target, place=place) for place in (True, False)]
    calls = max(1, int(WORK / case.work))
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
    parser.add_argument("--only", nargs="*", help="these sizes")
    parser.add_argument("--untransposed", type=int, default=0, help="so many products of rows x depth as they are")
    parser.add_argument("--target", default="host")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args(arguments)
    os.environ["TILEWRIGHT_CACHE"] = "0"  # what is kept does not know that it was taken
    print(f"{'product':>18}  {'GFLOP/s in place':>16}  {'copied':>8}  {'copied / in place':>18}  taken")
    target = Target.on_host(options.target)
    for size in options.only or (ORDINARY_SIZES if options.untransposed else SIZES).split():
        case = Case(*map(int, size.split("x")), untransposed=options.untransposed)
        place, copied = measure(case, target, options.rounds)
        ratio = median(b / a for a, b in zip(place, copied, strict=True))
        speeds = [2e-9 * case.work / min(t) for t in (place, copied)]
        here = multiplies_in_place(case.rows, case.columns, case.depth, 4, target, transposed=not options.untransposed)
        word = "in place" if here else "copied"
        print(f"{size:>18}  {speeds[0]:16.1f}  {speeds[1]:8.1f}  {ratio:18.3f}  {word}", flush=True)


if __name__ == "__main__":
    main()
