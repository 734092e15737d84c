"""Attention of few queries, whose keys and values may be read where they are or packed into panels first:

    python -m benchmarks.bench_few_queries [--grid] [--settings 5] [--target x86-64-v3]

Each case is compiled by the best estimates of either way; all take turns in one process, with eager PyTorch's
`scaled_dot_product_attention` and the same in three operators. `--grid` runs over queries, keys and depths: from its
times the constants of `plans/attention/tiles.py` are fitted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import onnx

import tilewright as tw
from benchmarks.harness import markdown_table, write_markdown
from benchmarks.onnx_builder import Builder
from tilewright.plans.framework.decisions import Decision, deciding, forcing
from tilewright.targets.target import Target

Case = tuple[int, int, int, int]
"""Heads, queries, keys, depth of a head."""

CASES: tuple[Case, ...] = (
    (1, 4, 119, 384),
    (1, 3, 64, 192),
    (1, 12, 128, 768),
    (1, 12, 384, 768),
    (12, 3, 128, 64),
    (12, 4, 128, 64),
    (12, 8, 128, 64),
    (12, 6, 50, 32),
    (4, 5, 30, 16),
    (8, 16, 256, 64),
    (12, 4, 400, 80),
    (12, 8, 400, 80),
    (12, 16, 400, 80),
    (12, 12, 197, 64),
    (8, 8, 400, 64),
    (12, 16, 100, 80),
    (12, 32, 256, 32),
    (12, 64, 200, 64),
)
GRID: tuple[Case, ...] = (
    *((12, m, n, d) for d, n, m in product((32, 64, 128), (64, 200, 800), (1, 2, 4, 8, 16, 32, 64))),
    *((12, m, n, d) for d, n, m in product((24, 40, 80), (77, 400), (3, 5, 12, 20, 50))),
)
HEADER = ["heads x queries x keys x depth", "setting", "µs", "estimate µs", "time / estimate", "eager / time", "taken"]
SHORTEST = 4e-3
"""Seconds of a turn."""


def attention(heads: int, queries: int, keys: int, depth: int) -> onnx.ModelProto:
    """The attention of one batch entry, without projections."""
    b = Builder("attention")
    q, k, v = (b.input(name, [1, heads, n, depth]) for name, n in (("q", queries), ("k", keys), ("v", keys)))
    scores = b.op("MatMul", [q, b.op("Transpose", [k], perm=[0, 1, 3, 2])])
    b.output(b.op("MatMul", [b.op("Softmax", [scores], axis=-1), v]), "y", [1, heads, queries, depth])
    return b.build()


def decision(model: onnx.ModelProto, target: Target) -> Decision:
    """The decision about the attention's plan."""
    with deciding() as record:
        tw.compile(model, target=target)
    (result,) = (d for d in record.decisions if any(s.kind == "attention" for s in d.space.settings))
    return result


def eager(arrays: Sequence[np.ndarray]) -> Iterator[Callable[[], object]]:
    """Calls of PyTorch."""
    import torch

    torch.set_num_threads(1)
    q, k, v = map(torch.from_numpy, arrays)
    yield lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)
    yield lambda: torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def aligned(shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Random numbers that begin at a line of cache, as those of other kernels do."""
    count = int(np.prod(shape))
    room = np.empty(count + 16, np.float32)
    first = -(room.ctypes.data // 4) % 16
    room[first : first + count] = rng.standard_normal(count)
    return room[first : first + count].reshape(shape)


def rows(case: Case, rounds: int, settings: int, target: Target) -> Iterator[list[object]]:
    """A case by the best settings of both ways."""
    model, rng = attention(*case), np.random.default_rng(0)
    about = decision(model, target)
    own = [(e, s) for s, e in zip(about.space.settings, about.estimates, strict=True) if s.kind == "attention"]
    heads, queries, keys, depth = case
    arrays = [aligned((1, heads, n, depth), rng) for n in (queries, keys, keys)]
    calls, result = list(eager(arrays)), []
    for direct in (True, False):
        for estimate, setting in [(e, s) for e, s in own if (dict(s.knobs)["tiles"] == 0) == direct][:settings]:
            with forcing({about.key.name: setting.label}):
                compiled = tw.compile(model, target=target)
            out = tuple(compiled.empty_outputs(*arrays).values())
            calls.append(lambda compiled=compiled, out=out: compiled(*arrays, out=out))
            result.append((estimate, setting))
    turns: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, turns, strict=True):
            call()
            start, count = time.perf_counter(), 0
            while time.perf_counter() - start < SHORTEST:
                call()
                count += 1
            times.append((time.perf_counter() - start) / count * 1e6)
    peer = min(statistics.median(times) for times in turns[:2])
    for (estimate, setting), times in zip(result, turns[2:], strict=True):
        seconds, expected = statistics.median(times), estimate / target.frequency / 1e3
        knobs = dict(setting.knobs)
        there = f"{knobs['rows']} rows with {knobs['steps']} keys"
        way = there if knobs["tiles"] == 0 else f"packed, {knobs['rows']} x {knobs['width']}"
        cells = [f"{seconds:.1f}", f"{expected:.1f}", f"{seconds / expected:.2f}", f"{peer / seconds:.2f}"]
        yield [" x ".join(map(str, case)), way, *cells, "yes" if setting.label == about.selected.label else ""]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--settings", type=int, default=1, help="of either way, the best by estimate")
    parser.add_argument("--grid", action="store_true", help="queries, keys and depths in all combinations")
    parser.add_argument("--target", default="host")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    target = Target.on_host(options.target)
    cases = GRID if options.grid else CASES
    text = markdown_table(
        HEADER, [row for case in cases for row in rows(case, options.rounds, options.settings, target)]
    )
    print(text)
    if not options.no_report:
        write_markdown("few-queries", "Attention of few queries: keys and values read where they are, or packed", text)


if __name__ == "__main__":
    main()
