"""The mutation tester itself: which changes it makes, and that what is explained still exists."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.mutate import explained, trial
from tests.mutate.mutants import checks, mutants
from tests.mutate.rooms import ROOT, TESTS, files_testing, sources
from tests.mutate.server import Request, code_at

SOURCE = '''
LIMIT = 3

def first(a: int = 1, *, b: str = f"{1 + 2}") -> "1 < 2":
    """1 + 1"""
    assert a < 2, "1"
    log.info("%d", a + 1)
    if a < LIMIT and not b:
        raise ValueError(f"{a + 1}")
    return f"{a + 1}é", [x for x in b if x != "é"]

class C:
    def __repr__(self):
        return 1 + 1

    def method(self):
        while True:
            self.n -= 2
            break
        return False
'''

WANTED = [
    ("first", "a condition forced", "if False:"),
    ("first", "a condition forced", "if True:"),
    ("first", "and for or", "if a < LIMIT or not b:"),
    ("first", "a comparison turned", "if a <= LIMIT and (not b):"),
    ("first", "a lost not", "if a < LIMIT and b:"),
    ("first", "a lost value", "return None"),
    ("first", "a constant off by one", "return (f'{a + 2}é', [x for x in b if x != 'é'])"),
    ("first", "plus for minus", "return (f'{a - 1}é', [x for x in b if x != 'é'])"),
    ("first", "a condition forced", "return (f'{a + 1}é', [x for x in b if False])"),
    ("first", "a condition forced", "return (f'{a + 1}é', [x for x in b if True])"),
    ("first", "a comparison turned", "return (f'{a + 1}é', [x for x in b if x == 'é'])"),
    ("C.method", "plus for minus", "self.n += 2"),
    ("C.method", "a constant off by one", "self.n -= 3"),
    ("C.method", "a turned answer", "return True"),
    ("C.method", "break for continue", "continue"),
]


def test_checks_are_selected_out() -> None:
    lines = ["def f(a):", "    if a:", "        raise refuse(a, 'no')", "    raise ValueError(a)"]
    source = "\n".join(lines)
    (check,) = checks("p.py", source)
    assert check.function == "f" and check.apply(source).splitlines()[2] == "        pass"


def test_what_is_changed() -> None:
    """Bodies only: no default, annotation, docstring, assertion, message, log or repr."""
    assert sorted((m.function, m.kind, m.after) for m in mutants("x.py", SOURCE)) == sorted(WANTED)


def test_a_mutant_is_the_file_with_one_statement_changed() -> None:
    before = SOURCE.splitlines()
    for m in mutants("x.py", SOURCE):
        after = m.apply(SOURCE).splitlines()
        ast.parse(m.apply(SOURCE))
        assert [k + 1 for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [m.line]


@pytest.mark.parametrize("room", TESTS)
def test_rooms_have_sources_and_tests(room: str) -> None:
    assert sources(room) and all((ROOT / f).exists() for f in files_testing(room)) and files_testing(room)


def test_explained_mutants_exist() -> None:
    """An entry whose statement was changed is to be checked again, or goes."""
    entries = explained.read()
    assert len({e.key for e in entries}) == len(entries)
    keys = {path: {m.key for m in mutants(path, (ROOT / path).read_text())} for path in {e.path for e in entries}}
    for e in entries:
        assert e.key in keys[e.path], f"no such mutant: {e}"
        assert e.kind in explained.KINDS and len(e.reason) > 20, e


def test_the_function_enclosing_a_line() -> None:
    module = compile(SOURCE, "x.py", "exec")
    lines = {m.line: m.function for m in mutants("x.py", SOURCE)}
    assert {line: code_at(module, line).co_qualname for line in lines} == lines


SERVED = """
import functools

def early(x):
    return x + 1

@functools.cache
def late(x):
    if x > 2:
        return 2
    return x

LIMIT = early(1)
"""
TESTED = """
import served
def test_small(): assert served.late(0) == 0
def test_large(): assert served.late(3) == 2
"""


def test_served_mutants(tmp_path: Path) -> None:
    """A fork has the mutant in functions that are imported already, unless they ran before it."""
    (tmp_path / "served.py").write_text(SERVED)
    (tmp_path / "test_served.py").write_text(TESTED)
    limits = {f"test_served.py::test_{name}": 20.0 for name in ("large", "small")}
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "pytest", "-p", "tests.mutate.plugin", "-p", "no:cacheprovider"]
    path = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "src")])
    environment = os.environ | {"PYTHONPATH": path, "TILEWRIGHT_MUTATE_SERVE": str(theirs.fileno())}
    with theirs, Connection(ours.detach()) as link:
        process = subprocess.Popen(
            [*command, "test_served.py"],
            cwd=tmp_path,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdout=subprocess.DEVNULL,
        )
        assert link.recv() == 2, "what it has collected"
        answers = {}
        outside = frozenset({4, 5, 7, 8, 13})
        for m in mutants("served.py", SERVED):
            link.send(Request("served.py", m.apply(SERVED), m.line, outside, limits, 30.0))
            answers[m.line, m.after] = link.recv()
        link.send(None)
        assert process.wait(30) == 0
    large, small = (f"FAILED {name}\n" for name in limits)
    assert answers == {
        (5, "return x - 1"): None,
        (5, "return x + 2"): None,
        (5, "return None"): None,
        (9, "if x >= 2:"): (0, ""),
        (9, "if x > 3:"): (1, large),
        (9, "if False:"): (1, large),
        (9, "if True:"): (1, small),
        (10, "return 3"): (1, large),
        (10, "return None"): (1, large),
        (11, "return None"): (1, small),
    }


def test_work_without_end_is_ended() -> None:
    """By the processor's time: a process that others keep waiting has as much of it as one that is alone."""
    script = (
        "from tests.mutate import server\nserver.WALL_SECONDS = 1e3\nwith server.limited(0.2, 2):\n    while True: pass"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=600).returncode == -signal.SIGPROF


def test_a_mutant_is_in_none_of_those_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the process that collects the tests either, which the first mutant comes close after."""
    monkeypatch.setattr(trial, "COPIED", ("tests/mutate",))
    tree = trial.Tree(tmp_path)
    (tree.root / "served.py").write_text(SERVED)
    (tree.root / "test_served.py").write_text(TESTED)
    result = {m.after: m for m in mutants("served.py", SERVED) if m.function == "late"}
    limits = {"test_served.py::test_small": 1.0, "test_served.py::test_large": 1.0}
    try:
        tree.serve(["test_served.py"])
        verdicts = [tree.try_mutant(result[after], limits, frozenset()) for after in ("if True:", "if x >= 2:")]
    finally:
        tree.close()
    assert [v.verdict for v in verdicts] == ["killed", "survived"]
    with pytest.raises(SystemExit, match="could not be collected"):
        tree.serve(["test_missing.py"])
    tree.close()
