"""PyTorch's list of its own operators, on Tilewright: `python -m tests.torch_opinfo.run` (or `make torch-ops`).

Each entry of `op_db` (or, with --modules, of `module_db`) is tried in each element type with a few of PyTorch's own
samples. A worker process does the work under a time limit, so that a crash or a hang is a row of the table. An entry
is as good as its worst sample. The outcomes:

native          every result is eager's (`torch.testing.assert_close`), or as near to that in f64 as eager's
fell back       an error of Tilewright's says what is not supported; `torch.compile(..., backend="tilewright")` runs
                that in PyTorch, with eager's results
refused         the same, where `torch.compile` fails whatever its backend is
not exportable  `torch.export` does not make a program of it
wrong, crashed  another result; an exception that is not Tilewright's, the end of the process, or no end in time

Fails if anything is wrong or crashed, or an entry of `expected_passes.txt` is not native; `--update` writes that list
and the table.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.torch_opinfo.cases import DTYPES, cases, entry_name, modules, operators, supports
from tests.torch_opinfo.check import Outcome, check

EXPECTED = Path(__file__).with_name("expected_passes.txt")
REPORT = Path(__file__).parents[2] / "benchmarks/results/torch-ops.md"
LIMIT_S = 240.0
"""Longest that one entry may take, compiling all of its samples."""
ORDER = ("crashed", "wrong", "refused", "fell back", "native", "not exportable", "left out")
"""Outcomes of samples; the first that occurs is the entry's."""


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome of an entry in one element type."""

    name: str
    dtype: str
    kind: str
    reason: str = ""
    seconds: float = 0.0


def run_entry(entry: Any, dtype: str, count: int, native: bool = True) -> Row:
    """One entry in this process."""
    start, name = time.perf_counter(), entry_name(entry)
    try:
        results = [(c.label, check(c, name, native)) for c in cases(entry, dtype, count)]
    except Exception as error:  # PyTorch's own makers of samples
        results = [("", Outcome("left out", f"no samples: {type(error).__name__}: {str(error)[:100]}"))]
    label, worst = min(results, key=lambda o: ORDER.index(o[1].kind), default=("", Outcome("left out", "no samples")))
    reason = worst.reason if worst.kind not in ("wrong", "crashed") else f"{label}: {worst.reason}"
    return Row(name, dtype, worst.kind, reason, time.perf_counter() - start)


def _work(connection: Connection, entries: Sequence[Any], count: int, native: bool) -> None:
    """A worker: receives an entry's index and a type, sends a row; ends with its parent."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    torch.set_num_threads(1)
    parent = os.getppid()
    while os.getppid() == parent:
        if connection.poll(5.0):
            index, dtype = connection.recv()
            connection.send(run_entry(entries[index], dtype, count, native))


class Workers:
    """One worker process at a time, replaced when it is lost."""

    def __init__(self, entries: Sequence[Any], count: int, native: bool) -> None:
        self.request = (entries, count, native)
        self.process: Any = None
        self.connection: Any = None

    def run(self, index: int, dtype: str) -> Row:
        if self.process is None:
            context = multiprocessing.get_context("fork")
            self.connection, theirs = context.Pipe()
            self.process = context.Process(target=_work, args=(theirs, *self.request), daemon=True)
            self.process.start()
            theirs.close()
        self.connection.send((index, dtype))
        name = entry_name(self.request[0][index])
        try:
            if self.connection.poll(LIMIT_S):
                row: Row = self.connection.recv()
                return row
            reason = f"no result after {LIMIT_S:.0f} s"
        except EOFError:
            self.process.join()
            reason = f"the process ended with {self.process.exitcode}"
        self.process.kill()
        self.process.join()
        self.process = None
        return Row(name, dtype, "crashed", reason)


def chosen(entries: Sequence[Any], dtypes: Sequence[str], patterns: Sequence[str]) -> Iterator[tuple[int, str]]:
    for dtype in dtypes:
        for k, entry in enumerate(entries):
            wanted = not patterns or any(fnmatch.fnmatch(entry_name(entry), p) for p in patterns)
            if wanted and supports(entry, dtype):
                yield k, dtype


# ---------------------------------------------------------------- reports


def table(rows: Sequence[Row]) -> str:
    """Counts by element type, as a table of Markdown."""
    kinds = ("native", "fell back", "refused", "not exportable", "wrong", "crashed")
    lines = [f"| type | entries | {' | '.join(kinds)} | native, % |", "|---" * (len(kinds) + 3) + "|"]
    by_type: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        by_type[row.dtype][row.kind] += row.kind != "left out"
    for dtype, counts in by_type.items():
        total = counts.total()
        share = 100 * counts["native"] / max(total, 1)
        lines.append(f"| {dtype} | {total} | {' | '.join(str(counts[k]) for k in kinds)} | {share:.1f} |")
    return "\n".join(lines)


def reasons(rows: Sequence[Row]) -> str:
    """The entries that are not native, by outcome and reason."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        if row.kind not in ("native", "left out"):
            short = row.reason.replace("|", "\\|").strip()
            groups[row.kind, short[:160]].append(f"{row.name} ({row.dtype})")
    lines = ["| outcome | reason | entries |", "|---|---|---|"]
    for (kind, reason), names in sorted(groups.items(), key=lambda g: (ORDER.index(g[0][0]), -len(g[1]), g[0])):
        lines.append(f"| {kind} | {reason} | {', '.join(names)} |")
    return "\n".join(lines)


def expected() -> set[tuple[str, str]]:
    """Entries that must be native: (name, element type)."""
    lines = EXPECTED.read_text().splitlines() if EXPECTED.exists() else []
    return {(line.split()[0], line.split()[1]) for line in lines if line}


def write(rows: Sequence[Row], count: int) -> None:
    EXPECTED.write_text("".join(f"{r.name} {r.dtype}\n" for r in sorted(rows, key=_place) if r.kind == "native"))
    types = ",".join(dict.fromkeys(row.dtype for row in sorted(rows, key=_place)))
    intro = (
        f"# PyTorch's operators\n\n`make torch-ops ARGS='--dtypes {types} --samples {count} --update'` makes this: "
        f"the entries of `op_db` of PyTorch {torch.__version__.split('+')[0]}, each with at most {count} samples "
        "(empty ones, single elements and scattered memory among them), compiled and compared with eager.\n\n"
    )
    REPORT.write_text(f"{intro}{table(rows)}\n\n## What is not native\n\n{reasons(rows)}\n")


def _place(row: Row) -> tuple[int, str]:
    return list(DTYPES).index(row.dtype), row.name


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", help="entries by name, such as 'linalg.*'; all if none")
    parser.add_argument("--dtypes", default="f32,i64,bool", help=f"of {', '.join(DTYPES)}")
    parser.add_argument("--samples", type=int, default=4, help="samples of each entry")
    parser.add_argument("--every", type=int, default=1, help="only each so many-th entry")
    parser.add_argument("--modules", action="store_true", help="module_db in place of op_db")
    parser.add_argument("--graph", action="store_true", help="do not compile: run the operators' NumPy references")
    parser.add_argument("--rows", type=Path, help="append rows as lines of JSON; those in the file are not run again")
    parser.add_argument("--update", action="store_true", help="write the table and the list of expected passes")
    args = parser.parse_args(argv)
    entries = modules() if args.modules else operators()
    tasks = list(chosen(entries, args.dtypes.split(","), args.patterns))[:: args.every]
    stored = [Row(**json.loads(line)) for line in args.rows.read_text().splitlines()] if _exists(args.rows) else []
    done = {(r.name, r.dtype) for r in stored}
    tasks = [(k, t) for k, t in tasks if (entry_name(entries[k]), t) not in done]
    workers, rows = Workers(entries, args.samples, not args.graph), list(stored)
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(tasks))
        for k, dtype in tasks:
            progress.update(bar, description=f"{entry_name(entries[k])} {dtype}")
            rows.append(workers.run(k, dtype))
            progress.advance(bar)
            if args.rows is not None:
                with args.rows.open("a") as file:
                    file.write(json.dumps(asdict(rows[-1])) + "\n")
    print(table(rows), reasons(rows), sep="\n\n")
    if args.update and not args.modules:
        write(rows, args.samples)
    missing = expected() & {(r.name, r.dtype) for r in rows if r.kind != "native"} if not args.modules else set()
    for name, dtype in sorted(missing):
        print(f"expected to be native: {name} {dtype}")
    return int(bool(missing) or any(r.kind in ("wrong", "crashed") for r in rows))


def _exists(path: Path | None) -> bool:
    return path is not None and path.exists()


if __name__ == "__main__":
    sys.exit(main())
