"""Arguments of optimisers, stages and averages are checked when these are made, in the ranges of PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.train import SGD, Adam, AdamW, Average, Lion, RMSprop, Stage

WRONG: list[tuple[Any, dict[str, Any], str]] = [
    *(
        (make, {"lr": lr}, "lr")
        for make in (SGD, Adam, AdamW, RMSprop, Lion)
        for lr in ("x", -1, None, float("nan"), True)
    ),
    *((make, {"weight_decay": -0.1}, "weight_decay") for make in (SGD, Adam, AdamW, RMSprop, Lion)),
    *((make, {"betas": b}, "betas") for make in (Adam, AdamW, Lion) for b in ((0.9,), 0.9, (0.9, 1.0), (-0.1, 0.9))),
    *((make, {"eps": e}, "eps") for make in (Adam, AdamW, RMSprop) for e in (-1e-8, "x")),
    *((make, {"maximize": 1}, "maximize") for make in (SGD, Adam, AdamW, RMSprop)),
    (SGD, {"momentum": -0.5}, "momentum"),
    (SGD, {"dampening": "x"}, "dampening"),
    (SGD, {"nesterov": True}, "nesterov"),
    (SGD, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "nesterov"),
    (RMSprop, {"alpha": -0.1}, "alpha"),
    (RMSprop, {"momentum": -0.1}, "momentum"),
    (RMSprop, {"centered": "yes"}, "centered"),
    (Adam, {"amsgrad": "yes"}, "amsgrad"),
    (Average, {"target": "a.", "source": 3}, "source"),
    (Average, {"target": "a.", "source": "b.", "tau": 1.5}, "tau"),
    (Average, {"target": "a.", "source": "b.", "tau": -0.5}, "tau"),
    (Average, {"target": "a.", "source": "b.", "every": -1}, "every"),
    (Stage, {"name": "a", "loss": 3, "trained": ["*"]}, "loss"),
    (Stage, {"name": "a", "loss": abs, "trained": "*"}, "trained"),
    (Stage, {"name": "a", "loss": abs, "trained": ["*"], "every": 0}, "every"),
    (Stage, {"name": 1, "loss": abs, "trained": ["*"]}, "name"),
]


@pytest.mark.parametrize(("make", "arguments", "name"), WRONG)
def test_what_makes_no_sense(make: Any, arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(tw.errors.ModelError, match=name):
        make(**arguments)


def test_what_makes_sense() -> None:
    """Whole numbers, NumPy's numbers, and none at all."""
    for lr in (0, 1, np.float32(0.5), np.int64(1), np.float64(1e-3)):
        assert SGD(lr).lr == Adam(lr).lr == RMSprop(lr).lr == Lion(lr).lr == AdamW(lr).lr == lr
    assert SGD(0.1, 0.9, nesterov=True).nesterov
    assert Adam(betas=(0, 0.5)).betas == (0, 0.5)
