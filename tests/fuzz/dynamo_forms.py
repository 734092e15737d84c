"""Forms of programs for `torch.compile`: state, aliases, hooks, transformations of functions. `dynamo_cases.py` calls
them."""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.nn import functional as F

Random = random.Random
WIDTH = 4
Body = Callable[[torch.Tensor], torch.Tensor]

STEPS: tuple[Body, ...] = (
    lambda x: x.relu() + 0.5,
    lambda x: x.tanh() * 2,
    lambda x: F.gelu(x),
    lambda x: x.softmax(-1),
    lambda x: F.layer_norm(x, x.shape[-1:]),
    lambda x: x.cumsum(-1),
    lambda x: x.flip(0),
    lambda x: x - x.mean(0, keepdim=True),
    lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
    lambda x: torch.where(x > 0, x, x * 0.25),
    lambda x: x.clamp(-1, 1),
    lambda x: x * x.shape[0],
    lambda x: x.sort(-1).values,
    lambda x: (x[:, None] * x[:, :, None]).sum(-1),
    lambda x: x.to(torch.float64).exp().log1p().to(x.dtype),
    lambda x: x @ x.mT @ x * 0.1,
    lambda x: x.T.contiguous().T,
    lambda x: x.square().sum(-1, keepdim=True).sqrt() + x,
)


def body(rng: Random) -> Body:
    """A few steps on a matrix, which leave its shape."""
    chosen = [rng.choice(STEPS) for _ in range(rng.randint(1, 3))]

    def run(x: torch.Tensor) -> torch.Tensor:
        for step in chosen:
            x = step(x)
        return x

    return run


@dataclass
class Both:
    first: Any
    second: Any


pytree.register_dataclass(Both)
Pair = namedtuple("Pair", ("first", "second"))


class Form(nn.Module):
    """A module around steps; what `forward` does is its form."""

    def __init__(self, steps: Body, rng: Random) -> None:
        super().__init__()
        self.steps, self.scale, self.calls = steps, 0.5, 0
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("places", torch.tensor([2, 0, 3, 1]))
        self.number = rng.randint(1, 3)

    def forward(self, x: Any) -> Any:
        return self.b(self.steps(self.a(x)))


FORMS: dict[str, type[Form]] = {}


def form(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A form by its `forward`."""

    def named(forward: Callable[..., Any]) -> Callable[..., Any]:
        FORMS[name] = type(name.title().replace(" ", ""), (Form,), {"forward": forward})
        return forward

    return named


@form("layers")
def _(self: Any, x: Any) -> Any:
    return self.b(self.steps(self.a(x)))


@form("input in place")
def _(self: Any, x: Any) -> Any:
    y = self.steps(x)
    x.add_(1)
    return y + x


@form("input in part")
def _(self: Any, x: Any) -> Any:
    x[:, : self.number] = self.steps(x)[:, : self.number] * 2
    return x.sum(0)


@form("input by view")
def _(self: Any, x: Any) -> Any:
    view = x.T[1:]
    view.mul_(2)
    return self.steps(x), view


@form("buffers")
def _(self: Any, x: Any) -> Any:
    self.seen += 1
    self.average.mul_(0.9).add_(self.steps(x).sum(0).detach(), alpha=0.1)
    return x - self.average


@form("buffer anew")
def _(self: Any, x: Any) -> Any:
    self.average = self.average * 0.5 + x.detach().sum(0)
    return self.steps(x) + self.average


@form("buffer returned")
def _(self: Any, x: Any) -> Any:
    self.average.add_(1)
    return self.average, self.average[1:], self.steps(x), self.seen


@form("views of inputs")
def _(self: Any, x: Any) -> Any:
    return x, x.T, x[1:], x.reshape(-1), self.steps(x)


@form("views of results")
def _(self: Any, x: Any) -> Any:
    y = self.steps(x)
    return y, y.T, y[:, 1:], y.view(-1) if y.is_contiguous() else y, y.unsqueeze(0)


@form("the same twice")
def _(self: Any, x: Any) -> Any:
    y = self.steps(x)
    return [y, y, {"y": y}]


@form("detached")
def _(self: Any, x: Any) -> Any:
    y = self.a(self.steps(x))
    return y, y.detach(), y.detach().clone() * y


@form("dict")
def _(self: Any, x: Any) -> Any:
    y = self.steps(x)
    return {"y": y, "n": x.shape[0], "none": None, "more": [y.sum(), (y.mean(0),)], "text": "as it is"}


@form("dataclass")
def _(self: Any, x: Any) -> Any:
    return Both(self.steps(x), Pair(x + 1, 3.5))


@form("numbers")
def _(self: Any, x: Any) -> Any:
    return self.steps(x) * self.scale + self.number, x.shape[0] * 2, x.numel(), x.stride(0)


@form("counted")
def _(self: Any, x: Any) -> Any:
    self.calls += 1
    return self.steps(x) * self.calls


@form("tied")
def _(self: Any, x: Any) -> Any:
    return F.linear(self.steps(self.a(x)), self.a.weight.T) + self.a.weight.sum()


@form("break")
def _(self: Any, x: Any) -> Any:
    y = self.steps(x)
    torch._dynamo.graph_break()
    return self.steps(self.a(y)) + y


@form("number from data")
def _(self: Any, x: Any) -> Any:
    y = self.steps(x)
    return y * 2 if float(y.sum()) > 0 else y - 1


@form("mask")
def _(self: Any, x: Any) -> Any:
    y = self.steps(x)
    return y[y > 0].sum(), torch.nonzero(x > 0).shape[0]


@form("masked in place")
def _(self: Any, x: Any) -> Any:
    y = self.steps(x).clone()
    y[y > 0.5] = -1.0
    x.masked_fill_(x < 0, 0.25)
    return y, x * 1


@form("places")
def _(self: Any, x: Any) -> Any:
    return x[:, self.places], self.steps(x).index_add(1, self.places, x), x.gather(1, self.places.expand_as(x))


@form("list")
def _(self: Any, x: Any) -> Any:
    parts = []
    for k in range(self.number):
        parts.append(self.steps(x) * k)
    return torch.stack(parts), parts


@form("out")
def _(self: Any, x: Any) -> Any:
    z = torch.empty_like(x)
    torch.add(x, self.steps(x), out=z)
    return z


@form("branch")
def _(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda v: self.steps(v) + 1, lambda v: v * 2, (x,))


@form("while")
def _(self: Any, x: Any) -> Any:
    steps = self.steps
    return torch._higher_order_ops.while_loop(
        lambda k, v: k < 3, lambda k, v: (k + 1, steps(v).clone()), (torch.tensor(0), x.detach().clone())
    )


@form("checkpoint")
def _(self: Any, x: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(lambda v: self.steps(self.a(v)), x, use_reentrant=False)


@form("gradient inside")
def _(self: Any, x: Any) -> Any:
    return torch.func.grad(lambda v: (self.steps(v) ** 2).sum())(x)


@form("rows by vmap")
def _(self: Any, x: Any) -> Any:
    return torch.func.vmap(lambda v: self.a(v).tanh() * v.sum())(x)


@form("jvp")
def _(self: Any, x: Any) -> Any:
    return torch.func.jvp(lambda v: v.tanh() @ self.a.weight, (x,), (torch.ones_like(x),))


@form("vjp")
def _(self: Any, x: Any) -> Any:
    y, pull = torch.func.vjp(lambda v: v.sin() * self.scale, x)
    return y, pull(torch.ones_like(y))


@form("jacobian")
def _(self: Any, x: Any) -> Any:
    return torch.func.jacrev(lambda v: v.sin() * v.sum())(x.sum(0))


@form("functional call")
def _(self: Any, x: Any) -> Any:
    return torch.func.functional_call(self.a, {"weight": self.b.weight * 2}, (self.steps(x),))


class Doubled(torch.autograd.Function):
    """A function whose gradient is not its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Any, k: int) -> Any:
        ctx.save_for_backward(x)
        ctx.k = k
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.k + x * 0.5, None


@form("own gradient")
def _(self: Any, x: Any) -> Any:
    return Doubled.apply(self.steps(x), 7)


@form("tensor hook")
def _(self: Any, x: Any) -> Any:
    y = self.steps(self.a(x))
    if y.requires_grad:
        y.register_hook(lambda g: g * 3)
    return y * 2


@form("without gradients")
def _(self: Any, x: Any) -> Any:
    with torch.no_grad():
        y = self.steps(self.a(x))
    return y, self.b(x)


@form("autocast")
def _(self: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return self.b(self.a(x).relu()), self.steps(x)


@form("random")
def _(self: Any, x: Any) -> Any:
    return F.dropout(self.steps(x), 0.5, True) + torch.rand_like(x) + torch.randn(WIDTH)


@form("closure")
def _(self: Any, x: Any) -> Any:
    return self.steps(x) + CLOSED[: self.number].sum() + x[:, CLOSED_PLACES]


CLOSED, CLOSED_PLACES = torch.arange(4.0), torch.tensor([3, 0, -1, 1])


@form("constants")
def _(self: Any, x: Any) -> Any:
    return self.steps(x) + torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(WIDTH), torch.ones(2), torch.tensor(3)


@form("types")
def _(self: Any, x: Any) -> Any:
    k = (x * 4).to(torch.int32)
    return k // 3, k % 3, k << 2, k.to(torch.uint8), x > 0, x.half(), x.to(torch.bfloat16) * 2, k.bool().any(), k / 2


@form("empty")
def _(self: Any, x: Any) -> Any:
    return x[:0], self.steps(x)[:, :0].sum(1), x.new_zeros(0), x.new_empty((2, 0)).sum()


@form("scalars")
def _(self: Any, x: Any) -> Any:
    return x.sum(), x.max() if x.numel() else x.sum(), x.sum().view(1, 1).expand(2, 3), self.seen * 2


@form("expanded")
def _(self: Any, x: Any) -> Any:
    return self.steps(x).unsqueeze(0).expand(3, -1, -1), x.sum(0).expand_as(x), x[:, :1].expand(-1, 6)


@form("strided")
def _(self: Any, x: Any) -> Any:
    y = self.steps(x).contiguous()
    return y.as_strided((2, 2), (1, 1)) if y.numel() > 3 else y, y.T[::2], y.to(memory_format=torch.contiguous_format)


@form("batch norm")
def _(self: Any, x: Any) -> Any:
    return F.batch_norm(self.steps(x), self.average, self.average.abs() + 1) + x


@form("batch norm that learns")
def _(self: Any, x: Any) -> Any:
    y = torch.cat([x, x + 1])
    return F.batch_norm(y, self.average, None, training=True) if False else F.instance_norm(y.T[None])[0].T


@form("weights in place")
def _(self: Any, x: Any) -> Any:
    with torch.no_grad():
        self.b.weight.mul_(0.5)
    return self.b(self.steps(x).detach())


@form("data of weights")
def _(self: Any, x: Any) -> Any:
    return self.steps(x) + self.a.weight.data.sum() + self.a.bias.detach()


@form("complex")
def _(self: Any, x: Any) -> Any:
    y = torch.view_as_complex(x.reshape(-1, 2, 2).contiguous())
    return torch.view_as_real(y * y.conj() + 1j), y.abs(), torch.fft.rfft(x, dim=1).abs()


@form("two inputs in place")
def _(self: Any, x: Any) -> Any:
    y = x.clone()
    z = y[1:]
    z.add_(1)
    y.mul_(2)
    x.copy_(self.steps(y))
    return z, y


@form("transposed in place")
def _(self: Any, x: Any) -> Any:
    y = self.steps(x).clone()
    y.t_()
    y.unsqueeze_(0)
    return y


@form("set items")
def _(self: Any, x: Any) -> Any:
    y = x.new_zeros((x.shape[0] + 2, WIDTH))
    y[1:-1] = self.steps(x)
    y[0, 1], y[-1] = 5.0, x.sum()
    return y


@form("attention")
def _(self: Any, x: Any) -> Any:
    return F.scaled_dot_product_attention(x[None], self.steps(x)[None], x[None], is_causal=True)


@form("loss")
def _(self: Any, x: Any) -> Any:
    return F.cross_entropy(self.a(self.steps(x)), torch.arange(x.shape[0]) % WIDTH, ignore_index=1, reduction="none")


@form("sizes")
def _(self: Any, x: Any) -> Any:
    n = x.shape[0]
    return torch.arange(n), x.new_full((n, 2), n), torch.ones(n + 1), x.reshape(n * 2, -1), x.repeat(2, 1)


@form("split")
def _(self: Any, x: Any) -> Any:
    return [*self.steps(x).unbind(1)], x.split(2, 1), x.chunk(3, 1), x.tensor_split(2)


@form("hooked layer")
def _(self: Any, x: Any) -> Any:
    return self.a(self.steps(x))
