"""Modules whose ways forward and back are compiled, against autograd."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
from torch import nn  # noqa: E402


class Several(nn.Module):
    """Tied weights, a frozen one, integers among the inputs, a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.layer = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight
        self.layer.bias.requires_grad_(False)

    def forward(self, places: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.norm(torch.relu(self.layer(self.table(places) + x)))
        return {"logits": self.head(h), "best": h.argmax(-1), "h": h}


def compare(module: nn.Module, inputs: tuple[torch.Tensor, ...], fast: nn.Module) -> None:
    """Outputs and gradients of both, by parameters and inputs."""
    results = []
    for function in (module, fast):
        module.zero_grad()
        arguments = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
        torch.manual_seed(0)
        outputs = [y for y in torch.utils._pytree.tree_leaves(function(*arguments)) if y.is_floating_point()]
        sum((y * torch.randn_like(y)).sum() for y in outputs).backward()
        results.append([*outputs, *(x.grad for x in arguments), *(p.grad for p in module.parameters())])
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_are_autograds() -> None:
    torch.manual_seed(1)
    module = Several()
    inputs = (torch.randint(0, 11, (4, 3)), torch.randn(4, 3, 6))
    fast = tw.differentiable(module, inputs)
    compare(module, inputs, fast)
    with torch.no_grad():  # the next call reads what an optimiser has moved
        for p in module.parameters():
            p.mul_(0.9)
    compare(module, inputs, fast)


def test_any_batch_and_learning() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 25, 3))
    fast = tw.differentiable(module, (torch.randn(4, 2, 5, 5),), symbolic=True)
    for n in (2, 7):
        compare(module, (torch.randn(n, 2, 5, 5),), fast)
    x, y = torch.randn(16, 2, 5, 5), torch.randint(0, 3, (16,))
    optimizer = torch.optim.Adam(fast.parameters(), 1e-2)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(fast(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_what_is_refused() -> None:
    x = torch.randn(4, 3)
    with pytest.raises(tw.Error, match="state beside its parameters"):
        tw.differentiable(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), (x,))
    with pytest.raises(tw.Error, match="not a module"):
        tw.differentiable(torch.relu, (x,))  # type: ignore[arg-type]
    with pytest.raises(tw.Error, match="wrong number of tensors"):
        tw.differentiable(nn.Linear(3, 3), (x,))(x, x)


class Doubled(torch.autograd.Function):
    """The identity, whose gradient is twice as large."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, flow: Any) -> Any:
        return 2 * flow


class Own(nn.Module):
    """A gradient of one's own by a parameter's product, or by the input alone."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first, self.linear = first, nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.linear(Doubled.apply(x)) if self.first else Doubled.apply(self.linear(x))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_gradients_of_ones_own_are_refused(first: bool, symbolic: bool) -> None:
    with pytest.raises(tw.Error, match="cannot be traced: got Doubled"):
        tw.differentiable(Own(first), (torch.randn(4, 3),), symbolic=symbolic)
