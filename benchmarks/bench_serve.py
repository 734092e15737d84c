"""The inference server against its bars: `python -m benchmarks.bench_serve PART...` (see --help).

    latency   one small request over HTTP, shared memory and gRPC, each beside a bare server on the same library

Servers have core 0 and the client core 1. Absolute times count on a quiet machine alone; ratios are of turns.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.harness import markdown_table
from benchmarks.serving import latency

console = Console()


def _latency(options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as folder:
        rows = latency.measure(Path(folder), options.turns, options.seconds, options.rate, options.spin)
    return markdown_table(
        (
            "way",
            "p50, us",
            "p99, us",
            "median service, us",
            "bare: p50, us",
            "p99, us",
            "service, us",
            "ratio of service",
        ),
        [
            (
                row.way,
                *(f"{1e6 * t:.0f}" for t in (row.ours.p50, row.ours.p99, row.ours.service)),
                *(f"{1e6 * t:.0f}" for t in (row.bare.p50, row.bare.p99, row.bare.service)),
                f"{row.ratio:.2f}",
            )
            for row in rows
        ],
    )


PARTS: dict[str, Callable[[argparse.Namespace], str]] = {"latency": _latency}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--rate", type=float, default=latency.RATE, help="small requests a second")
    parser.add_argument("--spin", type=float, default=0.0, help="seconds that the server spins after a request")
    options = parser.parse_args()
    os.sched_setaffinity(0, {1} if os.cpu_count() != 1 else {0})
    for part in options.parts:
        console.print(f"\n{part}\n", markup=False)
        print(PARTS[part](options), flush=True)


if __name__ == "__main__":
    main()
