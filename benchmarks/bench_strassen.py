"""Products as they are and by Strassen's method, by the clock and estimated: `python -m benchmarks.bench_strassen`.

Each is a model of its own, both ways in turns in one process. `--cases 128x768x3072` names rows, depth and columns.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from benchmarks.onnx_builder import Builder
from tilewright.algorithms.strassen.plan.product import compared
from tilewright.plans.framework.decisions import deciding
from tilewright.plans.matmul.tiles import Product
from tilewright.targets.target import Target

CASES = ("64x768x768", "128x768x768", "256x768x768", "750x768x768", "128x256x1024", "256x256x1024", "750x256x1024")


def model(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    """A product with a bias."""
    build = Builder("product")
    build.output(build.linear(build.input("x", [rows, depth]), "w", depth, columns), "y", [rows, columns])
    return build.build()


def compiled(proto: onnx.ModelProto) -> tuple[Any, Any]:
    """The product as it is and by Strassen's method, whatever the estimate says."""
    make = partial(tw.compile, proto, fast="strassen", records=None)
    with deciding() as record:
        make()
    (name,) = {d.key.name for d in record.decisions if d.key.kind == "algorithm"}
    results = []
    for way in ("packed", "strassen"):
        with deciding({name: way}):
            results.append(make())
    return results[0], results[1]


def seconds(models: Sequence[Any], x: np.ndarray, limit: float) -> list[float]:
    """Seconds of a call of each: an eighth of the calls take less."""
    times: list[list[float]] = [[] for _ in models]
    deadline = time.perf_counter() + limit
    while time.perf_counter() < deadline:
        for k in random.sample(range(len(models)), len(models)):
            models[k](x)
            start = time.perf_counter()
            models[k](x)
            times[k].append(time.perf_counter() - start)
    return [sorted(each)[len(each) // 8] for each in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=CASES)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each case")
    options = parser.parse_args()
    target, rng = Target.host(), np.random.default_rng(0)
    for case in options.cases:
        rows, depth, columns = map(int, case.split("x"))
        models = compiled(model(rows, depth, columns))
        ordinary, fast = seconds(models, rng.standard_normal((rows, depth), np.float32), options.seconds)
        costs = compared(Product(rows, columns, depth), 4 * depth * columns, target)
        said = [cost.microseconds(target) for cost in costs]
        print(
            f"{case}: as it is {ordinary * 1e6:.0f} us ({said[0]:.0f} estimated), by Strassen's method "
            f"{fast * 1e6:.0f} us ({said[1]:.0f}): {ordinary / fast:.3f} ({said[0] / said[1]:.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
