"""Architectures of transformers with every axis open, by three doors: whole, right at five sizes, how long it takes.

    python -m benchmarks.bench_transformers [--only NAME...] [--doors dynamo] [--rows FILE] [--report]

Each case is a process of its own with a time and a memory limit: the module itself by `tw.compile(module, example,
dynamic=...)`, and the ONNX file that each of PyTorch's exporters makes of it, by `tw.compile(file, fallback="never")`.
Rows go to a file one by one, and what is in it is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from benchmarks import models
from benchmarks.harness import console, markdown_table, write_markdown
from benchmarks.zoo.open_probe import DOORS, Row
from benchmarks.zoo.opened import CASES

ROWS = models.ROOT / "build" / "transformers.jsonl"
TITLE = "Architectures of transformers with every axis open"


def run(name: str, door: str, limit: float, memory: float, files: Path | None = None) -> Row:
    """One case in a process of its own, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        order = [sys.executable, "-m", "benchmarks.zoo.open_probe", name, door, "--memory", str(memory)]
        order += [] if files is None else ["--files", str(files.resolve())]
        try:
            ended = subprocess.run(
                order, env=environment, cwd=models.ROOT, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            return Row(name, door, "time limit", detail=f"not done in {limit:.0f} s")
    if ended.returncode == 0:
        return Row(**json.loads(ended.stdout.splitlines()[-1]))
    last = (ended.stderr.strip().splitlines() or [""])[-1]
    return Row(name, door, "crashed", detail=f"status {ended.returncode}: {last}"[:400])


def read(path: Path) -> dict[tuple[str, str], Row]:
    """The rows of earlier runs; of two of one case the later."""
    if not path.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()]
    return {(row.name, row.door): row for row in rows}


def report(rows: Mapping[tuple[str, str], Row]) -> str:
    """The table: an architecture a line, its doors side by side; then why not."""
    header = ["architecture", *(f"{door}: whole, sizes, s" for door in DOORS)]
    names = [name for name in CASES if any(row.name == name for row in rows.values())]
    table = [[name, *(cell(rows.get((name, door))) for door in DOORS)] for name in names]
    counts = Counter((row.door, row.outcome) for row in rows.values())
    totals = [[door, outcome, n] for (door, outcome), n in sorted(counts.items())]
    reasons = [[row.name, row.door, row.detail.replace("|", "/")] for row in rows.values() if row.outcome != "whole"]
    parts = [markdown_table(["door", "outcome", "architectures"], totals), markdown_table(header, table)]
    if left := [name for name in CASES if name not in names]:
        parts.append(f"Not tried: {', '.join(left)}. An empty cell was not tried either.\n")
    if reasons:
        parts.append("## What is not whole\n\n" + markdown_table(["architecture", "door", "why"], reasons))
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "onnx", "onnxscript"))
    return "\n".join([f"With {libraries}. The seconds are those of `tw.compile`, cold.\n", *parts])


def cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row.outcome == "whole":
        return f"whole, {row.right}" + ("" if row.compile is None else f", {row.compile:.0f}")
    return row.outcome


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_transformers", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--only", nargs="*", default=list(CASES), help="architectures by name")
    parser.add_argument("--doors", nargs="*", default=list(DOORS), choices=DOORS)
    parser.add_argument("--rows", type=Path, default=ROWS, help="where rows are kept, one by one")
    parser.add_argument(
        "--again", dest="repeat", action="store_true", help="also those that have a row; the later one counts"
    )
    parser.add_argument("--limit", type=float, default=120, help="seconds of one case")
    parser.add_argument("--memory", type=float, default=4, help="GB of one case")
    parser.add_argument("--files", type=Path, help="where exporters' files stay, and are taken from in later runs")
    parser.add_argument(
        "--report", nargs="?", const="transformers", metavar="NAME", help="write the rows to benchmarks/results/NAME.md"
    )
    options = parser.parse_args(arguments)
    rows = read(options.rows)
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    with options.rows.open("a") as file:
        for name in options.only:
            for door in options.doors:
                if (name, door) in rows and not options.repeat:
                    continue
                row = rows[name, door] = run(name, door, options.limit, options.memory, options.files)
                file.write(json.dumps(asdict(row)) + "\n")
                file.flush()
                console().print(f"{name} {door}: {cell(row)} {row.detail}", markup=False, soft_wrap=True)
    if options.report:
        write_markdown(options.report, TITLE, report(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
