"""Training through `torch.compile`: gradients against eager PyTorch's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.dynamo.torch_backend import assert_same, compiled, gradients

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
nn, functional = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def strict() -> Any:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0")  # PyTorch's, of that very release
        yield


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Any) -> Any:
        q, k, v = (t.view(*x.shape[:2], 2, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, ...]]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(17, 32), nn.Tanh(), nn.Linear(32, 6)), lambda: (torch.randn(8, 17),)),
    "attention": (Attention, lambda: (torch.randn(2, 5, 16, requires_grad=True),)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)
        ),
        lambda: (torch.randn(4, 3, 8, 8, requires_grad=True),),
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(11, 8), nn.GELU(), nn.Linear(8, 3), nn.LogSoftmax(-1)),
        lambda: (torch.randint(0, 11, (4, 5)),),
    ),
}


@pytest.mark.costly(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_gradients(name: str, dynamic: bool) -> None:
    make, arguments = MODELS[name]
    model, args = make(), arguments()
    other, same = copy.deepcopy(model), copy.deepcopy(args)
    f = compiled(model, dynamic=dynamic)
    result = gradients(f, args, lambda y: y.square().sum())
    expected = gradients(other, same, lambda y: y.square().sum())
    assert_same(result, expected, rtol=1e-4, atol=1e-4)
    assert_same(dict(model.named_buffers()), dict(other.named_buffers()), rtol=1e-5, atol=1e-5)


CONVOLUTIONS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "padded": (lambda: nn.Conv2d(3, 8, 3, padding=1), (4, 3, 9, 9)),
    "strided": (lambda: nn.Conv2d(4, 8, 3, stride=2, padding=1), (4, 4, 9, 10)),
    "grouped": (lambda: nn.Conv2d(4, 8, 3, groups=2, dilation=2, bias=False), (2, 4, 9, 9)),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, groups=6, padding=1), (2, 6, 9, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 7, 7)),
    "lines": (lambda: nn.Conv1d(4, 6, 3), (2, 4, 11)),
    "volumes": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 5, 5, 5)),
}


@pytest.mark.costly(2)
@pytest.mark.parametrize("data", [True, False], ids=["data too", "weights alone"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_go_back_compiled(name: str, data: bool) -> None:
    make, shape = CONVOLUTIONS[name]
    model, x = make(), torch.randn(shape, requires_grad=data)
    other, same = copy.deepcopy(model), copy.deepcopy(x)
    reports: list[Any] = []
    result = gradients(compiled(model, reports), (x,), lambda y: y.square().sum())
    assert_same(result, gradients(other, (same,), lambda y: y.square().sum()), rtol=1e-4, atol=1e-4)
    assert [left for report in reports for left in report.coverage().uncompiled] == []


def test_a_training_loop() -> None:
    make, _ = MODELS["mlp"]
    model = make()
    other = copy.deepcopy(model)
    f = compiled(model)
    losses: list[list[float]] = []
    for m, call in ((model, f), (other, other)):
        torch.manual_seed(1)
        optimiser = torch.optim.AdamW(m.parameters(), lr=0.01, fused=True)
        losses.append([])
        for _ in range(10):
            x = torch.randn(16, 17)
            loss = functional.mse_loss(call(x), x[:, :6])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0]
