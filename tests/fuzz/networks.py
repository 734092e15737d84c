"""Random small modules of PyTorch, with symbolic batches and lengths, as `torch.export` and `torch.compile` give them.

A module is a chain of steps on a pool of tensors: layers with weights, functions, views, reductions. What it gives for
batches of 0, 1, 2 and 7, and for other lengths, is what eager PyTorch gives; by `torch.compile` also its gradients.

    python -m tests.fuzz.networks 17 300      the seeds 17 to 316, by hand
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import tilewright as tw

Random = random.Random
Step = tuple[Callable[..., Any], tuple[int, ...], str]
BATCHES = (3, 0, 1, 2, 7)
LENGTHS = (5, 1, 6)
TOLERANCE = 2e-4


class Network(nn.Module):
    """Steps on a pool of tensors: (function, places of its arguments, name). Gives the tensors at `selected`."""

    def __init__(self, steps: list[Step], retained: list[int]) -> None:
        super().__init__()
        self.steps, self.selected = steps, retained
        self.layers = nn.ModuleList(f for f, _, _ in steps if isinstance(f, nn.Module))

    def forward(self, *arguments: torch.Tensor) -> Any:
        pool = list(arguments)
        for f, places, _ in self.steps:
            pool.append(f(*(pool[k] for k in places)))
        return tuple(pool[k] for k in self.selected)

    def __str__(self) -> str:
        return "; ".join(f"{name}{list(places)}" for _, places, name in self.steps) + f" -> {self.selected}"


def _heads(width: int) -> int:
    return next(h for h in (4, 3, 2, 1) if width % h == 0)


class Attending(nn.Module):
    """Self-attention of [batch, rows, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, _heads(width), batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x, x, x, need_weights=False)[0]
        return y


class Recurrent(nn.Module):
    """The sequence that a recurrent layer gives."""

    def __init__(self, kind: str, width: int, hidden: int, both: bool) -> None:
        super().__init__()
        self.inner = getattr(nn, kind)(width, hidden, batch_first=True, bidirectional=both)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)[0]
        return y


def layer(rng: Random, x: torch.Tensor) -> tuple[Callable[..., Any], str]:
    """A layer with weights that takes tensors like `x`."""
    width, rank = x.shape[-1], x.ndim
    out = rng.choice((1, 3, 8, 17))
    choices: list[Callable[[], nn.Module]] = [lambda: nn.Linear(width, out), lambda: nn.LayerNorm(width)]
    if rank == 2:
        choices += [lambda: nn.BatchNorm1d(width), lambda: nn.Bilinear(width, 2, out), lambda: nn.PReLU(width)]
        choices = [c for c in choices if not isinstance(c(), nn.Bilinear)]
    if rank == 3:
        channels, kernel = x.shape[1], rng.choice((1, 3))
        choices += [
            lambda: Attending(width),
            lambda: Recurrent(rng.choice(("LSTM", "GRU", "RNN")), width, rng.choice((1, 4, 8)), rng.random() < 0.3),
            lambda: nn.TransformerEncoderLayer(width, _heads(width), 8, batch_first=True, dropout=0.0),
            lambda: nn.Sequential(_Swap(), nn.Conv1d(width, out, kernel, padding=kernel // 2), _Swap()),
        ]
        del channels
    if rank == 4:
        c, stride = x.shape[1], rng.choice((1, 1, 2))
        groups = rng.choice([g for g in (1, 2, c) if c % g == 0])
        choices = [
            lambda: nn.Conv2d(c, groups * rng.choice((1, 3)), 3, stride, 1, groups=groups),
            lambda: nn.Conv2d(c, out, 1, bias=False),
            lambda: nn.BatchNorm2d(c),
            lambda: nn.GroupNorm(groups, c),
            lambda: nn.InstanceNorm2d(c, affine=True),
            lambda: nn.ConvTranspose2d(c, out, 2, 2),
            lambda: nn.Sequential(
                nn.Conv2d(c, 4, 3, padding="same", dilation=2), nn.ReLU(), nn.MaxPool2d(2, 2, ceil_mode=True)
            ),
        ]
    created = rng.choice(choices)()
    return created, type(created).__name__


class _Swap(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


ELEMENTS: dict[str, Callable[..., Any]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "square": torch.square,
    "exp of tanh": lambda x: x.tanh().exp(),
    "clamp": lambda x: x.clamp(-0.7, 1.1),
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "gt": lambda x: (x > 0.2).to(x.dtype),
    "half": lambda x: x.to(torch.bfloat16).to(x.dtype),
    "double": lambda x: x.double().sin().float(),
    "long": lambda x: (x * 3).clamp(-9, 9).long().remainder(4).float(),
    "where": lambda x: torch.where(x > 0, x, x.abs() * 0.3),
    "masked": lambda x: x.masked_fill(x < -0.5, 0.25),
}
ROWS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "norm": lambda x: F.normalize(x, dim=-1),
    "rms": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "centred": lambda x: x - x.mean(-1, keepdim=True),
    "sorted": lambda x: x.sort(-1)[0],
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll(1, -1),
    "pad": lambda x: F.pad(x, (1, 2)),
    "twice": lambda x: torch.cat([x, x * 0.5], -1),
    "every second": lambda x: x[..., ::2],
    "chunk": lambda x: x.chunk(2, -1)[0],
    "gather": lambda x: x.gather(-1, x.argmax(-1, keepdim=True)) + x,
    "topk": lambda x: x.topk(min(2, x.shape[-1]), -1)[0],
    "outer": lambda x: (x.unsqueeze(-1) * x.unsqueeze(-2)).sum(-1),
    "max": lambda x: x - x.amax(-1, keepdim=True),
    "logsumexp": lambda x: x - x.logsumexp(-1, keepdim=True),
    "std": lambda x: x / (x.var(-1, keepdim=True, unbiased=False) + 0.1).sqrt(),
    "einsum": lambda x: torch.einsum("...i,...j->...i", x, x),
}
THREE: dict[str, Callable[..., Any]] = {
    "first": lambda x: x[:, 0],
    "last": lambda x: x[:, -1],
    "mean of rows": lambda x: x.mean(1),
    "max of rows": lambda x: x.amax(1),
    "transposed": lambda x: (x @ x.transpose(1, 2)) @ x * 0.1,
    "flat": lambda x: x.reshape(x.shape[0] * x.shape[1], x.shape[2]),
    "heads": lambda x: x.reshape(x.shape[0], x.shape[1], -1, 1).transpose(1, 2).sum(1) + x.sum(-1, keepdim=True),
    "shifted": lambda x: torch.cat([x[:, :1], x[:, :-1]], 1),
    "running": lambda x: x.cumsum(1),
    "causal": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)[:, 0],
    "triangle": lambda x: (x @ x.mT).tril().sum(-1, keepdim=True) * 0.1 + x,
    "ranks": lambda x: x + torch.arange(x.shape[1], dtype=x.dtype)[:, None] * 0.1,
}
FOUR: dict[str, Callable[..., Any]] = {
    "max pool": lambda x: F.max_pool2d(x, 2, 1, 1),
    "avg pool": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "global": lambda x: x.mean((2, 3)),
    "flatten": lambda x: x.flatten(2).transpose(1, 2),
    "up": lambda x: F.interpolate(x, scale_factor=2.0),
    "bilinear": lambda x: F.interpolate(x, size=(5, 4), mode="bilinear"),
    "unshuffle": lambda x: F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2),
    "channels": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "reflect": lambda x: F.pad(x, (1, 1, 0, 1), mode="replicate"),
    "turned": lambda x: x.transpose(2, 3),
}
BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "mul": torch.mul,
    "sub": torch.sub,
    "maximum": torch.maximum,
    "gate": lambda a, b: a * b.sigmoid(),
    "cat": lambda a, b: torch.cat([a, b], -1),
    "matmul": lambda a, b: a @ b.mT,
    "stack": lambda a, b: torch.stack([a, b], -1).mean(-1),
    "choose": lambda a, b: torch.where(a > b, a, b * 0.5),
}


def function(rng: Random, x: torch.Tensor) -> tuple[Callable[..., Any], str]:
    tables = [ELEMENTS, ROWS, *([THREE] if x.ndim == 3 else []), *([FOUR] * 2 if x.ndim == 4 else [])]
    table = rng.choice(tables)
    name = rng.choice(list(table))
    return table[name], name


def drawn(seed: int) -> tuple[Network, Callable[[int, int], tuple[torch.Tensor, ...]], bool]:
    """A network; what makes its inputs of a batch and a length; whether the length is a symbol too."""
    rng = Random(seed)
    torch.manual_seed(seed)
    rank = rng.choice((2, 2, 3, 3, 4))
    width = rng.choice((1, 3, 4, 8, 12))
    shapes = {2: lambda n, m: (n, width), 3: lambda n, m: (n, m, width), 4: lambda n, m: (n, width, 6, m + 1)}
    count = rng.choice((1, 1, 2))

    def inputs(n: int, m: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(shapes[rank](n, m)) for _ in range(count))

    pool, others = list(inputs(3, 5)), list(inputs(2, 5))
    steps: list[Step] = []
    wanted = rng.randint(2, 9)
    for _ in range(8 * wanted):
        if len(steps) == wanted:
            break
        a, b = (rng.randrange(max(0, len(pool) - 3), len(pool)) for _ in range(2))
        kind, places = rng.random(), (a,)
        if kind < 0.35 and pool[a].ndim > 1:
            f, name = layer(rng, pool[a])
        elif kind < 0.8:
            f, name = function(rng, pool[a])
        else:
            name = rng.choice(list(BINARY))
            f, places = BINARY[name], (a, b)
        if isinstance(f, nn.Module):
            f.eval()
        try:
            with torch.no_grad():
                created, other = (f(*(p[k] for k in places)) for p in (pool, others))
        except (RuntimeError, IndexError, ValueError, AssertionError):
            continue
        if not created.numel() or created.numel() > 20_000 or not created.isfinite().all() or created.abs().max() > 1e3:
            continue
        pool.append(created)
        others.append(other)
        steps.append((f, places, name))
    retained = sorted(rng.sample(range(count, len(pool)), min(len(steps), rng.randint(1, 3))))
    return Network(steps, retained).eval(), inputs, rank == 3 and rng.random() < 0.4


def check(seed: int, by: str) -> str:
    """ "right", "refused: why" or "wrong: how"; `by` export, dynamo or gradient."""
    network, inputs, long = drawn(seed)
    if not network.selected:
        return "left out"
    torch.manual_seed(seed)
    sizes = [(n, 5) for n in BATCHES] + ([(2, m) for m in LENGTHS] if long else [])
    try:
        run = exported(network, inputs, long) if by == "export" else compiled(network, seed)
    except tw.Error as error:
        return f"refused: {str(error).splitlines()[0][:200]}"
    for n, m in sizes:
        supplied = inputs(n, m)
        try:
            with torch.set_grad_enabled(by == "gradient"):
                want = outcome(network, supplied, by)
        except Exception:
            continue  # eager takes no such size
        try:
            with torch.set_grad_enabled(by == "gradient"):
                got = outcome(run, supplied, by, network)
        except tw.Error as error:
            if by == "export" and n == 0:
                continue
            return f"refused: at {n}, {m}: {str(error).splitlines()[0][:200]}"
        text = differs(got, want)
        if text:
            return f"wrong: at {n}, {m}: {text}"
    return "right"


def exported(network: Network, inputs: Callable[[int, int], Any], long: bool) -> Any:
    arguments = inputs(3, 5)
    axes = {0: "n", 1: "m"} if long else {0: "n"}
    dynamic = {f"arguments_{k}": axes for k in range(len(arguments))}
    return tw.compile(network, arguments, dynamic=dynamic, dims={"n": tw.dim(0, 64)})


def compiled(network: Network, seed: int) -> Any:
    from tests.dynamo.torch_backend import register

    register()
    torch._dynamo.reset()
    return torch.compile(network, backend="tilewright", dynamic=True if seed % 3 == 0 else None)


def outcome(f: Any, value: Any, by: str, network: Network | None = None) -> list[torch.Tensor]:
    if by != "gradient":
        result = f(*value)
        return list(result) if isinstance(result, tuple | list) else [result]
    network = network or f
    leaves = [x.clone().requires_grad_() for x in value]
    result = f(*leaves)
    loss = sum((x.float() * torch.linspace(0.5, 1, x.numel()).reshape(x.shape)).sum() for x in result)
    wanted = [*leaves, *network.parameters()]
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [*(x.detach() for x in result), *(g for g in gradients if g is not None)]


def differs(got: list[Any], want: list[torch.Tensor]) -> str:
    if len(got) != len(want):
        return f"{len(got)} results, expected {len(want)}"
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {k} is {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
        limit = TOLERANCE * max(1.0, float(b.abs().max()) if b.numel() else 0.0)
        fine = torch.isclose(a, b, rtol=TOLERANCE, atol=limit, equal_nan=True)
        if not fine.all():
            place = tuple((~fine).nonzero()[0].tolist())
            text = f"result {k} at {list(place)}: {float(a[place])} for {float(b[place])}"
            return f"{text}, {int((~fine).sum())} of {a.numel()}"
    return ""


def quiet_check(seed: int, by: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return check(seed, by)
    except Exception as error:
        return f"crashed: {type(error).__name__}: {str(error)[:400]}"


WAYS = ("export", "export", "dynamo", "gradient")


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + count):
        by, started = WAYS[seed % len(WAYS)], time.monotonic()
        result = quiet_check(seed, by)
        outcomes[f"{by} {result.split(':')[0]}"] += 1
        if not result.startswith(("right", "left out")):
            print(seed, by, drawn(seed)[0], "|", result, f"({time.monotonic() - started:.0f} s)", flush=True)
    print(dict(outcomes))


if __name__ == "__main__":
    main()
