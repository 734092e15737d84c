"""Whether the compiler makes the same code as before: `python -m benchmarks.bytes --against main`.

Every model and layer of the suites is compiled for three kinds of machine up to the LLVM text of each kernel and of the
entry, past all caches, and the texts' digests are compared with another revision's. LLVM is deterministic, so equal
texts are equal objects; `--objects` makes these too. Nothing runs, so any machine gives the same digests. Graphs are
digested as well, after import (with their weights and interface) and after the passes; `--graphs` compares these and
exported texts alone, for one kind of machine, which takes seconds and tells what a frontend or a pass changes.

Digests are kept as `build/bytes/COMMIT.json` (a tree with changes: COMMIT-dirty, always made anew); a commit's are made
once, from a copy of its sources. The exit code is 1 if something differs.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks import built_cases, code_cases, code_probe, models
from benchmarks.code_cases import Case
from tilewright.support.progress import Step, progress

TARGETS = ("znver4", "x86-64-v3", "neoverse-v1")
FOLDER = models.ROOT / "build" / "bytes"
SAVE_SECONDS = 20.0

Row = dict[str, Any]
"""The answer of `code_probe.py`: machine, entry, kernels as pairs of label and digest; or error."""
Rows = dict[str, Row]
"""By "case | target"."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit, or the tree as it stands if `dirty`."""

    commit: str
    dirty: bool

    @property
    def name(self) -> str:
        return self.commit + ("-dirty" if self.dirty else "")

    def path(self, kind: str = "") -> Path:
        """Where digests of a kind are kept: of texts, "objects" or "graphs"."""
        return FOLDER / f"{self.name}{f'-{kind}' if kind else ''}.json"


@contextlib.contextmanager
def sources(revision: Revision) -> Iterator[Path]:
    """The folder of a revision's sources; a copy unless it is the tree's own."""
    if revision == present():
        yield models.ROOT / "src"
        return
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        packed = subprocess.run(["git", "archive", revision.commit, "src"], cwd=models.ROOT, capture_output=True)
        if packed.returncode:
            raise SystemExit(packed.stderr.decode().strip())
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder) / "src"


def present() -> Revision:
    return Revision(_git("rev-parse", "--short=10", "HEAD"), bool(_git("status", "--porcelain", "src")))


def revision(name: str) -> Revision:
    return Revision(_git("rev-parse", "--short=10", f"{name}^{{commit}}"), False)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=models.ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    return done.stdout.strip()


class Worker:
    """A process that answers orders with one tree's compiler."""

    def __init__(self, source: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source), "TILEWRIGHT_CACHE": "0", "TILEWRIGHT_DEBUG": "0"}
        environment["TILEWRIGHT_PROCESSES"] = "1"  # forked copies would keep their kernels' texts to themselves
        environment |= {"TILEWRIGHT_RECORDS": "none", "TILEWRIGHT_PLUGINS": "0", "TILEWRIGHT_VERIFY": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.code_probe", str(source)],
            env=environment,
            cwd=models.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, case: Case, target: str, kind: str = "") -> Row:
        assert self.process.stdin is not None and self.process.stdout is not None
        order = {**asdict(case), "dims": case.dims, "path": _file(case), "target": target}
        order |= {"objects": kind == "objects", "graphs": kind == "graphs"}
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the compiling process ended with status {self.process.wait()} on {case.name}, {target}")
        result: Row = json.loads(answer)
        return result

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def _file(case: Case) -> str:
    """The file of a case's model, built if it is not there; none for what the process builds."""
    return "" if case.model.startswith(built_cases.PREFIX) else str(models.load(case.model))


def record(which: Revision, cases: Sequence[Case], options: argparse.Namespace) -> Rows:
    """The rows of these cases: those that are kept already, and the others, which are kept from now on."""
    path = which.path(options.kind)
    retained = {} if which.dirty or options.repeat else _read(path)
    todo = [c for c in cases if any(_key(c, t) not in retained for t in options.targets)]
    start = saved = time.monotonic()
    if todo:
        for case in todo:
            _file(case)  # built here, not by several threads at once
        with sources(which) as source, progress(which.name, total=len(todo)) as step:
            for candidate in _in_workers(source, todo, options, step):
                retained |= candidate
                if time.monotonic() - saved > SAVE_SECONDS:  # an interrupted run loses little
                    saved = _save(path, which, retained)
        _save(path, which, retained)
    rows = {key: retained[key] for key in (_key(c, t) for c in cases for t in options.targets)}
    seconds = f"{len(todo)} compiled in {time.monotonic() - start:.0f} s" if todo else "all kept from before"
    where = os.path.relpath(path, models.ROOT)
    print(f"{which.name}: {len(cases)} cases, {len(rows)} rows, {seconds}: {where}", flush=True)
    return rows


def _in_workers(source: Path, cases: Sequence[Case], options: argparse.Namespace, step: Step) -> Iterator[Rows]:
    """The rows of each case, in order."""
    idle: SimpleQueue[Worker] = SimpleQueue()
    workers = [Worker(source) for _ in range(min(options.workers, len(cases)))]
    for worker in workers:
        idle.put(worker)

    def ask(case: Case) -> Rows:
        worker = idle.get()
        try:
            rows = {_key(case, t): worker.ask(case, t, options.kind) for t in options.targets}
        finally:
            idle.put(worker)
        step(case.name)
        return rows

    try:
        with ThreadPoolExecutor(len(workers)) as pool:
            yield from pool.map(ask, cases)
    finally:
        for worker in workers:
            worker.close()


def _key(case: Case, target: str) -> str:
    return f"{case.name} | {target}"


def _read(path: Path) -> Rows:
    if not path.exists():
        return {}
    result = json.loads(path.read_text())
    rows: Rows = result["rows"] if result.get("version") == code_probe.VERSION else {}
    return rows


def _save(path: Path, which: Revision, rows: Rows) -> float:
    """Keep rows, with those that another process has kept meanwhile; gives the time. A line a row, for text tools; who
    reads meanwhile finds all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = rows if which.dirty else {**_read(path), **rows}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(rows[key])}" for key in sorted(rows))
    head = f'"commit": {json.dumps(which.name)}, "version": {code_probe.VERSION}'
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(f'{{{head}, "rows": {{\n{lines}\n}}}}\n')
    temporary.replace(path)
    return time.monotonic()


def differences(old: Row, new: Row) -> list[str]:
    """The differences of two rows, in words; empty if they are equal."""
    if "error" in old or "error" in new:
        return [] if old == new else [f"before: {old.get('error', 'compiled')}; now: {new.get('error', 'compiled')}"]
    results = []
    if old["machine"] != new["machine"]:
        results.append(f"machine: {old['machine']} -> {new['machine']}")
    if old["entry"] != new["entry"]:
        results.append("entry")
    before, now = (_by_label(row["kernels"]) for row in (old, new))
    for label in dict.fromkeys((*before, *now)):
        gone, come = before.get(label, Counter()), now.get(label, Counter())
        if gone != come:
            results.append(f"{label} ({_changed(gone, come)})")
    return results


def _changed(gone: Counter[str], come: Counter[str]) -> str:
    """How many kernels of one label are others than before: "2 of 5", or "2 of 5, now 6"."""
    same = (gone & come).total()
    if not gone:
        return "new"
    if not come:
        return "gone"
    count = max(gone.total(), come.total()) - same
    return f"{count} of {gone.total()}" + (f", now {come.total()}" if gone.total() != come.total() else "")


def _by_label(kernels: Sequence[Sequence[str]]) -> dict[str, Counter[str]]:
    result: dict[str, Counter[str]] = {}
    for label, code in kernels:
        result.setdefault(label, Counter())[code] += 1
    return result


def compare(old: Rows, new: Rows) -> int:
    """Print what differs; how many rows do."""
    changed: Mapping[str, list[str]] = {key: result for key in new if (result := differences(old[key], new[key]))}
    for key, result in changed.items():
        print(f"{key}: {'; '.join(result)}")
    kernels = sum(len(row.get("kernels", ())) for row in new.values())
    print(f"{len(new) - len(changed)} of {len(new)} rows equal, with {kernels} kernels, graphs and texts in all")
    return len(changed)


def chosen(options: argparse.Namespace) -> list[Case]:
    """The cases that the options name."""
    cases = code_cases.quick() if options.quick else code_cases.cases()
    patterns = options.only.split(",")
    results = [c for c in cases if any(fnmatch.fnmatchcase(c.name, pattern) for pattern in patterns)]
    if not results:
        raise SystemExit("no case has such a name")
    return results


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bytes", description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="REVISION", help="compare with this one; without it, only record")
    parser.add_argument("--quick", action="store_true", help="a few cases that have each plan in them")
    parser.add_argument("--only", default="*", help="names of cases, comma-separated, * and ? allowed")
    parser.add_argument("--targets", type=lambda text: text.split(","), help="comma-separated")
    kinds = parser.add_mutually_exclusive_group()
    kinds.set_defaults(kind="")
    kinds.add_argument(
        "--objects", dest="kind", action="store_const", const="objects", help="of object code: LLVM works too, minutes"
    )
    kinds.add_argument(
        "--graphs", dest="kind", action="store_const", const="graphs", help="of graphs and exported texts alone"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes that compile (default 2)")
    parser.add_argument("--again", dest="repeat", action="store_true", help="make the digests of commits anew")
    options = parser.parse_args(arguments)
    options.targets = options.targets or (TARGETS[:1] if options.kind == "graphs" else TARGETS)
    return options


def main(arguments: list[str] | None = None) -> int:
    options = _arguments(arguments)
    cases = chosen(options)
    old = record(revision(options.against), cases, options) if options.against else None
    new = record(present(), cases, options)
    for key, row in new.items():
        if "error" in row:
            print(f"{key}: {row['error']}")
    failed = any("error" in row for row in new.values())
    return int((old is not None and compare(old, new) > 0) or failed)


if __name__ == "__main__":
    raise SystemExit(main())
