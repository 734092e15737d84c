"""A pytest plugin with three uses, told by environment variables: it records which test runs which line, it runs given
tests in a given order with a time limit on each, or it serves mutants (`server.py`).

    TILEWRIGHT_MUTATE_RECORD    the file to write: {"tests": [[id, seconds], ...], "lines": {file: {line: [test, ...]}},
                                "outside": {file: [line, ...]}}, the last being run by importing and collecting
    TILEWRIGHT_MUTATE_TESTS     the file to read: [[id, limit in seconds], ...]
    TILEWRIGHT_MUTATE_SERVE     the descriptor of the socket that requests come by
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutate.server import Server, limit_memory, limited, stop_at_failures

RECORD = os.environ.get("TILEWRIGHT_MUTATE_RECORD")
TESTS = os.environ.get("TILEWRIGHT_MUTATE_TESTS")
SERVE = os.environ.get("TILEWRIGHT_MUTATE_SERVE")


def worked() -> float:
    """Seconds of the processor so far, those of processes that have ended included: a busy machine changes little."""
    return sum(os.times()[:4])


class Recorder:
    """Lines by test, with coverage's C tracer; tests that fail or are skipped are left out."""

    def __init__(self, path: Path) -> None:
        from coverage import Coverage

        self.path = path
        self.seconds: dict[str, float] = {}
        self.passed: set[str] = set()
        self.coverage = Coverage(data_file=None, source=[str(Path.cwd() / "src" / "tilewright")], config_file=False)
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        start = worked()
        yield
        self.seconds[item.nodeid] = worked() - start
        self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        tests = [(name, round(s, 3)) for name, s in self.seconds.items() if name in self.passed]
        index = {name: k for k, (name, _) in enumerate(tests)}
        data = self.coverage.get_data()
        lines, outside = {}, {}
        for file in sorted(data.measured_files()):
            by_line = data.contexts_by_lineno(file).items()
            result = {line: sorted(index[c] for c in contexts if c in index) for line, contexts in by_line}
            lines[os.path.relpath(file)] = {line: tests for line, tests in result.items() if tests}
            outside[os.path.relpath(file)] = sorted(line for line, contexts in by_line if "" in contexts)
        self.path.write_text(json.dumps({"tests": tests, "lines": lines, "outside": outside}))


class Chosen:
    """The given tests, in the given order, each with its own limit: the process ends where one takes longer."""

    def __init__(self, path: Path) -> None:
        self.limits: dict[str, float] = dict(json.loads(path.read_text()))
        stop_at_failures()
        limit_memory()
        # pytest takes the standard error of tests: the watchdog needs the one of the process.
        self.stderr = os.fdopen(os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2), "w")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {name: k for k, name in enumerate(self.limits)}
        items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with limited(self.limits[item.nodeid], self.stderr):
            yield


def pytest_configure(config: pytest.Config) -> None:
    if RECORD:
        config.pluginmanager.register(Recorder(Path(RECORD)))
    if TESTS:
        config.pluginmanager.register(Chosen(Path(TESTS)))
    if SERVE:
        config.pluginmanager.register(Server(int(SERVE)))
