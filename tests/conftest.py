"""Fixtures that all tests share: a cache folder of their own, hypothesis profiles, golden files."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import compress
from math import ceil
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

# Set before any module of Tilewright reads its flags. One folder for all runs of a user: compiled objects are kept by
# the digest of the program, so a warm folder saves time and cannot change a result.
os.environ.setdefault("TILEWRIGHT_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"tilewright-tests-{os.getuid()}"))

# What else is installed changes nothing; `tests/plugins` starts processes with plug-ins of its own.
os.environ.setdefault("TILEWRIGHT_PLUGINS", "0")

# Whatever this user has tuned; `tests/records` has folders of its own.
os.environ.setdefault("TILEWRIGHT_RECORDS", "none")

# The workers of pytest take the CPUs already; tests of several processes ask for them.
os.environ.setdefault("TILEWRIGHT_PROCESSES", "1")

# What each pass makes is verified.
os.environ.setdefault("TILEWRIGHT_VERIFY", "2")

settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fuzz", deadline=None, max_examples=5000, suppress_health_check=list(HealthCheck))
settings.load_profile("fuzz" if os.environ.get("TILEWRIGHT_FUZZ") else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what came out")
    parser.addoption("--all-cases", action="store_true", help="all cases of tests that are marked costly")
    parser.addoption("--one-of", type=int, default=1, metavar="N", help="one of N of the cases of each test")
    parser.addoption("--share", default="0/1", metavar="K/N", help="the tests of share K of N, drawn by their names")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of other shares (`--share`), and cases of tests that have many (`sampled`)."""
    share, shares = map(int, config.getoption("--share").split("/"))
    if shares > 1:
        drawn = [crc32(item.nodeid.partition("[")[0].encode()) % shares == share for item in items]
        config.hook.pytest_deselected(items=[item for item, one in zip(items, drawn, strict=True) if not one])
        items[:] = compress(items, drawn)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    retained: set[pytest.Item] = set()
    for several in cases.values():
        mark = several[0].get_closest_marker("costly")
        one_of = config.getoption("--one-of") * (1 if mark is None or config.getoption("--all-cases") else mark.args[0])
        retained.update(sampled(several, ceil(len(several) / one_of)))
    if len(retained) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in retained])
        items[:] = [item for item in items if item in retained]


def sampled(cases: list[pytest.Item], count: int) -> list[pytest.Item]:
    """`count` of a test's cases. Each is the one with the most values of parameters that no case before it has, so that
    where cases are the product of several lists every value is there as soon as can be, and again when all have been.
    Which of equal ones comes first is drawn, in the same way in each run and for each worker."""
    if count >= len(cases):
        return cases
    left = sorted(cases, key=lambda item: item.nodeid)
    Random(left[0].nodeid.partition("[")[0]).shuffle(left)
    values = {item: set(enumerate(item.nodeid.partition("[")[2].split("-"))) for item in left}
    retained: list[pytest.Item] = []
    seen: set[tuple[int, str]] = set()
    while len(retained) < count:
        if all(values[item] <= seen for item in left):
            seen.clear()
        item = max(left, key=lambda item: len(values[item] - seen))
        left.remove(item)
        retained.append(item)
        seen |= values[item]
    return retained


def pytest_collection_finish() -> None:
    """Thousands of tests live as long as the process: the collector forgets them, which else walks over them again and
    again, for a fifth of all time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def memories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memories that a test describes are gone after it: they are names of the whole process."""
    from tilewright.ir import scopes

    monkeypatch.setattr(scopes, "_DESCRIBED", dict(scopes._DESCRIBED))


@pytest.fixture(autouse=True)
def registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that a test or a page registers by hand is in no key after it."""
    from tilewright.support import plugins

    monkeypatch.setattr(plugins, "_by_hand", Counter(plugins._by_hand))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`golden(text)` compares with `golden/<test file>/<test name>.txt` beside the test; `golden(text, "c")` names it
    `<test name>.c`. `pytest --update-golden` rewrites the files."""
    folder = request.path.parent / "golden" / request.path.stem

    def check(text: str, suffix: str = "txt") -> None:
        name = "".join(c if c.isalnum() or c in "-_." else "-" for c in request.node.name)
        path = folder / f"{name}.{suffix}"
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        if not path.exists():
            pytest.fail(f"no golden file {path}; run pytest --update-golden and look at what it writes")
        assert text == path.read_text(), f"differs from {path}; pytest --update-golden accepts the new text"

    return check
