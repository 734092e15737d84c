"""Random programs as in `test_guarded.py`, for programs that come by way of PyTorch."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.guarded import Fault, report

torch = pytest.importorskip("torch")
COUNT = int(os.environ.get("TILEWRIGHT_FUZZ", "4"))


@pytest.mark.parametrize("door", ["torch", "dynamo", "exported"])
def test_nothing_is_touched_outside(door: str) -> None:
    said = list(report(door, 0, COUNT))
    assert not [str(s) for s in said if isinstance(s, Fault)]
    assert sum(s[0] for s in said if not isinstance(s, Fault)) > 100
