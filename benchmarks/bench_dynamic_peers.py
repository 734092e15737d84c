"""Traces of sizes against ONNX Runtime, OpenVINO and Inductor, all with one model for all sizes:
`make bench-dynamic-peers`. With `--static 3`, peers have a model for each of three sizes of a trace alone, ours has
still one.

One process a framework; they take turns, and each turn is the same part of the trace for all of them. Ratios are a
peer's time by ours: the median over the turns, with its interval, and that of the 99th percentiles over all calls.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.bench_dynamic import TRACES, quantile_shapes
from benchmarks.harness import markdown_table, relative_error, speedup, write_markdown
from benchmarks.peers.dynamic import AT
from tilewright.measure import paired
from tilewright.measure.contender import load_arrays

PEERS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "inductor": "Inductor"}
HEADER = ["trace", "calls", "ours µs, median", "p99"]
HEADER += [cell for peer in PEERS.values() for cell in (peer, "p99")]
TOLERANCE = 1e-3


def compare(trace: str, peers: Sequence[str], options: argparse.Namespace) -> list[str]:
    """A row of the table; peers that are not among these have no figures."""
    arguments = {"trace": trace, "threads": options.threads, "window": options.window}
    names = ("own", *peers)
    contenders = [paired.Contender(name, f"benchmarks.peers.dynamic:{name}", arguments) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        raced = paired.race(
            contenders,
            rounds=options.rounds,
            warmup_seconds=0.1,
            turn_seconds=0.01,
            enough_seconds=options.seconds,
            outputs=Path(folder),
        )
        result = dict(zip(names, raced, strict=True))
        arrays = {name: load_arrays(str(r.outputs)) for name, r in result.items() if r.outputs}
    own = _calls(result["own"])
    cells = [trace, str(own.size), f"{np.median(own) * 1e6:.0f}", f"{np.percentile(own, 99) * 1e6:.0f}"]
    for peer in PEERS:
        if peer not in result:
            cells += ["-", "-"]
            continue
        if not result[peer].times or relative_error(arrays[peer], arrays["own"]) > TOLERANCE:
            print(f"{trace}: {peer}: {result[peer].error or 'other results'}")
            cells += ["-", "-"]
            continue
        tail = np.percentile(_calls(result[peer]), 99) / np.percentile(own, 99)
        cells += [str(speedup(result["own"], result[peer])), f"{tail:.2f}"]
    return cells


def _calls(result: paired.Result) -> np.ndarray:
    """Seconds of every call."""
    return np.array([seconds for turn in result.parts for seconds in turn])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="traces whose names have one of these in them, with commas between")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--window", type=int, default=25, help="calls of a turn")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no further round of a trace after these")
    parser.add_argument("--static", type=int, default=0, help="sizes of each trace for which peers are set up alone")
    parser.add_argument("--peers", default=",".join(PEERS), help="with commas between")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    table = []
    for trace in TRACES:
        if any(part in trace.lower() for part in options.only.lower().split(",")):
            sizes = quantile_shapes(TRACES[trace], options.static) if options.static else []
            for at in (AT + "x".join(map(str, call.values())) for call in sizes) if sizes else ("",):
                table.append(compare(trace + at, options.peers.split(","), options))
                print("  ".join(table[-1]), flush=True)
    if not options.no_report:
        title = f"Suite DYN against peers, {options.threads} thread(s): how many times faster [95 %]"
        write_markdown("dynamic-peers", title, markdown_table(HEADER, table))


if __name__ == "__main__":
    main()
