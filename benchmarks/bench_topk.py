"""The first elements along an axis by each way: `python -m benchmarks.bench_topk`.

Rows of random numbers, cycles a row of each way and of eager PyTorch, in turns in one process. The constants in
`ops/topk.py` say from where on a way is taken; `taken` is the one that is. TILEWRIGHT_TARGET names another instruction
set.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

import tilewright as tw
from benchmarks.harness import markdown_table, write_markdown
from tilewright.ir.dtype import f32, i64
from tilewright.ir.expr import Buffer, const
from tilewright.ops.sorting import insertion
from tilewright.ops.sorting_bounds import bounds
from tilewright.ops.sorting_digits import digits
from tilewright.ops.topk import way_of
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

CASES = (
    *((64, n, n) for n in (16, 64, 128, 160, 200, 256, 400, 700)),
    *((64, n, k) for n, k in ((32, 8), (64, 8), (100, 8), (150, 20), (200, 64), (300, 50))),
    *((16, n, k) for n, k in ((200, 20), (400, 4), (400, 8), (400, 16), (512, 38), (700, 20), (700, 64), (1000, 8))),
    *((16, n, k) for n, k in ((600, 256), (600, 300), (1000, 50), (1000, 100))),
    *((2, n, k) for n, k in ((4000, 8), (4000, 16), (8400, 64), (8400, 300), (30000, 16), (30000, 64), (200000, 50))),
)
"""Rows, elements of a row, elements asked for."""
WAYS = (insertion, bounds, digits)
HEADER = ["rows x elements, first", *(way.__name__ for way in WAYS), "eager", "taken", "eager / taken"]
SHORTEST = 4e-3
"""Seconds of a turn."""
MAX_INSERTED = 128
"""Elements asked for up to which insertion is timed."""


def calls(rows: int, extent: int, count: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """A call by each way that is no hundred times slower than others."""
    array = np.random.default_rng(0).standard_normal((rows, extent)).astype(np.float32)
    for way in WAYS:
        if way is insertion and count > MAX_INSERTED:
            continue
        x = Buffer("x", f32, (const(rows), const(extent)))
        values, indices = (Buffer(n, t, (const(rows), const(count))) for n, t in (("values", f32), ("indices", i64)))
        built = tw.build(Schedule(way(x, values, indices, 1, True)))
        out = np.empty((rows, count), np.float32), np.empty((rows, count), np.int64)
        yield way.__name__, lambda built=built, out=out: built(array, *out)
    tensor = torch.from_numpy(array)
    yield "eager", lambda: torch.topk(tensor, count)


def row(case: tuple[int, int, int], rounds: int) -> list[object]:
    """Cycles a row of a case by each way."""
    rows, extent, count = case
    own = dict(calls(*case))
    turns: dict[str, list[float]] = {name: [] for name in own}
    for _ in range(rounds):
        for name, one in own.items():
            one()
            start, times = time.perf_counter(), 0
            while time.perf_counter() - start < SHORTEST:
                one()
                times += 1
            turns[name].append((time.perf_counter() - start) / times)
    cycles = {name: statistics.median(t) * Target.host().frequency * 1e9 / rows for name, t in turns.items()}
    selected = way_of(extent, count).__name__
    cells = [f"{cycles[name]:.0f}" if name in cycles else "" for name in (*(w.__name__ for w in WAYS), "eager")]
    return [f"{rows} x {extent}, {count}", *cells, selected, f"{cycles['eager'] / cycles[selected]:.2f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    text = markdown_table(HEADER, [row(case, options.rounds) for case in CASES])
    print(text)
    if not options.no_report:
        write_markdown("topk", "The first elements along an axis: cycles a row by each way", text)


if __name__ == "__main__":
    main()
