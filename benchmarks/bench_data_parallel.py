"""Two processes that learn on halves of a batch, by gloo: `python -m benchmarks.bench_data_parallel`.

Gradients in buckets that are reduced while the backward pass goes on, against buckets that are waited for, one bucket,
and PyTorch's DistributedDataParallel: the same network, loss, clipping and Adam, a core each. A step takes as long as
the slower process; contenders take turns in the same two processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import RESULTS, commit, environment, markdown_table, write_report
from benchmarks.peers.data_parallel import CONTENDERS, PROCESSES

CASES = ("mlp 16x256@2048", "resnet18 64x64@32", "transformer 6x256, 128 tokens@8")
HEADER = ["network@batch of a process", "buckets ms", "buckets, waited for", "one bucket", "DDP", "nothing reduced"]
AGREEMENT = 1e-3
"""Relative difference of first losses that are the same: sums in another order."""


def measured(case: str, rounds: int, seconds: float) -> dict[str, list[float]]:
    """The times of each contender's steps, of the slower process each."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"{rank}.json" for rank in range(PROCESSES)]
        command = [sys.executable, "-m", "benchmarks.peers.data_parallel", case, f"{folder}/store"]
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
        running = [
            subprocess.Popen([*command, str(rank), str(out), str(rounds), str(seconds)], env=one_thread)
            for rank, out in enumerate(outs)
        ]
        codes = [process.wait() for process in running]
        if any(codes):
            raise SystemExit(f"{case}: a process has failed")
        results = [json.loads(out.read_text()) for out in outs]
    for losses in (each["losses"] for each in results):
        if max(losses.values()) - min(losses.values()) > AGREEMENT * abs(max(losses.values())):
            raise SystemExit(f"{case}: first losses differ: {losses}")
    return {
        name: [max(ts) for ts in zip(*(each["times"][name] for each in results), strict=True)] for name in CONTENDERS
    }


def row_of(case: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """Medians: ours with buckets in seconds, of the others how many times as long they take, turn by turn."""
    own = times["buckets"]
    ratios = {name: sorted(b / a for a, b in zip(own, times[name], strict=True)) for name in CONTENDERS[1:]}
    row = {"case": case, "commit": commit(), "command": environment()["command"], "buckets": median(own)}
    return row | {name: [median(r), r[len(r) // 4], r[3 * len(r) // 4]] for name, r in ratios.items()}


def cells(row: dict[str, Any]) -> list[str]:
    ratios = (row[name] for name in ("waiting", "one", "ddp", "alone"))
    return [row["case"], f"{row['buckets'] * 1e3:.1f}", *(f"{m:.2f} [{a:.2f}, {b:.2f}]" for m, a, b in ratios)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=";".join(CASES), help="names as in the table, with semicolons between")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=30, help="no further round of a case begins after this time")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    path = RESULTS / "data-parallel.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {row["case"]: row for row in known}
    for case in options.cases.split(";"):
        rows[case] = row_of(case, measured(case, options.rounds, options.seconds))
        print("  ".join(cells(rows[case])), flush=True)
        if not options.no_report:
            report([rows[case] for case in CASES if case in rows])


def report(rows: Sequence[dict[str, Any]]) -> None:
    title = "Two processes that learn together by gloo: how many times as long as with buckets"
    notes = "Medians of ratios turn by turn [quartiles]. A process has a core, which gloo's threads share with it."
    notes += f" Rows were measured one by one, at {', '.join(dict.fromkeys(row['commit'] for row in rows))}."
    write_report("data-parallel", title, rows, f"{markdown_table(HEADER, [cells(row) for row in rows])}\n{notes}\n")


if __name__ == "__main__":
    main()
