"""Attention of few queries, whose keys and values may be read where they are or packed into panels first: `python -m
benchmarks.bench_few_queries`.

Each case is compiled by the best estimate of either way; the two take turns in one process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np
import onnx

import tilewright as tw
from benchmarks.harness import markdown_table, write_markdown
from benchmarks.onnx_builder import Builder
from tilewright.plans.framework.decisions import Decision, deciding, forcing
from tilewright.targets.target import Target

CASES = (
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
)
"""Heads, queries, keys, depth of a head."""
HEADER = [
    "heads x queries x keys x depth",
    "read there µs",
    "estimate",
    "packed µs",
    "estimate",
    "packed / read",
    "taken",
]
CALLS = 40


def attention(heads: int, queries: int, keys: int, depth: int) -> onnx.ModelProto:
    """The attention of one batch entry, without projections."""
    b = Builder("attention")
    q, k, v = (b.input(name, [1, heads, n, depth]) for name, n in (("q", queries), ("k", keys), ("v", keys)))
    scores = b.op("MatMul", [q, b.op("Transpose", [k], perm=[0, 1, 3, 2])])
    b.output(b.op("MatMul", [b.op("Softmax", [scores], axis=-1), v]), "y", [1, heads, queries, depth])
    return b.build()


def decision(model: onnx.ModelProto) -> Decision:
    """That about the attention's plan."""
    with deciding() as record:
        tw.compile(model)
    (found,) = (d for d in record.made if any(s.kind == "attention" for s in d.space.settings))
    return found


def row(case: tuple[int, int, int, int], rounds: int) -> list[object]:
    """A case by both ways."""
    model, rng = attention(*case), np.random.default_rng(0)
    about = decision(model)
    compiled, estimates = [], []
    for direct in (True, False):
        ways = [s for s in about.space.settings if s.kind == "attention" and (dict(s.knobs)["tiles"] == 0) == direct]
        estimates.append(about.estimates[about.space.settings.index(ways[0])])
        with forcing({about.key.name: ways[0].label}):
            compiled.append(tw.compile(model))
    heads, queries, keys, depth = case
    arrays = [rng.standard_normal((1, heads, n, depth)).astype(np.float32) for n in (queries, keys, keys)]
    turns: list[list[float]] = [[], []]
    for _ in range(rounds):
        for one, own in zip(compiled, turns, strict=True):
            one(*arrays)
            start = time.perf_counter()
            for _ in range(CALLS):
                one(*arrays)
            own.append((time.perf_counter() - start) / CALLS * 1e6)
    frequency = Target.host().frequency * 1e3
    read, packed = map(statistics.median, turns)
    ratio = statistics.median(b / a for a, b in zip(*turns, strict=True))
    cells = [f"{read:.1f}", f"{estimates[0] / frequency:.1f}", f"{packed:.1f}", f"{estimates[1] / frequency:.1f}"]
    taken = "read there" if dict(about.taken.knobs).get("tiles") == 0 else "packed"
    return [" x ".join(map(str, case)), *cells, f"{ratio:.2f}", taken]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-report", action="store_true", help="print only")
    given = parser.parse_args(arguments)
    text = markdown_table(HEADER, [row(case, given.rounds) for case in CASES])
    print(text)
    if not given.no_report:
        write_markdown("few-queries", "Attention of few queries: keys and values read where they are, or packed", text)


if __name__ == "__main__":
    main()
