"""Single operators of PyTorch in narrow types on awkward numbers; `make fuzz` runs TILEWRIGHT_FUZZ_NARROW (2,000)."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")

from tests.fuzz import narrow

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("TILEWRIGHT_FUZZ_NARROW", "2000")) if LONG else 24


def test_random_operators() -> None:
    result = {seed: narrow.check(narrow.drawn(seed)) for seed in range(FIRST, FIRST + COUNT)}
    faults = {s: f"{narrow.drawn(s).label}: {f}" for s, f in result.items() if f.startswith(("wrong", "crashed"))}
    assert not faults, "\n".join(f"seed {seed}: {text}" for seed, text in faults.items())
    assert sum(f == "right" for f in result.values()) > 0.7 * COUNT


def test_what_is_wrong_is_seen() -> None:
    """The generator itself: a result that is off by more than its rounding is told."""
    case = narrow.drawn(0)
    wanted = narrow.expected(case)
    assert not narrow.differs([w.eager for w in wanted], wanted)
    assert narrow.differs([w.eager * 1.1 + 1 for w in wanted], wanted)
