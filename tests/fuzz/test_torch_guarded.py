"""Random programs as in `test_guarded.py`, for programs that come by way of PyTorch."""

from __future__ import annotations

import contextlib
import os
import random

import pytest

pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
import torch

from tests.fuzz import open_dynamo, torch_steps
from tests.fuzz.guarded import Fault, report

COUNT = int(os.environ.get("TILEWRIGHT_FUZZ", "4"))


@pytest.mark.parametrize("door", ["torch", "dynamo", "exported"])
def test_nothing_is_touched_outside(door: str) -> None:
    said = list(report(door, 0, COUNT))
    assert not [str(s) for s in said if isinstance(s, Fault)]
    assert sum(s.ran for s in said if not isinstance(s, Fault)) > 100


@pytest.mark.parametrize("name", torch_steps.STEPS)
def test_a_step_takes_a_matrix(name: str) -> None:
    x, ids = torch.randn(6, 4), torch.tensor([0, 2, 1, 0, 3])
    ranks = []
    for seed in range(8):
        with contextlib.suppress(IndexError, RuntimeError), torch.no_grad():  # not with all numbers
            ranks.append(torch_steps.STEPS[name](random.Random(seed))(x.clone(), ids.clone()).ndim)
    assert set(ranks) == {2}


def test_torchdynamo_sees_general_sizes_first() -> None:
    drawn = open_dynamo.pairs(random.Random(0))
    special = [1 in pair or 0 in pair for pair in drawn]
    assert special == sorted(special) and 0 < sum(special) <= 6
