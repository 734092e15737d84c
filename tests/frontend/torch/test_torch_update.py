"""A compiled module takes its own `state_dict()`, whatever is in it; run by `make torch`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
nn = torch.nn

import tilewright as tw  # noqa: E402


class Everything(nn.Module):
    """Tied and unused weights, buffers of all kinds, scalars, views, and constants made in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.second = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.parts = nn.ParameterList([torch.ones(4), torch.zeros(4)])
        self.norm = nn.BatchNorm1d(4)
        self.unused = nn.Parameter(torch.ones(2, 2))
        self.register_buffer("places", torch.arange(4))
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("table", torch.eye(4, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("empty", torch.zeros(0, 4))
        self.register_buffer("hidden", torch.full((4,), 0.5), persistent=False)
        self.register_buffer("view", self.table[:2])

    def forward(self, x: Any) -> Any:
        y = self.norm(self.second(self.embedding(x)))
        y = y * self.scale + self.parts[0] - self.parts[1] + self.hidden
        y = torch.where(self.mask, y, y[:, self.places] * torch.tensor([1.0, 2.0, 3.0, 4.0]))
        y = torch.cat([y, self.empty]) + self.count
        y = (y.double() @ self.table + self.view.sum(0)).float()
        return self.head(y)


def everything() -> Any:
    torch.manual_seed(0)
    return Everything().eval()


def changed(module: Any) -> None:
    """Other numbers in every floating-point weight and buffer."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point() and tensor.numel() and tensor is not module.hidden:
                tensor.copy_(torch.rand_like(tensor) + 0.5)
        module.count.fill_(5)
        module.mask.logical_not_()


@pytest.mark.parametrize("exported", [False, True], ids=["module", "program"])
def test_own_state_is_selected_and_counts(exported: bool) -> None:
    module = everything()
    x = torch.tensor([1, 6, 0])
    source = torch.export.export(module, (x,)) if exported else module
    model = tw.compile(source) if exported else tw.compile(module, x)
    for k in range(2):
        if k:
            changed(module)
            model.update(module.state_dict(), version=k)
        with torch.no_grad():
            expected = module(x)
        np.testing.assert_allclose(np.asarray(model(x)), expected.numpy(), rtol=2e-5, atol=2e-5)


def test_constants_are_not_asked_for() -> None:
    module = everything()
    model = tw.compile(module, torch.tensor([1, 6, 0]))
    assert {spec.name for spec in model.params} <= set(module.state_dict())
    model.update({name: value.numpy() for name, value in module.state_dict().items()})
