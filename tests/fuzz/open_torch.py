"""Random modules of PyTorch of open sizes, exported: layers, and indexing that may leave small arrays."""

# ruff: noqa: B008  numbers are drawn when a step is
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import tilewright as tw
from tests.fuzz import networks, torch_steps

Random = random.Random
Step = Callable[..., Any]
STEPS: dict[str, Callable[[Random], Step]] = {
    "cut": lambda rng: lambda x, ids, b=rng.randint(-3, 3), e=rng.choice((None, 2, 5, -1)): x[b:e],
    "steps": lambda rng: lambda x, ids, k=rng.choice((2, 3)): x[::k],
    "one": lambda rng: lambda x, ids, k=rng.randint(-3, 3): x[k][None] * 2,
    "narrow": lambda rng: lambda x, ids, k=rng.randint(0, 3): x.narrow(0, k, 2),
    "select": lambda rng: lambda x, ids: x.index_select(0, ids) + 1,
    "take": lambda rng: lambda x, ids: x[ids],
    "gather": lambda rng: lambda x, ids: x.gather(0, ids[:, None].expand(-1, x.shape[1])),
    "embedding": lambda rng: lambda x, ids: F.embedding(ids, x),
    "scatter": lambda rng: lambda x, ids: x.scatter(0, ids[:, None], 0.5),
    "index_add": lambda rng: lambda x, ids: x.index_add(0, ids, torch.ones(ids.shape[0], x.shape[1])),
    "index_put": lambda rng: lambda x, ids: x.index_put((ids,), torch.tensor(0.5)),
    "roll": lambda rng: lambda x, ids, k=rng.randint(-3, 3): x.roll(k, 0),
    "flip": lambda rng: lambda x, ids: x.flip(0),
    "pad": lambda rng: lambda x, ids, p=(rng.randint(-2, 3), rng.randint(-2, 3)): F.pad(x, (0, 0, *p)),
    "reflect": lambda rng: lambda x, ids, p=rng.randint(0, 2): F.pad(x.T[None], (p, p), mode="reflect")[0].T,
    "unfold": lambda rng: lambda x, ids, k=rng.randint(1, 3): x.unfold(0, k, 1).sum(-1),
    "pool": lambda rng: lambda x, ids, k=rng.randint(1, 3): F.max_pool1d(x.T, k, ceil_mode=True).T,
    "averages": lambda rng: lambda x, ids: F.adaptive_avg_pool1d(x.T, 3).T,
    "up": lambda rng: lambda x, ids: F.interpolate(x.T[None], scale_factor=1.5, mode="linear")[0].T,
    "chunk": lambda rng: lambda x, ids: x.chunk(2, 0)[0],
    "split": lambda rng: lambda x, ids, k=rng.randint(1, 3): x.split(k)[0],
    "halves": lambda rng: lambda x, ids: x.reshape(2, -1, x.shape[1]).sum(0),
    "pairs": lambda rng: lambda x, ids: x.reshape(x.shape[0] // 2, -1),
    "view": lambda rng: lambda x, ids: x.reshape(-1, 2),
    "strided": lambda rng: lambda x, ids: x.as_strided((2, 2), (1, 1)),
    "diagonal": lambda rng: lambda x, ids, k=rng.randint(-2, 2): x.diagonal(k)[:, None],
    "triangle": lambda rng: lambda x, ids, k=rng.randint(-3, 3): x.tril(k),
    "cat": lambda rng: lambda x, ids: torch.cat([x, x[:1]]),
    "cumsum": lambda rng: lambda x, ids: x.cumsum(0),
    "sort": lambda rng: lambda x, ids: x.sort(0)[0],
    "topk": lambda rng: lambda x, ids, k=rng.randint(1, 3): x.topk(k, 0)[0],
    "max": lambda rng: lambda x, ids: x - x.amax(0),
    "gram": lambda rng: lambda x, ids: x @ x.T,
    "repeat": lambda rng: lambda x, ids, k=rng.randint(0, 3): x.repeat(k, 1),
    "interleave": lambda rng: lambda x, ids, k=rng.randint(1, 3): x.repeat_interleave(k, 0),
    "one hot": lambda rng: lambda x, ids: F.one_hot(ids.clamp(0, 3), 4).float(),
    "bins": lambda rng: lambda x, ids: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])).float(),
    "search": lambda rng: lambda x, ids: torch.searchsorted(torch.arange(3.0), x).float(),
    "softmax": lambda rng: lambda x, ids: x.softmax(0),
    "counting": lambda rng: lambda x, ids: x + torch.arange(x.shape[0])[:, None],
    "linear": lambda rng: lambda x, ids: F.linear(x, torch.ones(5, x.shape[1])),
    "conv": lambda rng: lambda x, ids, k=rng.randint(1, 4): F.conv1d(x.T[:, None], torch.ones(1, 1, k))[:, 0].T,
    "attention": lambda rng: (
        lambda x, ids: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)[0]
    ),
    "where": lambda rng: lambda x, ids: torch.where(x > 0, x, x[:1]),
    "relu": lambda rng: lambda x, ids: x.relu(),
}


class Chain(nn.Module):
    """Steps one after the other on a matrix, and on data that are places, perhaps."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList(step for step in steps if isinstance(step, nn.Module))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> Any:
        y = x
        for step in self.steps:
            y = step(y, ids)
        return y, x.sum(), ids + 1


def drawn(seed: int) -> tuple[Chain, int, list[str]]:
    """A module, the columns of its matrix, and the names of its steps."""
    rng = Random(seed)
    torch.manual_seed(seed)
    width = rng.choice((1, 3, 4, 8))
    example = torch.randn(6, width), torch.tensor([0, 2, 1, 0, 3])
    steps: list[Step] = []
    names: list[str] = []
    y, wanted = example[0], rng.randint(1, 4)
    for _ in range(6 * wanted):
        if len(steps) == wanted:
            break
        table = torch_steps.STEPS if rng.random() < 0.6 else STEPS
        name = rng.choice(list(table))
        step = table[name](rng)
        try:
            created = step(y, example[1])
        except Exception:  # not for such shapes
            continue
        if not isinstance(created, torch.Tensor) or created.ndim != 2 or not 0 < created.numel() < 10_000:
            continue
        y = created.detach()
        steps.append(step)
        names.append(name)
    return Chain(steps).eval(), width, names


def text(seed: int) -> str:
    """The text of a module."""
    return str(networks.drawn(seed)[0]) if seed % 3 == 0 else chain_text(seed)


def chain_text(seed: int) -> str:
    """The text of a chain of steps."""
    _, width, names = drawn(seed)
    return f"[n, {width}]: {', '.join(names)}"


def compiled(seed: int, threads: int) -> Callable[[int, int], Any]:
    """A call of the module of a seed at sizes n and m. ModelError where it is refused."""
    if seed % 3 == 0:
        network, inputs, long = networks.drawn(seed)
        if not network.selected:
            raise tw.Error("no network")
        model = networks.exported(network, inputs, long)

        def layers(n: int, m: int) -> Any:
            torch.manual_seed(n)
            return [y.numpy() for y in _all(model(*inputs(n, m if long else 5)))]

        return layers
    chain, width, _ = drawn(seed)
    example = torch.randn(6, width), torch.tensor([0, 2, 1, 0, 3])
    axes = {0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC}
    try:
        exported = torch.export.export(chain, example, dynamic_shapes=axes)
    except Exception as error:  # PyTorch takes no such module
        raise tw.Error(str(error)) from None
    model = tw.compile(exported, threads=threads)

    def call(n: int, m: int) -> Any:
        rng = np.random.default_rng(n)
        most = (max(n, 1), 3, 1 << 62)[m % 3]
        x = torch.from_numpy(rng.standard_normal((n, width)).astype(np.float32))
        return [y.numpy() for y in _all(model(x, torch.from_numpy(rng.integers(-most, most, m))))]

    return call


def _all(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]
