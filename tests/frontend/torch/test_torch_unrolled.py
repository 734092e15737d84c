"""Loops in Python over the steps of a sequence: by every door refused, or left to PyTorch, once they make too many
operators; run by `make torch`."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tests.frontend.torch.torch_checks import nn, torch
from tilewright.frontend.torch import unrolled
from tilewright.support.errors import ModelError


class Steps(nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        h, ys = torch.zeros(x.shape[1]), []
        for t in range(x.shape[0]):
            h = torch.tanh(h * 0.9 + x[t])
            ys.append(h)
        return torch.stack(ys)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unrolled, "MAX_NODES", 64)
    monkeypatch.setattr(unrolled, "MAX_OF_A_LINE", 16)


LINE = r"test_torch_unrolled.py:\d+: h = torch.tanh\(h \* 0.9 \+ x\[t\]\).* a loop in Python"


def test_modules_and_programs() -> None:
    long, short = torch.zeros(40, 3), torch.randn(4, 3)
    create = torch.fx.Graph.create_node
    with pytest.raises(ModelError, match=LINE):
        tw.compile(Steps(), long, dynamic=None)
    with pytest.raises(ModelError, match=LINE):
        tw.differentiable(Steps(), (long,))
    assert torch.fx.Graph.create_node is create
    with pytest.raises(ModelError, match=LINE):
        tw.compile(torch.export.export(Steps(), (long,)))
    torch.testing.assert_close(tw.compile(Steps(), short, dynamic=None)(short), Steps()(short))


def test_torch_compile_leaves_it_to_pytorch() -> None:
    torch._dynamo.reset()
    x = torch.randn(40, 3)
    with pytest.warns(RuntimeWarning, match="it is left to PyTorch: .* a loop in Python"):
        result = torch.compile(Steps(), backend="tilewright")(x)
    torch.testing.assert_close(result, Steps()(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="a loop in Python"):
        torch.compile(Steps(), backend="tilewright", options={"full": True})(x)
