"""Memory against time of learning steps that compute activations again: `python -m benchmarks.bench_recompute`.

Each share is a budget of what a step's temporaries take without one; the step with it and the step without take turns,
one thread. Memory is the arena that was planned before a step, and the one that a step then held.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from benchmarks.bench_training import ONE_CORE
from benchmarks.harness import RESULTS, markdown_table, speedup, write_report
from benchmarks.peers.training import CASES
from tilewright.measure import paired

SHARES = ("0.75x", "0.5x", "0.4x", "0.3x")
HEADER = ["network@batch", "budget", "planned MB", "held MB", "of it all", "time / without", "the same loss"]


def compare(case: str, share: str, rounds: int, seconds: float) -> dict[str, Any] | None:
    """A row: planned and held bytes, and how many times longer a step takes; None where no plan fits."""
    contenders = [
        paired.Contender(name, "benchmarks.peers.training:own", {"case": case, "memory": memory}, ONE_CORE)
        for name, memory in (("small", share), ("plain", None))
    ]
    small, plain = paired.race(contenders, rounds=rounds, turn_seconds=0.02, enough_seconds=seconds)
    if plain.error or small.error:
        print(f"{case} {share}: {plain.error or small.error}", flush=True)
        return None
    ratio = speedup(plain, small)
    return {
        "case": case,
        "share": share,
        "plain": plain.info["planned"],
        "planned": small.info["planned"],
        "held": small.info["held"],
        "time": [ratio.median, ratio.low, ratio.high],
        "same": small.info["loss"] == plain.info["loss"],
    }


def cells(row: dict[str, Any]) -> list[str]:
    median, low, high = row["time"]
    return [
        row["case"],
        row["share"],
        f"{row['planned'] / 1e6:.1f}",
        f"{row['held'] / 1e6:.1f}",
        f"{row['planned'] / row['plain']:.2f}",
        f"{median:.3f} [{low:.3f}, {high:.3f}]",
        "yes" if row["same"] else "no",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=";".join(CASES), help="names as in the table, with semicolons between")
    parser.add_argument("--shares", default=",".join(SHARES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=30, help="no further round of a row begins after this time")
    parser.add_argument("--prepare", action="store_true", help="one round, nothing kept: warms the compiler's cache")
    options = parser.parse_args(arguments)
    path = RESULTS / "recompute.json"
    rows = {(r["case"], r["share"]): r for r in (json.loads(path.read_text())["rows"] if path.exists() else [])}
    for case in options.cases.split(";"):
        for share in options.shares.split(","):
            row = compare(case, share, 1 if options.prepare else options.rounds, options.seconds)
            if row is None:
                continue
            print("  ".join(cells(row)), flush=True)
            rows[case, share] = row
    if not options.prepare:
        ordered = sorted(rows.values(), key=lambda r: (list(CASES).index(r["case"]), -float(r["share"][:-1])))
        title = "Learning steps that compute activations again, one thread: memory against time"
        write_report("recompute", title, ordered, f"{markdown_table(HEADER, [cells(r) for r in ordered])}\n")


if __name__ == "__main__":
    main()
