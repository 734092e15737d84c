"""Products of few rows, known and not: `python -m benchmarks.bench_symbolic_products`.

A compile for each number of rows and one compile for any run in turns in one process. Where one of the two takes
longer, its choice was wrong: a program for any number of rows may use what suits a known number, and the other way
round. Ratios are static by dynamic time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from benchmarks.bench_dynamic import geomean
from benchmarks.harness import markdown_table, write_markdown
from benchmarks.onnx_builder import Builder

FEATURES = "256,512,768,1024,2048,3072"
ROWS = "2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,20,22,24,28,32,36,40"
MAX_ROWS = 512
"""Rows of the program for any number at most."""
SECONDS = 0.0008
"""Seconds of a turn."""
TURNS = 15


def product(rows: int | str, depth: int, columns: int) -> onnx.ModelProto:
    """A product of so many rows, or of a symbolic number of them, with bias."""
    build = Builder("product")
    x = build.input("x", [rows, depth])
    build.output(build.linear(x, "w", depth, columns), "y", [rows, columns])
    return build.build()


def ratio(static: Any, dynamic: Any, x: np.ndarray) -> float:
    """The median of turns."""
    calls = max(1, int(SECONDS / min(_time(static, x, 1) for _ in range(4))))
    results = []
    for _ in range(TURNS):
        a, b, c, d = (_time(call, x, calls) for call in (static, dynamic, dynamic, static))
        results.append((a + d) / (b + c))
    return statistics.median(results)


def _time(call: Callable[..., Any], x: np.ndarray, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call(x)
    return (time.perf_counter() - start) / calls


def line(depth: int, columns: int, rows: Sequence[int]) -> list[float]:
    """Ratios of a product at some numbers of rows."""
    dynamic = tw.compile(product("rows", depth, columns), dims={"rows": tw.dim(1, MAX_ROWS)}, threads=1)
    rng, result = np.random.default_rng(0), []
    for count in rows:
        static = tw.compile(product(count, depth, columns), threads=1)
        result.append(ratio(static, dynamic, rng.standard_normal((count, depth), np.float32)))
    print(depth, columns, *(f"{r:.2f}" for r in result), flush=True)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=ROWS, help="numbers of rows")
    parser.add_argument("--depths", default=FEATURES, help="features of a row")
    parser.add_argument("--columns", default=FEATURES, help="features of a result")
    options = parser.parse_args(arguments)
    rows, depths, columns = (
        [int(n) for n in text.split(",")] for text in (options.rows, options.depths, options.columns)
    )
    result = {(k, n): line(k, n, rows) for k in depths for n in columns}
    body = [[f"{k} to {n}", *(f"{r:.2f}" for r in ratios)] for (k, n), ratios in result.items()]
    body.append(["mean", *(f"{geomean(column):.2f}" for column in zip(*result.values(), strict=True))])
    header = ["features, static / dynamic time at rows", *map(str, rows)]
    write_markdown("symbolic-products", "Products of few rows, known and not, 1 thread", markdown_table(header, body))


if __name__ == "__main__":
    main()
