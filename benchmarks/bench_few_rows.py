"""Ways to prefetch panels of weights where products have few rows: `python -m benchmarks.bench_few_rows`.

Chains of products, whose weights come from the last level of cache or from memory, compiled with other constants of
prefetching (`targets/costs.py`), in turns in one process: alone so many bytes ahead, all rows together the next panel,
nothing, and as the target says. `--maps` does the same with chains of convolutions over maps so small that a register
tile has a panel to itself.
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
DISTANCES = (1024, 4096)
"""Bytes ahead in a tile's own panel."""
MAPS = "512x3x3x12,1024x1x3x24,256x3x3x40,512x1x2x100,520x3x3x12,512x3x3x2,256x3x3x8"
"""Maps of 3 x 3 and 2 x 2: all but the last two chains come from memory."""
ALONE_PREFETCH = (2048, 4096, 6144, 8192, 12288, 18432)
"""Bytes that a convolution's tile of one panel prefetches ahead."""


def chain(rows: int, inner: int, outer: int, products: int) -> onnx.ModelProto:
    """`products` products one after the other, of `inner` to `outer` features and back."""
    build = Builder("chain")
    x = build.input("x", [rows, inner])
    for k in range(products):
        sizes = (inner, outer) if k % 2 == 0 else (outer, inner)
        x = build.linear(x, f"w{k}", *sizes)
    build.output(x, "y", [rows, inner if products % 2 == 0 else outer])
    return build.build()


def convolutions(channels: int, window: int, side: int, layers: int) -> onnx.ModelProto:
    """`layers` convolutions one after the other, of as many channels as filters, that keep the size of the map."""
    build = Builder("convolutions")
    x = build.input("x", [1, channels, side, side])
    for k in range(layers):
        x = build.relu(build.conv(x, f"w{k}", channels, channels, window, pad=window // 2))
    build.output(x, "y", [1, channels, side, side])
    return build.build()


def _fitted(target: Target, **values: float) -> Target:
    return replace(target, costs=target.costs.fitted(Origin("benchmark"), **values))


def ways_alone(target: Target) -> dict[str, Target]:
    """Targets whose tiles prefetch a panel of a convolution that they have to themselves one way each."""
    return {
        "as it is": target,
        "a few lines": _fitted(target, alone_panel_bytes=0),
        **{f"{n} ahead": _fitted(target, alone_panel_bytes=n) for n in ALONE_PREFETCH},
    }


def ways(target: Target) -> dict[str, Target]:
    """Targets that prefetch one way each."""

    def fitted(**values: float) -> Target:
        return _fitted(target, **values)

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
        **{f"{n} ahead": fitted(**alone, panel_bytes_l3=n, panel_bytes_memory=n) for n in DISTANCES},
    }


def times(models: Sequence[Any], x: np.ndarray, rounds: int) -> list[float]:
    """Microseconds of each, the median of turns."""
    results: list[list[float]] = [[] for _ in models]
    for _ in range(rounds):
        for model, own in zip(models, results, strict=True):
            model(x)
            start = time.perf_counter()
            model(x)
            model(x)
            own.append((time.perf_counter() - start) / 2 * 1e6)
    return [statistics.median(own) for own in results]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="2,3,4,5,6,8", help="numbers of rows")
    parser.add_argument("--chains", default="768x3072x8,1024x1024x24,512x512x8", help="features, features, products")
    parser.add_argument("--maps", nargs="?", const=MAPS, help="instead: channels, window, side of the map, layers")
    parser.add_argument("--rounds", type=int, default=9)
    settings = parser.parse_args(arguments)
    target = Target.host()
    if settings.maps:
        options = ways_alone(target)
        models = {sizes: convolutions(*map(int, sizes.split("x"))) for sizes in settings.maps.split(",")}
        named = "cold-maps", "Prefetching of convolutions over small maps, 1 thread", "channels, window, side, layers"
    else:
        options = ways(target)
        models = {
            f"{sizes}, {rows} rows": chain(rows, *map(int, sizes.split("x")))
            for sizes in settings.chains.split(",")
            for rows in map(int, settings.rows.split(","))
        }
        named = "few-rows", "Prefetching of products of few rows, 1 thread", "features, products, rows"
    body = [line(name, model, list(options.values()), settings.rounds) for name, model in models.items()]
    name, title, first = named
    header = [first, "µs as it is", *(f"{way} / it" for way in list(options)[1:])]
    write_markdown(name, title, markdown_table(header, body))


def line(name: str, model: onnx.ModelProto, targets: Sequence[Target], rounds: int) -> list[str]:
    """A line of the table: a model's time by the first target, and those by the others beside it."""
    results = [tw.compile(model, target=target, threads=1) for target in targets]
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    took = times(results, np.random.default_rng(0).standard_normal(shape, np.float32), rounds)
    cells = [name, f"{took[0]:.0f}", *(f"{t / took[0]:.2f}" for t in took[1:])]
    print(*cells, flush=True)
    return cells


if __name__ == "__main__":
    main()
