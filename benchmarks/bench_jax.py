"""Networks in JAX alone against the same networks as ONNX models, both compiled by Tilewright: `make bench-jax`.

    python -m benchmarks.bench_jax [--only "gru scan"] [--batches 1,8] [--rounds 15] [--write]

Both programs take turns in one process, one thread, with buffers for their results; a ratio is the ONNX program's time
by that of JAX's, the median of the turns. Programs whose kernels are the same are equally fast, whatever a clock says.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import tilewright as tw
from benchmarks.harness import console, markdown_table, write_markdown
from benchmarks.jax_models import PAIRS, Pair

TURN_SECONDS = 0.02
HEADER = ["network", "batch", "kernels", "from JAX µs", "from ONNX µs", "ONNX / JAX"]


def compiled(pair: Pair, batch: int) -> tuple[Any, Any]:
    """Both programs, of one batch size."""
    proto, x = pair.onnx(), pair.input(batch)
    ours = tw.compile(jax.jit(pair.function), (pair.weights(proto), x), params=0, threads=1)
    return ours, tw.compile(proto, dims={"batch": batch}, threads=1)


def race(name: str, batch: int, rounds: int) -> list[str]:
    """A row of the table."""
    pair, x = PAIRS[name], PAIRS[name].input(batch)
    models = compiled(pair, batch)
    buffers = [tuple(model.empty_outputs(x).values()) for model in models]
    calls = [lambda m=m, b=b: m(x, out=b) for m, b in zip(models, buffers, strict=True)]
    for call in calls:
        call()
    for ours, theirs in zip(*buffers, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())
    count = max(1, round(TURN_SECONDS / seconds(calls[0], 1)))
    turns = [[seconds(call, count) for call in calls] for _ in range(rounds)]
    ours, theirs = (statistics.median(t) * 1e6 for t in zip(*turns, strict=True))
    ratio = statistics.median(b / a for a, b in turns)
    labels = [[step.label for step in model.program.manifest.run_steps] for model in models]
    kernels = "the same" if labels[0] == labels[1] else f"{len(labels[0])} for {len(labels[1])}"
    return [name, str(batch), kernels, f"{ours:.1f}", f"{theirs:.1f}", f"{ratio:.3f}"]


def seconds(call: Callable[[], Any], count: int) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_jax", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(PAIRS), choices=list(PAIRS), help="these networks")
    parser.add_argument("--batches", default="1,8", help="batch sizes, with commas between")
    parser.add_argument("--rounds", type=int, default=15, help="turns of the timing")
    parser.add_argument("--write", action="store_true", help="put the table into results/jax.md")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.only:
        for batch in map(int, options.batches.split(",")):
            rows.append(race(name, batch, options.rounds))
            console().print("  ".join(rows[-1]), highlight=False)
    if options.write:
        write_markdown("jax", "Networks from JAX against the same from ONNX, one thread", markdown_table(HEADER, rows))


if __name__ == "__main__":
    main()
