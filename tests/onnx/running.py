"""How tests of ONNX are run on a backend: each in a worker process under a time limit, so that a crash or a hang fails
one test. `tests.onnx.run` and `tests.onnx.releases` share this."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
import unittest
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import onnx
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.onnx.backend import BACKENDS

# Of processor time, so that a busy machine fails nothing; a test that sleeps is given IDLE_FACTOR times as long.
NODE_LIMIT_S = 60.0
MODEL_LIMIT_S = 300.0
IDLE_FACTOR = 10


_RANDOM = "random numbers, and ONNX does not say by which generator"
_ROUNDING = "rounding: the reference computes in double precision, the sum is exactly zero, and the tolerance is 1e-7"
KNOWN: dict[str, str] = {
    **dict.fromkeys(("test_bernoulli", "test_bernoulli_double", "test_bernoulli_seed"), _RANDOM),
    **dict.fromkeys(
        ("test_bernoulli_expanded", "test_bernoulli_double_expanded", "test_bernoulli_seed_expanded"), _RANDOM
    ),
    "test_loop16_seq_none": "ONNX's comparison raises a TypeError for a scalar in a sequence, whatever it is",
    **dict.fromkeys(("test_dft_inverse", "test_dft_inverse_opset19"), _ROUNDING),
    **dict.fromkeys(
        ("test_attention_4d_causal_fp16", "test_attention_4d_causal_fp16_expanded"),
        "rounding: the reference rounds to 16 bits three times inside of the softmax, Tilewright once, after it",
    ),
}
"""Tests of which what fails is known to be no wrong result, and why."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one test."""

    name: str
    category: str
    operator: str
    outcome: str  # passed, failed, skipped, known
    reason: str = ""
    route: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Test:
    """One test function of ONNX's runner."""

    name: str
    category: str
    operator: str
    function: Callable[..., Any]

    @property
    def limit(self) -> float:
        return NODE_LIMIT_S if self.category == "Node" else MODEL_LIMIT_S


class Watch:
    """Notes the model that the running test prepared, which knows by which route it ran."""

    def __init__(self) -> None:
        self.prepared: Any = None

    def watching(self, backend: type) -> type:
        watch = self

        class Watched(backend):  # type: ignore[misc]
            @classmethod
            def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Any:
                try:
                    watch.prepared = super().prepare(model, device, **kwargs)
                except BackendIsNotSupposedToImplementIt as error:
                    raise unittest.SkipTest(f"not supposed to implement it: {error}") from error
                return watch.prepared

        return Watched


def run_one(test: Test, watch: Watch) -> Result:
    """Runs one test in this process."""
    watch.prepared = None
    start = time.perf_counter()
    outcome, reason = "passed", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            test.function(None)
    except unittest.SkipTest as skip:
        outcome, reason = "skipped", str(skip) or "no reason given"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome, reason = "failed", describe(error)
        if test.name in KNOWN and isinstance(error, AssertionError | TypeError):
            outcome, reason = "known", KNOWN[test.name]
    route = getattr(watch.prepared, "route", "")
    return Result(test.name, test.category, test.operator, outcome, reason, route, time.perf_counter() - start)


def describe(error: BaseException) -> str:
    """Class and message, and for errors that are not about values the innermost line of code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, AssertionError):
        difference = next((line for line in lines if "relative difference" in line), "")
        return " | ".join(["AssertionError: " + " ".join(lines[:1]), *filter(None, [difference])])[:300]
    text = f"{type(error).__name__}: {' | '.join(lines[:6])}"[:500]
    if error.__traceback__ is not None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text += f" [{Path(frame.filename).name}:{frame.lineno}]"
    return text


def _work(connection: Connection, tests: list[Test], watch: Watch) -> None:
    """A worker: receives a test's index, sends its result; ends with its parent."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    parent = os.getppid()
    while os.getppid() == parent:
        if connection.poll(5.0):
            connection.send(run_one(tests[connection.recv()], watch))


class _Worker:
    def __init__(self, tests: list[Test], watch: Watch) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, tests, watch), daemon=True)
        self.process.start()
        theirs.close()
        self.test: Test | None = None
        self.start = (0.0, 0.0)

    def give(self, index: int, test: Test) -> None:
        self.test, self.start = test, (self.processor_time(), time.monotonic())
        self.connection.send(index)

    def is_overdue(self) -> bool:
        assert self.test is not None
        used, waited = self.processor_time() - self.start[0], time.monotonic() - self.start[1]
        return used > self.test.limit or waited > self.test.limit * IDLE_FACTOR

    def processor_time(self) -> float:
        """Seconds that the worker has computed; 0 where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def failure(self, reason: str) -> Result:
        assert self.test is not None
        return Result(self.test.name, self.test.category, self.test.operator, "failed", reason)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run_all(tests: list[Test], watch: Watch, jobs: int, on_result: Callable[[Result], None]) -> list[Result]:
    """Runs the tests in `jobs` worker processes; a worker that dies or takes too long is replaced."""
    results: list[Result] = []
    pending = iter(range(len(tests)))
    workers = [_Worker(tests, watch) for _ in range(min(jobs, len(tests)))]
    for worker in workers:
        index = next(pending)
        worker.give(index, tests[index])
    while workers:
        ready = wait([w.connection for w in workers], timeout=1.0)
        for i, worker in reversed(list(enumerate(workers))):
            result = None
            broken = False
            if worker.connection in ready:
                try:
                    result = worker.connection.recv()
                except EOFError:
                    worker.process.join()
                    result, broken = worker.failure(f"crash: worker ended with code {worker.process.exitcode}"), True
            elif worker.is_overdue():
                assert worker.test is not None
                result, broken = worker.failure(f"hang: more than {worker.test.limit:.0f} s"), True
            if result is None:
                continue
            results.append(result)
            on_result(result)
            index = next(pending, None)
            if broken or index is None:
                worker.stop()
                del workers[i]
            if index is not None:
                if broken:
                    worker = _Worker(tests, watch)
                    workers.append(worker)
                worker.give(index, tests[index])
    return sorted(results, key=lambda r: (r.category, r.name))


# ---------------------------------------------------------------- command line


def parser_of(prog: str, text: str) -> argparse.ArgumentParser:
    """The options that all runs have; `text` says in its first line what the program does."""
    parser = argparse.ArgumentParser(prog=f"python -m {prog}", description=text.splitlines()[0])
    parser.add_argument("-k", default="*", metavar="GLOB", help="only tests whose name matches, e.g. 'test_conv*'")
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="tilewright")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8))
    parser.add_argument("--update", action="store_true", help="rewrite the list that the results are compared with")
    parser.add_argument("--in-process", action="store_true", help="run here, without workers (for a debugger)")
    return parser


def run_shown(tests: list[Test], watch: Watch, options: argparse.Namespace) -> list[Result]:
    """Runs the tests as the options say, with a bar on a terminal and a line now and then elsewhere."""
    if options.in_process:
        return [run_one(t, watch) for t in tests]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("onnx tests", total=len(tests))
        counts: Counter[str] = Counter()

        def on_result(result: Result) -> None:
            counts[result.outcome] += 1
            description = f"{counts['passed']} passed {counts['failed']} failed {counts['skipped']} skipped"
            progress.update(task, advance=1, description=description)
            if counts.total() % 250 == 0 and not sys.stderr.isatty():
                print(f"{counts.total()} of {len(tests)}: {description}", file=sys.stderr, flush=True)

        return run_all(tests, watch, options.jobs, on_result)
