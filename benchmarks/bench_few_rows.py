"""Ways to prefetch panels of weights where products have few rows: `python -m benchmarks.bench_few_rows`.

Chains of products, whose weights come from the last level of cache or from memory, compiled with other constants of
prefetching (`targets/costs.py`), in turns in one process: alone so many bytes ahead, all rows together the next panel,
nothing, and as the target says.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from benchmarks.harness import markdown_table, write_markdown
from benchmarks.onnx_builder import Builder
from tilewright.targets.costs import Origin
from tilewright.targets.target import Target

NEVER = 1 << 20
"""Rows that no product here has."""
AHEAD = (1024, 4096)
"""Bytes ahead in a tile's own panel."""


def chain(rows: int, inner: int, outer: int, products: int) -> onnx.ModelProto:
    """`products` products one after the other, of `inner` to `outer` features and back."""
    build = Builder("chain")
    x = build.input("x", [rows, inner])
    for k in range(products):
        sizes = (inner, outer) if k % 2 == 0 else (outer, inner)
        x = build.linear(x, f"w{k}", *sizes)
    build.output(x, "y", [rows, inner if products % 2 == 0 else outer])
    return build.build()


def ways(target: Target) -> dict[str, Target]:
    """Targets that prefetch one way each."""

    def fitted(**values: float) -> Target:
        return replace(target, costs=target.costs.fitted(Origin("benchmark"), **values))

    alone = {
        "shared_panel_rows_l3": NEVER,
        "shared_panel_rows_memory": NEVER,
        "panel_rows_l3": 1,
        "panel_rows_memory": 1,
    }
    return {
        "as it is": target,
        "nothing": fitted(
            shared_panel_rows_l3=NEVER, shared_panel_rows_memory=NEVER, panel_rows_l3=NEVER, panel_rows_memory=NEVER
        ),
        "shared": fitted(shared_panel_rows_l3=2, shared_panel_rows_memory=2),
        **{f"{n} ahead": fitted(**alone, panel_bytes_l3=n, panel_bytes_memory=n) for n in AHEAD},
    }


def times(models: Sequence[Any], x: np.ndarray, rounds: int) -> list[float]:
    """Microseconds of each, the median of turns."""
    found: list[list[float]] = [[] for _ in models]
    for _ in range(rounds):
        for model, own in zip(models, found, strict=True):
            model(x)
            start = time.perf_counter()
            model(x)
            model(x)
            own.append((time.perf_counter() - start) / 2 * 1e6)
    return [statistics.median(own) for own in found]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="2,3,4,5,6,8", help="numbers of rows")
    parser.add_argument("--chains", default="768x3072x8,1024x1024x24,512x512x8", help="features, features, products")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args(arguments)
    options = ways(Target.host())
    body = []
    for sizes in given.chains.split(","):
        for rows in map(int, given.rows.split(",")):
            model = chain(rows, *map(int, sizes.split("x")))
            found = [tw.compile(model, target=target, threads=1) for target in options.values()]
            x = np.random.default_rng(0).standard_normal((rows, int(sizes.split("x")[0])), np.float32)
            took = times(found, x, given.rounds)
            body.append([sizes, str(rows), f"{took[0]:.0f}", *(f"{t / took[0]:.2f}" for t in took[1:])])
            print(*body[-1], flush=True)
    header = ["features, products", "rows", "µs as it is", *(f"{name} / it" for name in list(options)[1:])]
    write_markdown("few-rows", "Prefetching of products of few rows, 1 thread", markdown_table(header, body))


if __name__ == "__main__":
    main()
