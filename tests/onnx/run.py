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
import os
import re
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import onnx
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner
from rich.console import Console
from rich.table import Table

from tests.onnx.backend import BACKENDS
from tests.onnx.running import Result, Test, Watch, parser_of, run_shown
from tilewright.parts import hosts

EXPECTED = Path(__file__).with_name("expected_passes.txt")
FLOOR = 1980
# ---------------------------------------------------------------- collecting


def collect(backend: type) -> tuple[list[Test], Watch]:
    """All CPU tests of ONNX's runner in a fixed order; the long real models come first."""
    watch = Watch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = Runner(watch.watching(backend))
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
    parser = parser_of("tests.onnx.run", __doc__)
    parser.add_argument("--list", type=Path, metavar="FILE", help="only tests named in FILE, one a line")
    parser.add_argument("--category", help="only Node, Real, Simple, PyTorchConverted or PyTorchOperator")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result to FILE")
    parser.add_argument("--verbose", action="store_true", help="print every test that did not pass")
    parser.add_argument("--reference", action="store_true", help="as if ONNX Runtime were not installed")
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
    results = run_shown(tests, watch, options)
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
