"""Schedules by rules against the plans that they stand in for: `python -m benchmarks.bench_sketches [--tune]`.

Functions that plans were written for (`sketch_suite.py`) are compiled with these and with TILEWRIGHT_SKETCHES=alone:
as estimates choose, and with --tune after at most 64 of the settings were timed. Paired turns, one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_comprehension import ONE
from benchmarks.harness import RESULTS, markdown_table, write_report
from benchmarks.models import ROOT
from benchmarks.sketch_suite import SUITE, model
from tilewright.measure import paired
from tilewright.measure.contender import load_arrays
from tilewright.support import flags
from tilewright.targets.target import Target
from tilewright.tuning import entry
from tilewright.tuning.journal import Journal
from tilewright.tuning.programs import Maker
from tilewright.tuning.search import Policy

FOLDER = ROOT / "build" / "sketches"
MAX_SETTINGS = 64
"""Settings that are timed of a function."""
HEADER = ["function", "plan, µs", "by rules", "tuned", "settings timed", "difference"]


def tuned(case: str) -> tuple[dict[str, str], int]:
    """The settings that the tuner verifies for schedules by rules, and how many it timed."""
    os.environ[flags.SKETCHES.name] = "alone"
    with tempfile.TemporaryDirectory() as folder:
        maker = Maker(model(case), Path(folder), threads=1, target=Target.host())
        program = maker.untuned()
        journal = Journal.of(program.manifest.structure_key, maker.target, f"sketches {MAX_SETTINGS}", FOLDER)
        arrays = entry.example_inputs(program, None)
        result = entry.run(maker, program, arrays, journal, Policy(most=MAX_SETTINGS))
    return dict(result.settings), sum(sum(r.outcomes.values()) for r in result.rows)


def compare(case: str, rounds: int, team: paired.Team, *, tune: bool) -> dict[str, Any]:
    """One function: how many times the plan's time is that of the rules' schedules, by pairs."""
    arguments: dict[str, dict[str, Any]] = {"plan": {"sketches": "unplanned"}, "rules": {"sketches": "alone"}}
    count = 0
    if tune:
        forced, count = tuned(case)
        arguments["tuned"] = {"sketches": "alone", "forced": forced}
    contenders = [
        paired.Contender(n, "benchmarks.peers.sketches:own", {"case": case, **more}, environment=ONE)
        for n, more in arguments.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        raced = paired.race(
            contenders, rounds=rounds, turn_seconds=0.004, warmup_seconds=0.02, outputs=Path(folder), team=team
        )
        result = dict(zip(arguments, raced, strict=True))
        failed = {n: r.error for n, r in result.items() if r.error}
        if failed:
            raise SystemExit(f"{case}: {failed}")
        plan, *others = (load_arrays(str(r.outputs))["y"].astype(float) for r in raced)
    off = max(float(np.abs(o - plan).max()) for o in others) / max(1e-30, float(np.abs(plan).max()))
    ratios = {n: paired.ratio(result["plan"], result[n]) for n in arguments if n != "plan"}
    return {"name": case, "seconds": result["plan"].median, "ratios": ratios, "timed": count, "difference": off}


def row(result: dict[str, Any]) -> list[str]:
    """A row of the table."""
    ratios = result["ratios"]
    cells = [f"{ratios[n]:.2f}" if n in ratios else "-" for n in ("rules", "tuned")]
    return [
        result["name"],
        f"{result['seconds'] * 1e6:.1f}",
        *cells,
        str(result["timed"]),
        f"{result['difference']:.0e}",
    ]


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Geometric means."""
    parts = []
    for name, words in (("rules", "as estimates choose"), ("tuned", f"after at most {MAX_SETTINGS} measurements")):
        ratios = [r["ratios"][name] for r in rows if name in r["ratios"]]
        if ratios:
            mean = float(np.exp(np.mean(np.log(ratios))))
            parts.append(f"{words} {mean:.3f} in the geometric mean of {len(ratios)}, least {min(ratios):.2f}")
    return f"Speed of schedules by rules as a multiple of the plans': {'; '.join(parts)}."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(SUITE))
    parser.add_argument("--tune", action="store_true", help="also time settings")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--add", action="store_true", help="to the functions that the report has")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    path = RESULTS / "sketches.json"
    known = {r["name"]: r for r in json.loads(path.read_text())["rows"]} if options.add and path.exists() else {}
    with paired.Team() as team:
        for case in options.cases:
            known[case] = compare(case, options.rounds, team, tune=options.tune)
            print("  ".join(row(known[case])), flush=True)
    rows = [known[c] for c in SUITE if c in known]
    print(summary(rows))
    if not options.no_report:
        title = "Schedules by rules instead of plans, one thread"
        write_report("sketches", title, rows, f"{summary(rows)}\n\n{markdown_table(HEADER, list(map(row, rows)))}")


if __name__ == "__main__":
    main()
