"""Learning steps of PyTorch modules against `torch.autograd` and `torch.optim`: 100 steps, by module and optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")

from torch import nn  # noqa: E402  after what may skip
from torch.nn import functional as F  # noqa: E402

from tilewright.train.entry import compile_step  # noqa: E402
from tilewright.train.optimizers import SGD, Adam, AdamW, RMSprop  # noqa: E402

STEPS = 100


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu")
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.layer(self.embedding(tokens)).mean(1))


def tanh_network() -> Any:
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 3))


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.GELU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


def numbers(*shape: int) -> Any:
    return torch.randn(shape)


class Recurrent(nn.Module):
    """Long enough to be a loop, or, with fewer steps than that, nodes of their own."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.layers = kind(5, 6, batch_first=True, **options)
        self.head = nn.Linear(12 if options.get("bidirectional") else 6, 3)

    def forward(self, x: Any) -> Any:
        y, last = self.layers(x)
        last = last[0] if isinstance(last, tuple) else last
        return self.head(y.mean(1)) + last.sum()


MODELS: dict[str, tuple[Any, Any]] = {
    "tanh": (tanh_network, lambda: numbers(8, 5)),
    "convolutions": (convolutions, lambda: numbers(4, 2, 8, 8)),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2), lambda: numbers(3, 20, 5)),
    "short lstm": (lambda: Recurrent(nn.LSTM), lambda: numbers(3, 4, 5)),
    "lstm both ways": (lambda: Recurrent(nn.LSTM, bidirectional=True), lambda: numbers(2, 18, 5)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: numbers(3, 20, 5)),
    "rnn": (lambda: Recurrent(nn.RNN), lambda: numbers(3, 20, 5)),
    "attention": (Attention, lambda: torch.randint(11, (4, 6))),
}
OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "sgd": (SGD(0.05, momentum=0.9, weight_decay=1e-3), lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=1e-3)),
    "adam": (Adam(1e-3), lambda p: torch.optim.Adam(p, 1e-3)),
    "adamw": (AdamW(1e-3, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=0.1)),
    "rmsprop": (RMSprop(1e-3), lambda p: torch.optim.RMSprop(p, 1e-3)),
}


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize(
    ("model", "optimizer"), [*(("tanh", name) for name in OPTIMIZERS), ("convolutions", "adam"), ("attention", "adamw")]
)
def test_steps(model: str, optimizer: str) -> None:
    torch.manual_seed(0)
    make, draw = MODELS[model]
    module = make()
    ours, theirs = OPTIMIZERS[optimizer]
    batches = [(x := draw(), torch.randint(3, (len(x),))) for _ in range(4)]
    step = compile_step(module, loss_of, ours, batches[0], clip=1.0)
    eager = theirs(module.parameters())
    for k in range(STEPS):
        x, y = batches[k % len(batches)]
        result = step(x, y)
        eager.zero_grad()
        loss = loss_of(module, x, y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        eager.step()
        if k == 0:
            assert result["loss"] == pytest.approx(loss.item(), rel=1e-5)
            assert result["gradient_norm"] == pytest.approx(norm.item(), rel=1e-5)
    # Rounding grows along the way: an error of 1e-7 in a gradient near zero turns the first steps of Adam.
    for name, value in module.named_parameters():
        np.testing.assert_allclose(step.parameters[name], value.detach(), rtol=0, atol=2e-3, err_msg=name)
    assert result["loss"] == pytest.approx(loss.item(), rel=2e-3)


@pytest.mark.parametrize("model", ["lstm", "short lstm", "lstm both ways", "gru", "rnn"])
def test_recurrent_layers(model: str) -> None:
    """One step of gradient descent: what parameters move by are the gradients."""
    torch.manual_seed(0)
    make, draw = MODELS[model]
    module = make()
    x = draw()
    y = torch.randint(3, (len(x),))
    step = compile_step(module, loss_of, SGD(1.0), (x, y))
    before = step.state_dict()
    result = step(x, y)
    loss = loss_of(module, x, y)
    loss.backward()
    assert result["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for name, value in module.named_parameters():
        moved = before[name] - step.parameters[name]
        np.testing.assert_allclose(moved, value.grad, rtol=1e-4, atol=2e-6, err_msg=name)


def test_metrics_and_frozen_parameters() -> None:
    torch.manual_seed(0)
    module = tanh_network()
    module[0].requires_grad_(False)

    def loss(model: Any, x: Any, y: Any) -> Any:
        scores = model(x)
        right = (scores.argmax(1) == y).float().mean()
        return {"right": right, "loss": F.cross_entropy(scores, y)}

    x, y = numbers(8, 5), torch.randint(3, (8,))
    step = compile_step(module, loss, Adam(1e-2), (x, y))
    expected = loss(module, x, y)
    result = step(x, y)
    assert result.keys() == {"loss", "right", "gradient_norm"}
    assert result["right"] == pytest.approx(expected["right"].item())
    assert "0.weight" not in step.parameters
    module.load_state_dict(step.state_dict())
    assert step(x, y)["loss"] == pytest.approx(loss(module, x, y)["loss"].item(), rel=1e-5)


class Stopped(nn.Module):
    """Gradients that flow, and some that are stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 3), nn.Linear(5, 3)


def detached(model: Any, x: Any, y: Any) -> Any:
    target = (model.one(x) * model.two(x)).detach()
    return (
        F.mse_loss(model.one(x), target.unsqueeze(1)[:, 0])
        + (model.two.bias * torch.exp(model.one.bias.detach())).sum()
    )


def without(model: Any, x: Any, y: Any) -> Any:
    """With `mse_loss`, which PyTorch says in others: then it forgets where no gradients were."""
    with torch.no_grad():
        target = model.one(x) * model.two(x)
    return F.mse_loss(model.one(x), target) + F.nll_loss(target.log_softmax(1), y) + model.two(x).square().mean()


@pytest.mark.parametrize("loss", [detached, without])
def test_gradients_that_are_stopped(loss: Any) -> None:
    torch.manual_seed(0)
    module = Stopped()
    x, y = numbers(8, 5), torch.randint(3, (8,))
    step = compile_step(module, loss, SGD(1.0), (x, y))
    before = step.state_dict()
    assert step(x, y)["loss"] == pytest.approx(loss(module, x, y).item(), rel=1e-5)
    loss(module, x, y).backward()
    for name, value in module.named_parameters():
        expected = torch.zeros_like(value) if value.grad is None else value.grad
        np.testing.assert_allclose(before[name] - step.weights[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
