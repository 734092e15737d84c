"""Runs ONNX's own backend tests on Tilewright: `python -m tests.onnx.run` (or `make onnx`).

The tests are those of `onnx.backend.test` with their own checks: number of outputs, exact shape, exact dtype,
tolerance. Each runs in a worker process under a time limit, so that a crash or a hang fails one test.

Outcomes are `passed`, `failed`, `skipped` and `known` (a failure that `KNOWN` lists with its reason). Every skip has a
reason, and a test that a backend declares itself "not supposed to implement" is a skip too (the stock runner would
count it as a pass). The run fails if fewer than `FLOOR` tests pass or if a test listed in `expected_passes.txt` does
not pass; `--update` rewrites that list.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import traceback
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import onnx
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt, Runner
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.onnx.backend import BACKENDS
from tilewright.parts import hosts

EXPECTED = Path(__file__).with_name("expected_passes.txt")
FLOOR = 1980
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
    """What became of one test."""

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


class _Watch:
    """Notes the model that the running test prepared, which knows by which route it ran."""

    def __init__(self) -> None:
        self.prepared: Any = None

    def around(self, backend: type) -> type:
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


# ---------------------------------------------------------------- collecting


def collect(backend: type) -> tuple[list[Test], _Watch]:
    """All CPU tests of ONNX's runner in a fixed order; the long real models come first."""
    watch = _Watch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = Runner(watch.around(backend))
    operators = _operators()
    tests = []
    for category, items in runner._test_items.items():
        for name, item in items.items():
            if name.endswith("_cpu"):
                short = name.removesuffix("_cpu")
                kind = category.removesuffix("Model")
                tests.append(Test(short, kind, operators.get(short, f"({kind} models)"), item.func))
    return sorted(tests, key=lambda t: (t.category != "Real", t.category, t.name)), watch


def _operators() -> dict[str, str]:
    """Node test -> the operator that it tests; tests of an operator's function body count for that operator."""
    operators: dict[str, str] = {}
    for case in load_model_tests(kind="node"):
        base = re.sub(r"_expanded(_ver\d+)?$", "", case.name)
        if base in operators:
            operators[case.name] = operators[base]
        else:
            operators[case.name] = case.model.graph.node[0].op_type
    return operators


# ---------------------------------------------------------------- running


def run_one(test: Test, watch: _Watch) -> Result:
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


def _work(connection: Connection, tests: list[Test], watch: _Watch) -> None:
    """A worker: receives a test's index, sends its result; ends with its parent."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    parent = os.getppid()
    while os.getppid() == parent:
        if connection.poll(5.0):
            connection.send(run_one(tests[connection.recv()], watch))


class _Worker:
    def __init__(self, tests: list[Test], watch: _Watch) -> None:
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

    def is_late(self) -> bool:
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


def run_all(tests: list[Test], watch: _Watch, jobs: int, on_result: Callable[[Result], None]) -> list[Result]:
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
            elif worker.is_late():
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


# ---------------------------------------------------------------- reporting


def report(results: list[Result], console: Console, verbose: bool) -> None:
    """Operators with what failed or was skipped, then the reasons, then the totals."""
    by_operator: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_operator[result.operator].append(result)
    table = Table(
        "operator", "passed", "failed", "skipped", "known", "reasons", title="Tests by operator", title_justify="left"
    )
    complete = []
    for operator, group in sorted(by_operator.items()):
        counts = Counter(r.outcome for r in group)
        if counts["passed"] == len(group):
            complete.append(f"{operator} {len(group)}")
            continue
        reasons = Counter(r.reason[:90] for r in group if r.outcome in ("skipped", "known"))
        failures = [r for r in group if r.outcome == "failed"]
        text = [f"{n} x {reason}" for reason, n in reasons.most_common(4)]
        if failures:
            text.append(f"[red]failed: {', '.join(r.name.removeprefix('test_') for r in failures[:3])}[/red]")
        numbers = (str(counts[o]) for o in ("passed", "failed", "skipped", "known"))
        table.add_row(operator, *numbers, "\n".join(text))
    console.print(table)
    console.print(f"All tests pass for: {', '.join(complete)}\n", highlight=False)
    _print_reasons(results, "skipped", console, limit=1000 if verbose else 40)
    _print_reasons(results, "failed", console, limit=1000 if verbose else 40)
    _print_reasons(results, "known", console, limit=1000)
    if verbose:
        for r in results:
            if r.outcome != "passed":
                console.print(f"{r.outcome:8} {r.name}: {r.reason}", markup=False, highlight=False, soft_wrap=True)


def _print_reasons(results: Iterable[Result], outcome: str, console: Console, limit: int) -> None:
    reasons: dict[str, list[str]] = defaultdict(list)
    for r in results:
        if r.outcome == outcome:
            reasons[re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "N", r.reason)[:160]].append(r.name)
    if not reasons:
        return
    console.print(f"[bold]{outcome.capitalize()}, by reason[/bold]")
    ordered = sorted(reasons.items(), key=lambda item: -len(item[1]))
    for reason, names in ordered[:limit]:
        console.print(f"{len(names):5}  {reason}  (e.g. {names[0]})", markup=False, highlight=False, soft_wrap=True)
    if len(ordered) > limit:
        console.print(f"       and {len(ordered) - limit} more reasons (--verbose shows all)")
    console.print()


def read_expected() -> dict[str, bool]:
    """The tests that must pass, and whether all of each must be compiled."""
    if not EXPECTED.exists():
        return {}
    lines = [line.split() for line in EXPECTED.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return {words[0]: "fallback" not in words[1:] for words in lines}


def write_expected(results: list[Result]) -> None:
    passed = sorted(
        f"{r.category}/{r.name}{' fallback' if r.route == 'fallback' else ''}" for r in results if r.outcome == "passed"
    )
    head = (
        f"# ONNX {onnx.__version__} backend tests that pass, some with a fallback; "
        "`python -m tests.onnx.run --update` rewrites this file.\n"
    )
    EXPECTED.write_text(head + "".join(f"{name}\n" for name in passed))


# ---------------------------------------------------------------- command line


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx.run", description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="*", metavar="GLOB", help="only tests whose name matches, e.g. 'test_conv*'")
    parser.add_argument("--list", type=Path, metavar="FILE", help="only tests named in FILE, one a line")
    parser.add_argument("--category", help="only Node, Real, Simple, PyTorchConverted or PyTorchOperator")
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="tilewright")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8))
    parser.add_argument("--update", action="store_true", help="rewrite the list of expected passes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result to FILE")
    parser.add_argument("--verbose", action="store_true", help="print every test that did not pass")
    parser.add_argument("--reference", action="store_true", help="as if ONNX Runtime were not installed")
    parser.add_argument("--in-process", action="store_true", help="run here, without workers (for a debugger)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    # ONNX's runner writes the inputs of its real models there.
    home = tempfile.TemporaryDirectory(prefix="onnx-home-")
    os.environ["ONNX_HOME"] = home.name
    if options.reference:
        hosts.has_onnxruntime = lambda: False
    tests, watch = collect(BACKENDS[options.backend])
    everything = options.k == "*" and options.category is None and options.list is None
    if options.update and not everything:
        raise SystemExit("--update needs all tests: leave out -k, --list and --category")
    tests = [
        t
        for t in tests
        if fnmatch.fnmatch(t.name, options.k) and (options.category is None or t.category == options.category)
    ]
    if options.list is not None:
        named = set(options.list.read_text().split())
        tests = [t for t in tests if t.name in named]
    start = time.perf_counter()
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

        if options.in_process:
            results = [run_one(t, watch) for t in tests]
        else:
            results = run_all(tests, watch, options.jobs, on_result)
    home.cleanup()
    report(results, console, options.verbose)
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=1))
    comparable = options.backend == "tilewright"
    status = conclude(results, comparable, everything and comparable, options.update, console)
    console.print(f"{time.perf_counter() - start:.0f} s, {options.jobs} workers, backend {options.backend}")
    return status


def conclude(results: list[Result], comparable: bool, everything: bool, update: bool, console: Console) -> int:
    """Totals, the expected passes among the tests that ran, and the floor if all ran; returns the exit status."""
    for category in sorted({r.category for r in results}):
        group = [r for r in results if r.category == category]
        counts = Counter(r.outcome for r in group)
        console.print(
            f"{category}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
            f" of {len(group)}",
            highlight=False,
        )
    passed = {f"{r.category}/{r.name}" for r in results if r.outcome == "passed"}
    routes = Counter(r.route for r in results if r.outcome == "passed")
    outcomes = Counter(r.outcome for r in results)
    console.print(
        f"Total: {len(passed)} of {len(results)} passed ({len(passed) / max(len(results), 1):.1%}): {routes['native']} "
        f"native, {routes['values']} native for the values of a call, {routes['fallback']} with fallback; "
        f"{outcomes['skipped']} refused, {outcomes['known']} not comparable, {outcomes['failed']} wrong",
        highlight=False,
    )
    ran = {f"{r.category}/{r.name}" for r in results}
    if update:
        write_expected(results)
        console.print(f"wrote {EXPECTED.name}")
        return 0
    status = 0
    expected = {name: native for name, native in read_expected().items() if name in ran} if comparable else {}
    lost = sorted(expected.keys() - passed)
    if lost:
        console.print(f"[red]{len(lost)} tests passed before and do not now:[/red] {', '.join(lost[:20])}")
        status = 1
    native = {f"{r.category}/{r.name}" for r in results if r.outcome == "passed" and r.route != "fallback"}
    fallen = sorted(name for name, must in expected.items() if must and name in passed - native)
    if fallen:
        console.print(f"[red]{len(fallen)} tests were compiled whole and are not now:[/red] {', '.join(fallen[:20])}")
        status = 1
    gained = len(passed - expected.keys()) if comparable else 0
    if gained:
        console.print(f"{gained} tests pass that are not in {EXPECTED.name}; record them with --update")
    if everything and len(passed) < FLOOR:
        console.print(f"[red]fewer than {FLOOR} tests pass[/red]")
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
