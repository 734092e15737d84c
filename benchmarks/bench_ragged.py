"""Ragged batches against padded ones: `python -m benchmarks.bench_ragged`.

A BERT on eight sequences, whose mean length is half of the largest, packed (`ragged=`) and padded to the longest, in
turns in one process. Every sequence's result is compared with what the padded program gives for it alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tilewright as tw
from benchmarks.dynamic_models import bert
from benchmarks.harness import markdown_table, write_markdown

HEADER = ["longest", "rows / padded", "packed ms", "padded ms", "packed / padded [10 %, 90 %]", "difference"]


def lengths(longest: int, batch: int, rng: np.random.Generator) -> list[int]:
    """Lengths from 1 to the longest, which is among them; their mean is half of it."""
    others = rng.integers(1, longest + 1, batch - 1)
    scaled = others * (longest * (batch / 2 - 1) / others.sum())
    return [longest, *(max(1, min(longest, round(n))) for n in scaled)]


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(packed: Any, padded: Any, longest: int, batch: int, rounds: int) -> list[str]:
    """A row of the table."""
    rng = np.random.default_rng(longest)
    sizes = lengths(longest, batch, rng)
    ids, places = tw.ragged([rng.integers(0, 1000, n) for n in sizes]), tw.ragged([np.arange(n) for n in sizes])
    wide, all_places = ids.padded(), np.arange(longest)
    result = packed(ids, places)
    off = max(np.abs(padded(x[None], np.arange(len(x)))[0] - y).max() for x, y in zip(ids, result, strict=True))
    padded(wide, all_places)
    pairs = np.array(
        [(_seconds(lambda: packed(ids, places)), _seconds(lambda: padded(wide, all_places))) for _ in range(rounds)]
    )
    ours, theirs = np.median(pairs, 0) * 1e3
    low, ratio, high = np.quantile(pairs[:, 0] / pairs[:, 1], (0.1, 0.5, 0.9))
    share = sum(sizes) / (batch * longest)
    times = [f"{ours:.1f}", f"{theirs:.1f}", f"{ratio:.3f} [{low:.3f}, {high:.3f}]"]
    return [str(longest), f"{share:.3f}", *times, f"{off:.1e}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--longest", default="32,64,128,256,384")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    model = bert(options.layers)
    packed = tw.compile(model, ragged=("batch", "seq"), threads=options.threads)
    padded = tw.compile(model, threads=options.threads)
    table = []
    for longest in map(int, options.longest.split(",")):
        table.append(compare(packed, padded, longest, options.batch, options.rounds))
        print("  ".join(table[-1]), flush=True)
    if not options.no_report:
        title = f"Ragged batches: BERT, {options.layers} layers, batch {options.batch}, {options.threads} thread(s)"
        write_markdown("ragged" if options.threads == 1 else "ragged-2t", title, markdown_table(HEADER, table))


if __name__ == "__main__":
    main()
