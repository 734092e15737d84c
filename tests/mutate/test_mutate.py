"""The mutation tester itself: which changes it makes, and that what is explained still exists."""

from __future__ import annotations

import ast

import pytest

from tests.mutate import explained
from tests.mutate.mutants import checks, mutants
from tests.mutate.rooms import ROOT, TESTS, files_testing, sources

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


def test_checks_are_taken_out() -> None:
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
    """An entry whose statement was changed is to be judged again, or goes."""
    entries = explained.read()
    assert len({e.key for e in entries}) == len(entries)
    for e in entries:
        source = (ROOT / e.path).read_text()
        assert e.key in {m.key for m in mutants(e.path, source)}, f"no such mutant: {e}"
        assert e.kind in explained.KINDS and len(e.reason) > 20, e
