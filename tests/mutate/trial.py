"""A private copy of the tree, and runs of pytest in it: to record which test runs which line, and to try a mutant."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.mutate.mutants import Mutant
from tests.mutate.rooms import ROOT
from tests.mutate.server import WALL_SECONDS, Request

MAP = ROOT / "build" / "mutate" / "map"
COPIED = ("src", "tests", "benchmarks", "examples", "docs", "pyproject.toml", "README.md", "Makefile")
SLOWER, GRACE = 4.0, 10.0
"""A test's limit: so many times its recorded time, and so many seconds on top (a first import)."""
MAX_SECONDS = 3600.0
"""Seconds that any run of pytest may take, whatever its tests do."""
DAY = "2026-11-30"
"""The day whose cases run of tests marked `daily`: a map holds for all days."""
FEWER = {"TILEWRIGHT_SCHEDULE_CASES": "200", "TILEWRIGHT_LANGUAGE_CASES": "100"}
"""Random schedules: a tenth of those of `make test`, since no mutant has seconds for more of them, and tracing all of
them takes longer than all other tests."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict of a mutant's tests: "killed" (`by` a test), "timeout" or "survived"."""

    verdict: str
    by: str = ""
    tests: int = 0


class Tree:
    """A copy of the repository in a folder of its own, with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cache = folder / "tree", folder / "cache"
        self.server: tuple[subprocess.Popen[bytes], Connection] | None = None
        for name in COPIED:
            source, target = ROOT / name, self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                skip = shutil.ignore_patterns("results", "*.egg-info")
                shutil.copytree(source, target, ignore=skip)
            elif source.exists():
                shutil.copy2(source, target)

    def command(self) -> list[str]:
        temporary = f"--basetemp={self.root.parent / 'tmp'}"
        return [sys.executable, "-m", "pytest", "-p", "tests.mutate.plugin", "-p", "no:cacheprovider", temporary]

    def environment(self) -> dict[str, str]:
        retained = {k: v for k, v in os.environ.items() if not k.startswith(("TILEWRIGHT_", "PYTEST_"))}
        return (
            retained
            | FEWER
            | {
                "TILEWRIGHT_TEST_DAY": DAY,
                "PYTHONPATH": f"{self.root / 'src'}{os.pathsep}{self.root}",
                # Files of equal size that are changed within a second would share their bytecode.
                "PYTHONDONTWRITEBYTECODE": "1",
                "TILEWRIGHT_CACHE_DIR": str(self.cache),
            }
        )

    def pytest(self, arguments: Sequence[str], limit: float = MAX_SECONDS, **variables: str) -> tuple[int, str]:
        """Exit status and output of a run; 124 where it took longer than the limit."""
        process = subprocess.Popen(
            [*self.command(), *arguments],
            cwd=self.root,
            env=self.environment() | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return 124, ""
        finally:
            _end(process)

    def serve(self, files: Sequence[str]) -> None:
        """Start a process (`server.py`), instead of the one there was, and wait until it has collected these files: a
        mutant that lay on the disk meanwhile would be in all that come after it."""
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [*self.command(), *files],
                cwd=self.root,
                env=self.environment() | {"TILEWRIGHT_MUTATE_SERVE": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.server = process, Connection(ours.detach())
        try:
            self.server[1].recv()
        except EOFError:
            raise SystemExit("mutate: the tests could not be collected") from None

    def close(self) -> None:
        if self.server is not None:
            process, link = self.server
            link.close()
            _end(process)
            self.server = None

    def try_mutant(self, mutant: Mutant, tests: dict[str, float] | None, outside: frozenset[int]) -> Outcome:
        """Run tests (with their recorded seconds, in this order) on the tree with one mutant; none: the whole suite."""
        path = self.root / mutant.path
        source = path.read_text()
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()
        path.write_text(mutant.apply(source))
        try:
            return self.run_whole() if tests is None else self.run_tests(mutant, tests, outside)
        finally:
            path.write_text(source)
            shutil.rmtree(self.cache, ignore_errors=True)

    def run_tests(self, mutant: Mutant, tests: dict[str, float], outside: frozenset[int]) -> Outcome:
        if not tests:
            return Outcome("survived")
        limits = {name: GRACE + SLOWER * s for name, s in tests.items()}
        most = min(MAX_SECONDS, WALL_SECONDS * (GRACE + SLOWER * sum(tests.values())))
        answer = None
        if self.server is not None:
            text = (self.root / mutant.path).read_text()
            self.server[1].send(Request(mutant.path, text, mutant.line, outside, limits, most))
            answer = self.server[1].recv()
        if answer is None:
            chosen = self.root.parent / "tests.json"
            chosen.write_text(json.dumps(list(limits.items())))
            files = list(dict.fromkeys(name.split("::")[0] for name in tests))
            options = ["-x", "--tb=no", "-rfE", "--no-header"]
            answer = self.pytest([*options, *files], most, TILEWRIGHT_MUTATE_TESTS=str(chosen))
        status, output = answer
        return _outcome(status, output, len(tests))

    def run_whole(self) -> Outcome:
        """Run all tests, `-n auto`."""
        status, output = self.pytest(["-x", "--tb=no", "-rfE", "--no-header", "-n", "auto"])
        return _outcome(status, output, 0)

    def record(self, file: str) -> None:
        """Record one test file's lines, unless that was done since the file changed."""
        path = MAP / f"{file}.json"
        digest = _digest(self.root / file)
        if path.exists() and json.loads(path.read_text())["digest"] == digest:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        written = self.root.parent / "record.json"
        written.unlink(missing_ok=True)
        _, output = self.pytest(["--tb=no", file], TILEWRIGHT_MUTATE_RECORD=str(written))
        if not written.exists():
            raise SystemExit(f"mutate: {file} could not be recorded:\n{output[-2000:]}")
        result = json.loads(written.read_text())
        sources = {name: _digest(self.root / name) for name in result["lines"]}
        path.write_text(json.dumps({"digest": digest, "sources": sources, **result}))


@dataclass(frozen=True, slots=True)
class Recorded:
    """The lines that one test file runs."""

    seconds: dict[str, float]
    lines: dict[str, dict[str, list[int]]]
    outside: dict[str, list[int]]
    sources: dict[str, str]

    @staticmethod
    def read(file: str) -> Recorded:
        data = json.loads((MAP / f"{file}.json").read_text())
        return Recorded(dict(data["tests"]), data["lines"], data["outside"], data["sources"])

    def covering(self, path: str, first: int, last: int) -> dict[str, float]:
        """The tests that run one of these lines, with their seconds; any line of a file that changed since."""
        names, of_file = list(self.seconds), self.lines.get(path, {})
        known = path in self.sources and self.sources[path] == _digest(ROOT / path)
        lines = map(str, range(first, last + 1)) if known else iter(of_file)
        members = {names[k] for line in lines for k in of_file.get(line, ())}
        return {name: s for name, s in self.seconds.items() if name in members}


def _outcome(status: int, output: str, tests: int) -> Outcome:
    if status == 0:
        return Outcome("survived", tests=tests)
    if status in (124, -signal.SIGPROF) or "Timeout (" in output:
        return Outcome("timeout", tests=tests)
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return Outcome("killed", failed[0].split(" - ")[0] if failed else f"exit status {status}", tests)


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a run and whatever it started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
