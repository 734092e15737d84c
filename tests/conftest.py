"""Fixtures that all tests share: a cache folder of their own, hypothesis profiles, golden files."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from itertools import compress
from math import ceil
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from tests.sampling import of_the_day, sampled

# Set before any module of Tilewright reads its flags. One folder for all runs of a user: compiled objects are kept by
# the digest of the program, so a warm folder saves time and cannot change a result.
os.environ.setdefault("TILEWRIGHT_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"tilewright-tests-{os.getuid()}"))

# Some four runs of the suite: every 512th entry that a process writes makes it walk over all of them.
os.environ.setdefault("TILEWRIGHT_CACHE_SIZE", "512M")

# What else is installed changes nothing; `tests/plugins` starts processes with plug-ins of its own.
os.environ.setdefault("TILEWRIGHT_PLUGINS", "0")

# Whatever this user has tuned; `tests/records` has folders of its own.
os.environ.setdefault("TILEWRIGHT_RECORDS", "none")

# The workers of pytest take the CPUs already; tests of several processes ask for them.
os.environ.setdefault("TILEWRIGHT_PROCESSES", "1")

# What each pass makes is verified.
os.environ.setdefault("TILEWRIGHT_VERIFY", "2")

# The date whose cases run of tests that are marked `daily`, the same one for all workers at midnight too.
os.environ.setdefault("TILEWRIGHT_TEST_DAY", datetime.now(UTC).date().isoformat())

settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fuzz", deadline=None, max_examples=5000, suppress_health_check=list(HealthCheck))
FUZZ = bool(os.environ.get("TILEWRIGHT_FUZZ"))
"""Whether this is a long run (`make fuzz`)."""
settings.load_profile("fuzz" if FUZZ else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what came out")
    parser.addoption("--all-cases", action="store_true", help="all cases of tests that are marked costly or daily")
    parser.addoption("--one-of", type=int, default=1, metavar="N", help="one of N of the cases of each test")
    parser.addoption("--share", default="0/1", metavar="K/N", help="the tests of share K of N, drawn by their names")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of other shares (`--share`), and cases of tests that have many (`of_the_day`, `sampled`)."""
    share, shares = map(int, config.getoption("--share").split("/"))
    if shares > 1:
        drawn = [crc32(item.nodeid.partition("[")[0].encode()) % shares == share for item in items]
        config.hook.pytest_deselected(items=[item for item, one in zip(items, drawn, strict=True) if not one])
        items[:] = compress(items, drawn)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    retained: set[str] = set()
    day = date.fromisoformat(os.environ["TILEWRIGHT_TEST_DAY"]).toordinal()
    for several in cases.values():
        names = [item.nodeid for item in several]
        if not config.getoption("--all-cases"):
            costly, daily = (several[0].get_closest_marker(mark) for mark in ("costly", "daily"))
            names = names if costly is None else sampled(names, ceil(len(names) / costly.args[0]))
            names = names if daily is None or FUZZ else of_the_day(names, daily.args[0], day)
        retained.update(sampled(names, ceil(len(names) / config.getoption("--one-of"))))
    if len(retained) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in retained])
        items[:] = [item for item in items if item.nodeid in retained]


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
