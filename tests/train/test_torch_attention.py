"""Attention in training: compiled in one piece both ways, against autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
from torch import nn  # noqa: E402

from tilewright.train import torch_loss  # noqa: E402
from tilewright.train.rewritten import rewritten  # noqa: E402

HEADS, DEPTH, ROWS = 4, 8, 19
TOLERANCE = 1e-5


class Attending(nn.Module):
    """Attention of learned queries, keys and values over `keys` places of its input."""

    def __init__(
        self, keys: int = ROWS, groups: int = HEADS, mask: Any = None, learned: bool = False, **arguments: Any
    ) -> None:
        super().__init__()
        width = HEADS * DEPTH
        self.q = nn.Linear(width, width)
        self.k, self.v = nn.Linear(width, groups * DEPTH), nn.Linear(width, groups * DEPTH)
        self.keys, self.options = keys, arguments
        self.mask = nn.Parameter(mask) if learned else mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (-1, DEPTH)).transpose(1, 2)

        rest = x[:, : self.keys]
        y = nn.functional.scaled_dot_product_attention(
            heads(self.q(x)), heads(self.k(rest)), heads(self.v(rest)), self.mask, **self.options
        )
        return y.transpose(1, 2).flatten(-2)


def seen(rows: int, keys: int) -> torch.Tensor:
    torch.manual_seed(3)
    return torch.rand(rows, keys) < 0.5


CASES: dict[str, Callable[[], nn.Module]] = {
    "plain": Attending,
    "causal": lambda: Attending(is_causal=True),
    "another scale": lambda: Attending(scale=0.3),
    "fewer keys": lambda: Attending(7),
    "a mask, rows that see nothing": lambda: Attending(7, mask=seen(ROWS, 7)),
    "an added mask": lambda: Attending(mask=torch.randn(2, 1, ROWS, ROWS)),
    "heads that share keys": lambda: Attending(groups=2, enable_gqa=True),
    "multihead": lambda: nn.TransformerEncoderLayer(HEADS * DEPTH, HEADS, 32, 0.0, batch_first=True),
    "multihead, sequences first": lambda: nn.TransformerEncoderLayer(HEADS * DEPTH, HEADS, 32, 0.0),
}


def built(build: Callable[[], nn.Module]) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return build(), torch.randn(2, ROWS, HEADS * DEPTH)


@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_gradients_are_autograds(build: Callable[[], nn.Module]) -> None:
    module, x = built(build)
    fast = tw.differentiable(module, (x,))
    assert "attention_gradient" in fast.backward_model.show("graph")
    result = []
    for function in (module, fast):
        module.zero_grad()
        supplied = x.clone().requires_grad_()
        y = function(supplied)
        torch.manual_seed(1)
        (y * torch.randn_like(y)).sum().backward()
        result.append([y, supplied.grad, *(p.grad for p in module.parameters())])
    for a, b in zip(*result, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=TOLERANCE * max(1.0, float(a.detach().abs().max())))


def loss(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x).square().mean()


def operators(build: Callable[[], nn.Module]) -> list[str]:
    """The operators of the graph that a step differentiates."""
    module, x = built(build)
    graph = torch_loss.traced(module, loss, (x,), False).graph
    names = {name for name, _ in module.named_parameters()}
    return [n.op for n in rewritten(graph, [v for v in graph.params if v.name in names]).nodes]


def test_a_learned_mask_has_its_gradient() -> None:
    """Attention as one operator has none by its mask, and stays in parts."""
    assert "lowered.attention" in operators(lambda: Attending(mask=torch.zeros(ROWS, ROWS)))
    assert "lowered.attention" not in operators(lambda: Attending(mask=torch.zeros(ROWS, ROWS), learned=True))
    module, x = built(lambda: Attending(mask=torch.zeros(ROWS, ROWS), learned=True))
    step = tw.compile_step(module, loss, tw.train.SGD(0.1), (x,))
    step(x.numpy())
    loss(module, x).backward()
    wanted = (module.mask - 0.1 * module.mask.grad).detach()
    torch.testing.assert_close(torch.as_tensor(step.state_dict()["mask"]), wanted, rtol=0, atol=1e-7)


def test_projections_are_read_where_they_are() -> None:
    """Queries, keys and values of PyTorch's module, which it stacks and turns, are heads of one array."""
    result = operators(CASES["multihead, sequences first"])
    assert result.count("lowered.attention") == 1 and "transpose" not in result and "slice" not in result


def test_a_step_holds_no_scores() -> None:
    """The temporaries of a step grow with the length of sequences, not with its square."""

    def peak(length: int) -> int:
        torch.manual_seed(0)
        module, x = Attending(length), torch.randn(1, length, HEADS * DEPTH)
        return tw.compile_step(module, loss, tw.train.SGD(0.1), (x,), memory=None).model.memory().arena

    assert peak(512) < 2.5 * peak(256)
