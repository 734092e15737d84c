"""Random programs as in `test_guarded.py`, for programs that come by way of JAX and StableHLO."""

from __future__ import annotations

import os

import pytest

from tests.fuzz import farm
from tests.fuzz.guarded import Fault, report

jax = pytest.importorskip("jax")
COUNT = int(os.environ.get("TILEWRIGHT_FUZZ", "4"))


@pytest.mark.parametrize("door", ["jax", "jax_values", "stablehlo"])
def test_nothing_is_touched_outside(door: str) -> None:
    said = list(report(door, 0, COUNT))
    assert not [str(s) for s in said if isinstance(s, Fault)]
    assert sum(s[0] for s in said if not isinstance(s, Fault)) > 100


def test_huge_sizes_in_modules() -> None:
    count = 200 if os.environ.get("TILEWRIGHT_FUZZ") else 12
    done = farm.run("huge modules", range(count), workers=1, limit=30.0)
    assert not done.failures, str(done)
    assert done.cases == count
