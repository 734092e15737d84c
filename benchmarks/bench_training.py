"""Steps of training whole networks against eager PyTorch, Inductor and JAX: `python -m benchmarks.bench_training`.

Forward in training mode, loss, gradients, clipping and Adam; one process each, taking turns, one thread. The arithmetic
limit counts the products and convolutions of both ways alone. Rows are kept one by one, so that a table can be measured
in parts; `--prepare` sets everything up once, so that what can be kept on disk is there when it is timed.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import RESULTS, commit, environment, markdown_table, speedup, write_report
from benchmarks.peers.training import CASES
from tilewright.measure import paired
from tilewright.measure.peak import measure
from tilewright.support import machine

PEERS = ("eager", "inductor", "jax")
HEADER = ["network@batch", "ours ms", "eager", "Inductor", "JAX", "the best of them", "ours / limit", "compile s"]
ONE_CORE = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
AGREEMENT = 1e-3
"""Relative difference of first losses that are the same: sums in another order."""


def compare(case: str, rounds: int, peers: Sequence[str], seconds: float) -> dict[str, Any]:
    """A row: medians of paired ratios, ours in milliseconds."""
    names = ("own", *peers)
    contenders = [paired.Contender(n, f"benchmarks.peers.training:{n}", {"case": case}, ONE_CORE) for n in names]
    result = dict(
        zip(
            names,
            paired.race(contenders, rounds=rounds, turn_seconds=0.02, enough_seconds=seconds),
            strict=True,
        )
    )
    own = result["own"]
    if own.error:
        raise SystemExit(own.error)
    row: dict[str, Any] = {"case": case, "commit": commit(), "ours": own.median, "compile": own.info["compile_seconds"]}
    row["flops"] = own.info["flops"]
    for name in peers:
        other = result[name]
        if other.error:
            print(f"{case}: {name}: {other.error}", flush=True)
            continue
        if abs(other.info["loss"] - own.info["loss"]) > AGREEMENT * abs(own.info["loss"]):
            raise SystemExit(f"{case}: {name} has the loss {other.info['loss']}, ours is {own.info['loss']}")
        ratio = speedup(own, other)
        row[name] = [ratio.median, ratio.low, ratio.high]
    return row


def cells(row: dict[str, Any], peak: float) -> list[str]:
    ratios = [row[name] for name in PEERS if name in row]
    shown = [f"{m:.2f} [{a:.2f}, {b:.2f}]" for m, a, b in ratios]
    by_peer = dict(zip([name for name in PEERS if name in row], shown, strict=True))
    best = f"{min(r[0] for r in ratios):.2f}" if ratios else "-"
    limit = row["ours"] / (row["flops"] / peak)
    columns = [by_peer.get(name, "-") for name in PEERS]
    return [row["case"], f"{row['ours'] * 1e3:.1f}", *columns, best, f"{limit:.2f}", f"{row['compile']:.1f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=";".join(CASES), help="names as in the table, with semicolons between")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=60, help="no further round of a case begins after this time")
    parser.add_argument("--prepare", action="store_true", help="one round, nothing kept: warms compilers' caches")
    parser.add_argument("--name", default="training", help="of the report")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    peers = options.peers.split(",")
    if "inductor" in peers and shutil.which("g++") is None and shutil.which("clang++") is None:
        print("Inductor is left out: it needs a compiler of C++")
        peers.remove("inductor")
    peak = measure(machine.describe()).peak_gflops_one * 1e9
    path = RESULTS / f"{options.name}.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {row["case"]: row for row in known if row["case"] in CASES}
    for case in options.cases.split(";"):
        row = compare(case, 1 if options.prepare else options.rounds, peers, options.seconds)
        print("  ".join(cells(row, peak)), flush=True)
        rows[case] = {**row, "command": environment()["command"]}
        if not (options.no_report or options.prepare):
            report(options.name, [rows[case] for case in CASES if case in rows], peak)


def report(name: str, rows: Sequence[dict[str, Any]], peak: float) -> None:
    """Write all rows that there are, after each case: a later one may take too long."""
    table = markdown_table(HEADER, [cells(row, peak) for row in rows])
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    title = "Steps of training, one thread: how many times faster, medians of paired ratios [95 %]"
    notes = f"Peak of one core: {peak / 1e9:.0f} GFLOP/s; Winograd's transforms need fewer operations than are counted."
    notes += f" Rows were measured one by one, at {commits}."
    write_report(name, title, rows, f"{table}\n{notes}\n")


if __name__ == "__main__":
    main()
