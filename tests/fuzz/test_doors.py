"""Awkward arguments at the doors: errors of ours, or right results; `make fuzz` runs TILEWRIGHT_FUZZ_DOORS (3,000)."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")

from tests.fuzz import doors

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("TILEWRIGHT_FUZZ_DOORS", "3000")) if LONG else 24

REGRESSIONS = (3, 20, 22, 24, 54, 109, 114, 115, 220, 321, 475, 576, 843, 1744, 1984, 2810, 2915, 2983, 3633)
"""Seeds that once gave another exception, or a wrong result."""


@pytest.mark.filterwarnings("ignore")
def test_awkward_arguments() -> None:
    seeds = (*REGRESSIONS, *range(FIRST, FIRST + COUNT))
    result = {seed: doors.check(seed) for seed in seeds}
    faults = [f"seed {seed}: {text}" for seed, text in result.items() if text.startswith(("wrong", "crashed"))]
    assert not faults, "\n".join(faults)
    kinds = [text.split(":")[0] for text in result.values()]
    assert kinds.count("refused") > 0.3 * len(seeds) and kinds.count("right") > 0.1 * len(seeds)
