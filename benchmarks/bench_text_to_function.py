"""How long comprehensions take from their text to the first result: `python -m benchmarks.bench_text_to_function`.

Each function of `comprehension_suite.py`, several times, in processes of their own that have compiled another one
before, each with a cache of its own that is empty: the text is read, the arrays are given, the result is there. Seconds
of the clock, and of the processor, which other work on the machine disturbs less. The first function of a process also
waits for the compiler's own modules: `--first` says how long.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import tilewright as tw
from benchmarks.comprehension_suite import SUITE, named
from benchmarks.harness import markdown_table, write_markdown

BAR = 0.3
"""Seconds from text to result that a function may take."""
HEADER = ["function", "s of the clock", "s of the processor", "slowest"]
OTHER = "C[m, n] +! A[m, k] * B[n, k]"
"""The function that every process has compiled before."""
FIRST = """
import time, numpy as np
start = time.perf_counter()
import tilewright as tw
tw.comprehension
imported = time.perf_counter()
a = np.ones((3, 4), np.float32)
tw.comprehension({text!r})(a, a)
print(f"{{imported - start:.2f}} {{time.perf_counter() - imported:.2f}}")
"""


def other() -> None:
    """Compile one function."""
    a = np.ones((3, 4), np.float32)
    tw.comprehension(OTHER)(a, a)


def measured(name: str) -> tuple[float, float]:
    """Seconds of the clock and of the processor, in this process."""
    case = named(name)
    x = case.arrays()
    other()
    start, spent = time.perf_counter(), time.process_time()
    tw.comprehension(case.text)(*x)
    return time.perf_counter() - start, time.process_time() - spent


def alone(name: str) -> tuple[float, float]:
    """Seconds in a process of its own, with a cache of its own; modules that were read once are quick to read."""
    with tempfile.TemporaryDirectory(prefix="tilewright-text-") as folder:
        command = [sys.executable, "-m", "benchmarks.bench_text_to_function", "--measure", name]
        own = {"TILEWRIGHT_CACHE_DIR": folder, "TILEWRIGHT_RECORDS": "none", "PYTHONDONTWRITEBYTECODE": ""}
        done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=True)
    wall, processor = json.loads(done.stdout.splitlines()[-1])
    return float(wall), float(processor)


def row(name: str, rounds: int) -> list[Any]:
    """A row of the table: medians, and the slowest of the rounds by the processor."""
    results = [alone(name) for _ in range(rounds)]
    wall, processor = (statistics.median(times) for times in zip(*results, strict=True))
    return [name, f"{wall:.3f}", f"{processor:.3f}", f"{max(p for _, p in results):.3f}"]


def summary(rows: Sequence[Sequence[Any]]) -> str:
    """How many stay within the bar."""
    wall, processor = ([float(r[k]) for r in rows] for k in (1, 2))
    return (
        f"{len(rows)} functions. Within {BAR} s: {sum(t <= BAR for t in wall)} by the clock, "
        f"{sum(t <= BAR for t in processor)} by the processor's time; medians {statistics.median(wall):.3f} and "
        f"{statistics.median(processor):.3f} s, the most {max(wall):.3f} and {max(processor):.3f} s."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--first", action="store_true", help="a process that has just begun, and nothing else")
    parser.add_argument("--no-report", action="store_true", help="print only")
    parser.add_argument("--measure", metavar="FUNCTION", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measured(options.measure)))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="tilewright-text-") as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        if options.first:
            command = [sys.executable, "-c", FIRST.format(text=OTHER)]
            for _ in range(2):  # the second time the modules have been read before
                result = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            print("imports {} s, the first function {} s".format(*result))
            return
        for case in SUITE:
            rows.append(row(case.name, options.rounds))
            print("  ".join(rows[-1]), flush=True)
    print(summary(rows))
    if not options.no_report:
        title = "From the text of a comprehension to its first result, with an empty cache"
        write_markdown("text-to-function", title, f"{summary(rows)}\n\n{markdown_table(HEADER, rows)}")


if __name__ == "__main__":
    main()
