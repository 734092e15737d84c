"""Random small modules of PyTorch against eager; `make fuzz` runs TILEWRIGHT_FUZZ_NETWORKS (400) of them."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")

from tests.fuzz import networks

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("TILEWRIGHT_FUZZ_NETWORKS", "400")) if LONG else 4


def test_random_modules() -> None:
    result = {}
    for seed in range(FIRST, FIRST + COUNT):
        result[seed] = networks.quiet_check(seed, networks.WAYS[seed % len(networks.WAYS)])
    faults = {s: f"{networks.drawn(s)[0]}: {f}" for s, f in result.items() if f.startswith(("wrong", "crashed"))}
    assert not faults, "\n".join(f"seed {seed}: {text}" for seed, text in faults.items())
    assert sum(f == "right" for f in result.values()) > 0.7 * COUNT
