"""Runs JAX's own test cases on Tilewright: `python -m tests.jax.run` (or `make jax`).

Each case is compiled to native code, run, and compared with jax.jit. Workers are processes of their own, so that a
crash or a hang is one failure. Every `--every`-th case of each group is taken; `--every 1` takes all.

With `--modules DIR` the cases are StableHLO's own programs (`stablehlo/testdata/*.mlir` of openxla/stablehlo), which
carry their inputs and expected results.

The run fails if a case is wrong or crashes, or if fewer than `FLOOR` of the cases pass.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FLOOR = 0.95
"""The share that must pass of the cases that are not left out."""
LIMIT_S = 120.0
"""How long one case may take."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--every", type=int, default=16, help="take every so many-th case of each group")
    options.add_argument("--first", type=int, default=0, help="the first one that is taken")
    options.add_argument("--only", default="", help="cases whose name has this in it")
    options.add_argument("--interpreted", action="store_true", help="run the graph by the operators' references")
    options.add_argument("--modules", type=Path, help="a folder of StableHLO programs that check themselves")
    options.add_argument("--json", type=Path, help="write all results there")
    settings = options.parse_args()
    started = time.monotonic()
    results = Runner(settings).run()
    counts = Counter(outcome.partition(":")[0] for _, outcome, _ in results)
    _report(results, counts, time.monotonic() - started)
    if settings.json:
        settings.json.write_text(json.dumps(results, indent=1))
    asked = sum(n for what, n in counts.items() if what != "left out")
    bad = counts["wrong"] + counts["crashed"] + counts["too slow"]
    sys.exit(1 if bad or counts["passed"] < FLOOR * asked or not asked else 0)


def _report(results: list[tuple[str, str, float]], counts: Counter[str], seconds: float) -> None:
    console = Console()
    reasons: dict[str, list[str]] = {}
    for name, outcome, _ in results:
        if outcome != "passed":
            reasons.setdefault(outcome[:150], []).append(name)
    table = Table("cases", "outcome", "for example", title="what did not pass")
    for reason, names in sorted(reasons.items(), key=lambda r: -len(r[1])):
        table.add_row(str(len(names)), reason, names[0][:80])
    console.print(table)
    asked = sum(n for what, n in counts.items() if what != "left out")
    share = 100 * counts["passed"] / max(asked, 1)
    console.print(f"{dict(counts)}: {share:.1f} % of {asked} pass, in {seconds:.0f} s")


class Runner:
    """One worker at a time, started again when it dies or hangs."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.context = multiprocessing.get_context("spawn")
        self.worker: Any = None
        self.pipe: Connection

    def run(self) -> list[tuple[str, str, float]]:
        results: list[tuple[str, str, float]] = []
        place = 0
        while True:
            if self.worker is None:
                self.start(place)
            answer = self.answer()
            if answer == "end":
                self.worker.join(10)
                return results
            if isinstance(answer, tuple):
                results.append(answer)
                place += 1
                continue
            results.append((self.name, answer, 0.0))
            place += 1
            self.worker.kill()
            self.worker.join()
            self.worker = None

    name = ""

    def answer(self) -> Any:
        """The next result; a text where the worker has died or hangs."""
        while True:
            if not self.pipe.poll(LIMIT_S):
                return "too slow"
            try:
                said = self.pipe.recv()
            except EOFError:
                return "crashed"
            if isinstance(said, str) and said.startswith("now "):
                self.name = said[4:]
                continue
            return said

    def start(self, place: int) -> None:
        self.pipe, other = self.context.Pipe()
        self.worker = self.context.Process(target=work, args=(other, vars(self.options), place), daemon=True)
        self.worker.start()
        other.close()


def work(pipe: Connection, options: dict[str, Any], place: int) -> None:
    """Run the cases from `place` on, and say what became of each."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    if options["modules"]:
        from tests.jax import modules

        cases: list[Any] = modules.cases(options["modules"])
    else:
        from tests.jax import harnesses

        cases = harnesses.harnesses()
    for case in _chosen(cases, options)[place:]:
        pipe.send(f"now {case.fullname}")
        started = time.monotonic()
        try:
            if options["modules"]:
                outcome = modules.check(case, native=not options["interpreted"])
            else:
                outcome = harnesses.check(case, native=not options["interpreted"])
        except Exception as error:  # no exception but Tilewright's own is right
            outcome = f"crashed: {type(error).__name__}: {error}"[:400]
        pipe.send((case.fullname, outcome, round(time.monotonic() - started, 2)))
    pipe.send("end")
    pipe.close()


def _chosen(cases: list[Any], options: dict[str, Any]) -> list[Any]:
    seen: Counter[str] = Counter()
    results = []
    for case in cases:
        if options["only"] not in case.fullname:
            continue
        if seen[case.group_name] % options["every"] == options["first"] % options["every"]:
            results.append(case)
        seen[case.group_name] += 1
    return results


if __name__ == "__main__":
    main()
