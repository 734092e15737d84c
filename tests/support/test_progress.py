"""Progress: what work far inside tells the bar around it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import tensor
from tilewright import ops
from tilewright.ir.graph import GraphBuilder
from tilewright.support.progress import expect, progress, showing, tell


@dataclass
class Heard:
    expected: int = 0
    steps: list[str] = field(default_factory=list)

    def expect(self, steps: int) -> None:
        self.expected += steps

    def step(self, text: str) -> None:
        self.steps.append(text)


def test_a_bar_hears_of_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar hears of a call's kernels and of those that pack weights."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    b = GraphBuilder("g")
    y = ops.emit1(b, "matmul", b.input("x", tensor(4, 33)), b.param("w", tensor(33, 17)))
    graph = b.finish((ops.emit1(b, "softmax", y, axis=1),))
    heard = Heard()
    with showing(heard):
        model = tw.compile((graph, {"w": np.ones((33, 17), np.float32)}), name="heard")
    assert heard.expected == len(heard.steps) >= len(model.manifest.run_steps) > 1


def test_no_one_listens() -> None:
    heard = Heard()
    with showing(heard):
        pass
    expect(3)
    tell("a kernel")
    assert heard == Heard()
    with progress("silent", enabled=False) as step:
        step("one")
        tell("two")
