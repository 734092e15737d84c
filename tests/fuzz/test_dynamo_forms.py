"""Random cases of the forms of programs that `torch.compile` takes: what callers see is what eager PyTorch shows them.

`make fuzz` runs TILEWRIGHT_FUZZ_FORMS (300) of them.
"""

from __future__ import annotations

import os
import warnings

import pytest

pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
from tests.fuzz import dynamo_cases

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("TILEWRIGHT_FUZZ_FORMS", "300")) if LONG else 5


def test_random_forms() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = {seed: dynamo_cases.check(seed) for seed in range(FIRST, FIRST + COUNT)}
    faults = [f"seed {seed}: {dynamo_cases.drawn(seed)}: {f}" for seed, f in said.items() if f.startswith("wrong")]
    assert not faults, "\n".join(faults)
    assert sum(f == "right" for f in said.values()) > 0.8 * COUNT
