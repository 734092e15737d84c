"""Steps of training whole networks against PyTorch's eager mode: `python -m benchmarks.bench_training`.

Forward in training mode, loss, gradients, clipping and Adam; one process each, taking turns, one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.harness import markdown_table, speedup, write_markdown
from benchmarks.peers.training import CASES
from tilewright.measure import paired

HEADER = ["network@batch", "ours ms", "eager PyTorch ms", "times faster", "compile s"]
ONE_CORE = {"OMP_NUM_THREADS": "1"}


def compare(case: str, rounds: int) -> list[str]:
    """A row of the table."""
    names = ("own", "eager")
    contenders = [paired.Contender(n, f"benchmarks.peers.training:{n}", {"case": case}, ONE_CORE) for n in names]
    own, eager = paired.race(contenders, rounds=rounds, turn_seconds=0.02)
    for found in (own, eager):
        if found.error:
            raise SystemExit(found.error)
    seconds = own.info["compile_seconds"]
    times = [f"{found.median * 1e3:.1f}" for found in (own, eager)]
    return [case, *times, str(speedup(own, eager)), f"{seconds:.1f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=";".join(CASES), help="names as in the table, with semicolons between")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    table = []
    for case in options.cases.split(";"):
        table.append(compare(case, options.rounds))
        print("  ".join(table[-1]), flush=True)
    if not options.no_report:
        title = "Steps of training, one thread: how many times faster, medians of paired ratios [95 %]"
        write_markdown("training", title, markdown_table(HEADER, table))


if __name__ == "__main__":
    main()
