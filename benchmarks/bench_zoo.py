"""Architectures of many libraries, random weights: whether each is right, how long it compiles, how fast it is.

    python -m benchmarks.bench_zoo [--only NAME...] [--rows FILE] [--seconds 600] [--compile] [--report]

Each is compiled in a process of its own, without a cache, with a time limit: by `tw.compile(module, example)`, where
that refuses for the example's sizes only, where that refuses too by `torch.compile(backend="tilewright")`; compared
with eager PyTorch; timed against it, one thread each, in turns. Rows go to a file one by one, and what is in it is not
run again. With `--compile` it is `torch.compile(backend="tilewright")` for all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path

from benchmarks import models
from benchmarks.harness import console, markdown_table, write_markdown
from benchmarks.tables import geometric_mean
from benchmarks.zoo import FAMILIES, builders
from benchmarks.zoo.row import TOLERANCE, Row

ROWS = models.ROOT / "build" / "zoo.jsonl"
COMPILE_ROWS = models.ROOT / "build" / "zoo-compile.jsonl"
RIGHT = ("native", "native, fixed sizes", "torch.compile", "whole", "in parts")

TITLE = "The zoo: architectures of many libraries against eager PyTorch, one thread"
COMPILE_TITLE = "The zoo under `torch.compile`: graphs, parts, and what PyTorch runs"


def ordered(seed: int | None) -> list[str]:
    """All names: in the order of the tables, or by a seed at random, one of each kind in turn."""
    kinds = [list(members) for members in FAMILIES.values()]
    if seed is None:
        return [name for members in kinds for name in members]
    rng = random.Random(seed)
    for members in kinds:
        rng.shuffle(members)
    return [name for turn in zip_longest(*kinds) for name in turn if name is not None]


def run(name: str, limit: float, arguments: Sequence[str]) -> Row:
    """One architecture in a process of its own, with an empty cache; `arguments` are the probe's."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        order = [sys.executable, "-m", "benchmarks.zoo.probe", name, *arguments]
        try:
            ended = subprocess.run(
                order, env=environment, cwd=models.ROOT, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            return Row(name, "time limit", f"not done in {limit:.0f} s")
    if ended.returncode == 0:
        return Row(**json.loads(ended.stdout.splitlines()[-1]))
    last = (ended.stderr.strip().splitlines() or [""])[-1]
    outcome = "crashed" if ended.returncode < 0 else "not built"
    return Row(name, outcome, f"status {ended.returncode}: {last}")


def read(path: Path) -> dict[str, Row]:
    """The rows of earlier runs; of two of one name the later."""
    if not path.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()]
    return {row.name: row for row in rows}


def line(row: Row) -> str:
    """A row for the terminal."""
    if row.outcome not in RIGHT:
        return f"{row.name}: {row.outcome}: {row.detail}"
    if row.graphs is not None:
        counts = f"{row.graphs} graphs, {row.parts} parts, {row.left} of {row.operators} operators in PyTorch"
        return f"{row.name}: {row.outcome}, error {row.error:.0e}, {counts}, {row.compile:.1f} s; {row.detail}"
    text = f"{row.name}: {row.outcome}, error {row.error:.0e}, compiled in {row.compile:.1f} s"
    if row.ratio is not None:
        text += f", {row.ratio:.2f}x eager ({row.ours:.0f} us)"
    return f"{text}; {row.slowest}" if row.slowest else text


def report(rows: dict[str, Row]) -> str:
    """The tables: counts, then each family."""
    parts = ["## Counts\n\n" + summary(list(rows.values()))]
    reasons = refusals(list(rows.values()))
    if reasons:
        parts.append("## What was not compiled as one program\n\n" + markdown_table(["reason", "models"], reasons))
    header = ["model", "outcome", "error", "compile s", "eager us", "ours us", "eager/ours", "slowest kernels, or why"]
    for family, members in FAMILIES.items():
        results = [rows[name] for name in members if name in rows]
        if results:
            parts.append(f"## {family}\n\n" + markdown_table(header, [cells(row) for row in results]))
    return "\n".join(parts)


def compile_report(rows: dict[str, Row]) -> str:
    """The tables of `--compile`."""
    results = [rows[name] for members in FAMILIES.values() for name in members if name in rows]
    header = [
        "model",
        "outcome",
        "error",
        "compile s",
        "eager/ours",
        "graphs",
        "parts",
        "operators",
        "in PyTorch",
        "why",
    ]
    table = [
        [
            row.name,
            row.outcome,
            *cells(row)[2:4],
            cells(row)[6],
            *("" if n is None else n for n in (row.graphs, row.parts, row.operators, row.left)),
            one_line(row.detail),
        ]
        for row in results
    ]
    return f"## Counts\n\n{summary(results)}\n## Models\n\n{markdown_table(header, table)}"


def refusals(rows: Sequence[Row]) -> list[list[str]]:
    """Why models were not compiled as one program, each reason with the models, the most frequent first."""
    result: dict[str, list[str]] = {}
    for row in rows:
        if not row.outcome.startswith("native"):
            reason = row.detail.split("native, fixed sizes: ")[-1].split("; torch.compile: ")[0]
            result.setdefault(one_line(reason), []).append(row.name)
    return [[reason, ", ".join(names)] for reason, names in sorted(result.items(), key=lambda item: -len(item[1]))]


def one_line(text: str) -> str:
    """A text that fits a cell of a table."""
    return " ".join(text.replace("|", "/").split())[:200]


def summary(rows: Sequence[Row]) -> str:
    counts = Counter(row.outcome for row in rows)
    table = markdown_table(["outcome", "models"], [[k, n] for k, n in counts.most_common()])
    seconds = sorted(row.compile for row in rows if row.compile is not None)
    ratios = sorted(row.ratio for row in rows if row.ratio is not None)
    notes = [f"{len(rows)} of the zoo's {len(builders())} architectures have run."]
    notes.append(f"{sum(row.foreign for row in rows)} had a foreign exception on the way.")
    if seconds:
        notes.append(
            f"Compile time, cold, CPU seconds of all threads: median {seconds[len(seconds) // 2]:.1f} s, "
            f"worst {seconds[-1]:.1f} s."
        )
    if ratios:
        mean = geometric_mean(ratios)
        slow = sum(r < 1 for r in ratios)
        notes.append(f"Eager's time by ours: geometric mean {mean:.2f}, least {ratios[0]:.2f}, {slow} below 1.")
    loads = sorted(row.load for row in rows if row.load is not None)
    if loads:
        notes.append(f"The machine's load average meanwhile: {loads[0]:.1f} to {loads[-1]:.1f}.")
    notes.append(
        f"Right: within {TOLERANCE:g} of each output's largest magnitude in eager PyTorch, same shapes and dtypes."
    )
    return table + "\n" + " ".join(notes) + "\n"


def cells(row: Row) -> list[str]:
    numbers = [
        "" if value is None else form.format(value)
        for value, form in (
            (row.error, "{:.0e}"),
            (row.compile, "{:.1f}"),
            (row.eager, "{:.0f}"),
            (row.ours, "{:.0f}"),
            (row.ratio, "{:.2f}"),
        )
    ]
    note = "; ".join(part for part in (row.slowest, row.detail) if part)
    return [row.name, row.outcome, *numbers, one_line(note)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_zoo", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="architectures whose names contain one of these")
    parser.add_argument("--rows", type=Path, help="where rows are kept, one by one")
    parser.add_argument(
        "--again", dest="repeat", action="store_true", help="also those that have a row; the later one counts"
    )
    parser.add_argument("--limit", type=float, default=180, help="seconds of one architecture")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after these")
    parser.add_argument("--rounds", type=int, default=7, help="turns of the timing; 0 times nothing")
    parser.add_argument(
        "--compile", action="store_true", help="by torch.compile alone: graphs, parts, what PyTorch runs"
    )
    parser.add_argument("--seed", type=int, help="in a random order, one of each kind in turn")
    parser.add_argument("--report", action="store_true", help="only write the table of the rows there are")
    options = parser.parse_args(arguments)
    retained = options.rows or (COMPILE_ROWS if options.compile else ROWS)
    names = [name for name in ordered(options.seed) if any(part in name for part in options.only)]
    rows = read(retained)
    todo = [] if options.report else [name for name in names if options.repeat or name not in rows]
    probed = ["--rounds", str(options.rounds), *(["--compile"] if options.compile else [])]
    start = time.monotonic()
    out = console()
    retained.parent.mkdir(parents=True, exist_ok=True)
    for k, name in enumerate(todo, 1):
        if time.monotonic() - start > options.seconds:
            out.print(f"{len(todo) - k + 1} left for another run")
            break
        row = rows[name] = run(name, options.limit, probed)
        with retained.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        out.print(f"[{k}/{len(todo)}] {line(row)}", markup=False, highlight=False)
    if options.compile:
        written = write_markdown("zoo-compile", COMPILE_TITLE, compile_report(rows))
    else:
        written = write_markdown("zoo", TITLE, report(rows))
    out.print(f"wrote {written}")
    bad = [row.name for row in rows.values() if row.outcome in ("wrong", "crashed")]
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
