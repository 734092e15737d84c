"""Hostile files and texts: an error that names the thing, never another exception, a crash, a hang or much memory.

`make test` runs a few hundred cases of each kind. `make fuzz` runs TILEWRIGHT_FUZZ_CASES (10,000) from
TILEWRIGHT_FUZZ_SEED on; a failure names its seed, and `python -m tests.fuzz.worker KIND SEED` runs it alone.
"""

from __future__ import annotations

import os

import pytest

from tests.fuzz import farm

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))


def _count(short: int) -> int:
    return int(os.environ.get("TILEWRIGHT_FUZZ_CASES", "10000")) if LONG else short


@pytest.mark.parametrize(("kind", "short"), [("onnx", 120), ("parts", 40), ("text", 200), ("artifact", 100)])
def test_damage(kind: str, short: int) -> None:
    count = _count(short)
    report = farm.run(kind, range(FIRST, FIRST + count), workers=2 if LONG else 1)
    print(f"\n{kind}: {report}")
    assert not report.failures, str(report)
    assert report.cases == count
    refused = sum(n for name, n in report.outcomes.items() if "refused" in name)
    assert 0.2 * count < refused < count, str(report)


def test_huge_sizes() -> None:
    """`python -m tests.fuzz.farm huge 0 10000` runs ten thousand."""
    count = _count(40)
    report = farm.run("huge", range(FIRST, FIRST + count), workers=2 if LONG else 1, limit=30.0)
    print(f"\nhuge: {report}")
    assert not report.failures, str(report)
    refused = sum(n for name, n in report.outcomes.items() if "refused" in name)
    assert 0.4 * count < refused < count, str(report)


def test_crashes_hangs_and_exceptions_are_seen() -> None:
    """The fuzzer itself: what goes wrong in a worker is a failure with its seed, and the others go on."""
    report = farm.run("self", range(6), limit=5.0)
    assert report.outcomes == {"fine": 2}
    assert "SIGSEGV" in report.failures[1]
    assert "ZeroDivisionError" in report.failures[2]
    assert "MemoryError" in report.failures[3]
    assert "no answer" in report.failures[4]
