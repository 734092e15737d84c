"""Steps of random modules of PyTorch whose sizes are computed from other sizes, whose places are data, and that have a
state: what `open_torch.py` chains beside its simpler steps.

A step takes a matrix of n rows and m integers, which may be places outside of it, and gives a matrix.
"""

# ruff: noqa: B008  numbers are drawn when a step is
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Random = random.Random
Step = Callable[..., Any]


def _image(x: Any) -> Any:
    """A matrix as an image of one channel."""
    return x[None, None]


def _matrix(y: Any) -> Any:
    """A tensor of any rank as a matrix of its last axis."""
    return y.reshape(-1, y.shape[-1]) if y.ndim > 1 else y[:, None]


def _column(ids: Any, x: Any) -> Any:
    """Places of rows for each column."""
    return ids[:, None].expand(-1, x.shape[1])


SIZED: dict[str, Callable[[Random], Step]] = {
    "first half": lambda rng: lambda x, ids, k=rng.randint(2, 4): x[: x.shape[0] // k],
    "second half": lambda rng: lambda x, ids, k=rng.randint(2, 4): x[x.shape[0] // k :],
    "last half": lambda rng: lambda x, ids, k=rng.randint(2, 4): x[-(x.shape[0] // k) :],
    "middle": lambda rng: lambda x, ids: x.narrow(0, x.shape[0] // 2, 1),
    "last few": lambda rng: lambda x, ids, k=rng.randint(1, 9): x[-k:],
    "all but last": lambda rng: lambda x, ids, k=rng.randint(1, 9): x[:-k],
    "but the first": lambda rng: lambda x, ids, k=rng.randint(1, 9), s=rng.randint(1, 4): x[k::s],
    "at most": lambda rng: lambda x, ids, k=rng.choice((1, 4, 16, 33)): x[: torch.sym_min(x.shape[0], k)],
    "at least": lambda rng: (
        lambda x, ids, k=rng.choice((1, 4, 16)): F.pad(x, (0, 0, 0, torch.sym_max(x.shape[0], k) - x.shape[0]))
    ),
    "as many": lambda rng: lambda x, ids: x[: ids.shape[0]],
    "beyond": lambda rng: lambda x, ids: x[ids.shape[0] :],
    "last as many": lambda rng: lambda x, ids: x[-ids.shape[0] :],
    "shorter": lambda rng: lambda x, ids: x[: torch.sym_min(x.shape[0], ids.shape[0])],
    "product": lambda rng: (
        lambda x, ids: (x[:, None] * ids.float()[None, :, None]).reshape(x.shape[0] * ids.shape[0], x.shape[1])
    ),
    "flat product": lambda rng: lambda x, ids: (x[:, None] + ids[None, :, None]).reshape(-1, x.shape[1])[::2],
    "sum of sizes": lambda rng: lambda x, ids: torch.cat([x, ids.float()[:, None].expand(-1, x.shape[1])]),
    "pad by size": lambda rng: lambda x, ids: F.pad(x, (0, 0, ids.shape[0], x.shape[0] // 2), value=0.5),
    "cut by size": lambda rng: lambda x, ids: F.pad(x, (0, 0, -(x.shape[0] // 3), 1)),
    "circular": lambda rng: lambda x, ids, p=rng.randint(0, 3): F.pad(x.T[None], (p, p), mode="circular")[0].T,
    "replicate": lambda rng: lambda x, ids, p=rng.randint(0, 3): F.pad(x.T[None], (p, 1), mode="replicate")[0].T,
    "roll by size": lambda rng: lambda x, ids: x.roll(x.shape[0] // 2 + 1, 0),
    "expanded": lambda rng: lambda x, ids: x.sum(0).expand(ids.shape[0], -1),
    "table": lambda rng: lambda x, ids: x.new_full((ids.shape[0], x.shape[0]), 0.5) @ x,
    "distances": lambda rng: lambda x, ids: (torch.arange(x.shape[0])[:, None] - torch.arange(ids.shape[0])).float(),
    "three": lambda rng: lambda x, ids, k=rng.randint(0, 2): x.tensor_split(3)[k],
    "chunks": lambda rng: lambda x, ids: x.chunk(3)[-1],
    "split off": lambda rng: lambda x, ids, k=rng.randint(0, 3): x.split([k, x.shape[0] - k])[1],
    "windows": lambda rng: lambda x, ids, k=rng.randint(1, 4), s=rng.randint(1, 3): x.unfold(0, k, s).reshape(-1, k),
    "columns": lambda rng: lambda x, ids, k=rng.randint(1, 3): F.unfold(_image(x), (k, 1), padding=(1, 0))[0],
    "folded": lambda rng: lambda x, ids: F.fold(x.T[None, :2], (x.shape[0] + 1, 1), (2, 1))[0, 0],
    "turned": lambda rng: lambda x, ids, k=rng.randint(1, 3): torch.rot90(x, k),
    "moved": lambda rng: lambda x, ids: x.T.reshape(-1, x.shape[1]),
    "differences": lambda rng: lambda x, ids: x.diff(dim=0),
    "if long": lambda rng: lambda x, ids, k=rng.choice((2, 4, 16)): x[1:] if x.shape[0] > k else x * 2,
    "by number": lambda rng: lambda x, ids: x / max(x.shape[0], 1) + ids.shape[0] % 3,
    "grid": lambda rng: lambda x, ids, k=rng.randint(0, 1): torch.meshgrid(x[:, 0], ids.float(), indexing="ij")[k],
    "kron": lambda rng: lambda x, ids: torch.kron(x, torch.ones(2, 1)),
    "tensors": lambda rng: lambda x, ids: torch.einsum("ij,k->kj", x, ids.float()),
    "batches": lambda rng: lambda x, ids: _matrix(torch.bmm(x[:, None], x[:, :, None])),
    "pairs of rows": lambda rng: lambda x, ids: torch.cdist(x, x[:3]) ** 2,  # whose root of a rounding is 1e-3
    "outer sum": lambda rng: lambda x, ids: _matrix(x[:, None] + x[None]),
    "block": lambda rng: lambda x, ids: torch.block_diag(x, x[:1]),
    "pairs below": lambda rng: lambda x, ids: x[torch.tril_indices(3, 3)[0]],
}
BY_DATA: dict[str, Callable[[Random], Step]] = {
    "first place": lambda rng: lambda x, ids: x[ids[:1]],
    "sum place": lambda rng: lambda x, ids: x[ids.sum() - 1][None],
    "modulo": lambda rng: lambda x, ids: x[ids % x.shape[0]],
    "clamped": lambda rng: lambda x, ids: x[ids.clamp(0, x.shape[0] - 1)],
    "below": lambda rng: lambda x, ids: x[ids - 1],
    "two places": lambda rng: lambda x, ids: x[ids, ids % x.shape[1]][:, None],
    "last axis": lambda rng: lambda x, ids: x[..., ids],
    "columns": lambda rng: lambda x, ids: x.index_select(1, ids % x.shape[1]),
    "places twice": lambda rng: lambda x, ids: _matrix(x[ids[:, None], ids[None, :2]]),
    "matrix of places": lambda rng: lambda x, ids: _matrix(x[torch.stack([ids, ids])]),
    "along": lambda rng: lambda x, ids: x.take_along_dim(ids[:, None], 0),
    "along last": lambda rng: lambda x, ids: x.T.take_along_dim(ids[None], 1).T,
    "elements": lambda rng: lambda x, ids: x.take(ids)[:, None],
    "put": lambda rng: lambda x, ids: x.put(ids, ids.float(), accumulate=True),
    "shorter gather": lambda rng: lambda x, ids: x.gather(0, ids[:, None]),
    "scatter rows": lambda rng: lambda x, ids: x.scatter(0, _column(ids, x), x.new_ones(ids.shape[0], x.shape[1])),
    "scatter add": lambda rng: lambda x, ids: x.scatter_add(0, _column(ids, x), x.new_ones(ids.shape[0], x.shape[1])),
    "scatter reduce": lambda rng: (
        lambda x, ids, how=rng.choice(("sum", "prod", "amax", "amin", "mean")), own=rng.random() < 0.5: (
            x.scatter_reduce(0, _column(ids, x), x.new_full((ids.shape[0], x.shape[1]), 1.5), how, include_self=own)
        )
    ),
    "index reduce": lambda rng: (
        lambda x, ids, how=rng.choice(("prod", "amax", "amin", "mean")): x.index_reduce(
            0, ids, x.new_full((ids.shape[0], x.shape[1]), 1.5), how
        )
    ),
    "copy rows": lambda rng: lambda x, ids: x.index_copy(0, ids, x.new_ones(ids.shape[0], x.shape[1])),
    "fill rows": lambda rng: lambda x, ids: x.index_fill(0, ids, 0.25),
    "add at": lambda rng: lambda x, ids: x.index_put((ids,), x.new_ones(ids.shape[0], x.shape[1]), accumulate=True),
    "add at two": lambda rng: lambda x, ids: x.index_put((ids, ids % x.shape[1]), torch.tensor(0.5), accumulate=True),
    "into slots": lambda rng: lambda x, ids: x.new_zeros(7, x.shape[1]).index_add(0, ids, x[: ids.shape[0]]),
    "set slice": lambda rng: lambda x, ids, k=rng.randint(-3, 3): x.slice_scatter(x[:1] * 2, 0, k, k + 1),
    "select set": lambda rng: lambda x, ids, k=rng.randint(-3, 3): x.select_scatter(x[0] * 2, 0, k),
    "diagonal set": lambda rng: lambda x, ids: x.diagonal_scatter(x.diagonal() * 2),
    "bags": lambda rng: (
        lambda x, ids, how=rng.choice(("sum", "mean")): F.embedding_bag(ids, x, torch.tensor([0, 1, 1]), mode=how)
    ),
    "bags of two": lambda rng: lambda x, ids: F.embedding_bag(torch.stack([ids, ids], 1), x, mode="sum"),
    "loss": lambda rng: (
        lambda x, ids, r=rng.choice(("none", "mean", "sum")): F.cross_entropy(
            x[: ids.shape[0]], ids, reduction=r, ignore_index=1
        ).reshape(-1, 1)
    ),
    "likelihood": lambda rng: lambda x, ids: F.nll_loss(x[: ids.shape[0]], ids, reduction="none")[:, None],
    "hot": lambda rng: lambda x, ids: F.one_hot(ids, 4).float(),
    "searched": lambda rng: (
        lambda x, ids, r=rng.random() < 0.5: torch.searchsorted(x[:, 0].sort()[0], ids.float(), right=r)[
            :, None
        ].float()
    ),
    "found row": lambda rng: lambda x, ids: x[torch.searchsorted(x[:, 0].contiguous(), ids.float()) - 2],
    "best": lambda rng: lambda x, ids: x[x.argmax(0)],
    "order": lambda rng: lambda x, ids, d=rng.random() < 0.5: x[x[:, 0].argsort(descending=d, stable=True)],
    "order of places": lambda rng: lambda x, ids: x[ids.argsort(stable=True)],
    "top of places": lambda rng: lambda x, ids: x[(ids % 99 * 256 + torch.arange(ids.shape[0])).topk(2)[1]],
    "chosen": lambda rng: lambda x, ids: torch.where(ids[:, None] > 0, x[: ids.shape[0]], x[:1]),
    "counted": lambda rng: lambda x, ids: torch.bincount(ids.clamp(0, 5), minlength=6)[:, None].float(),
    "masked": lambda rng: lambda x, ids: x.masked_fill((torch.arange(x.shape[0]) < ids.sum())[:, None], -1.0),
}
ALONG: dict[str, Callable[[Random], Step]] = {
    "cumprod": lambda rng: lambda x, ids, a=rng.choice((0, 1)): x.cumprod(a),
    "cummax": lambda rng: lambda x, ids, k=rng.randint(0, 1): x.cummax(0)[k].float(),
    "cummin": lambda rng: lambda x, ids: x[x.cummin(0)[1][:, 0]],
    "logcumsumexp": lambda rng: lambda x, ids: x.logcumsumexp(0),
    "cumsum of places": lambda rng: lambda x, ids: x[ids.clamp(0, 1).cumsum(0)],
    "median": lambda rng: lambda x, ids: x.median(0)[0][None],
    "kth": lambda rng: lambda x, ids, k=rng.randint(1, 3): x.kthvalue(k, 0)[0][None],
    "descending": lambda rng: lambda x, ids: torch.sort(x, dim=0, descending=True, stable=True)[1].float(),
    "largest": lambda rng: lambda x, ids, k=rng.randint(1, 3): x.topk(k, 0, largest=False)[0],
    "half largest": lambda rng: lambda x, ids: x.topk(x.shape[0] // 2, 0)[0],
    "deviation": lambda rng: lambda x, ids: x / (x.std(0, correction=0) + 1),
    "norms": lambda rng: lambda x, ids: x.norm(dim=0, keepdim=True) + x,
    "any": lambda rng: lambda x, ids: (x > 0).any(0, keepdim=True) * x,
    "windows of rows": lambda rng: (
        lambda x, ids, k=rng.randint(1, 4), s=rng.randint(1, 3), p=rng.randint(0, 1), c=rng.random() < 0.5: (
            F.avg_pool1d(x.T[None], k, s, min(p, k // 2), ceil_mode=c)[0].T
        )
    ),
    "dilated pool": lambda rng: lambda x, ids, d=rng.randint(1, 3): F.max_pool1d(x.T[None], 2, 1, 1, d)[0].T,
    "places of pool": lambda rng: (
        lambda x, ids: F.max_pool2d(_image(x), (2, 1), (1, 1), return_indices=True)[1][0, 0].float()
    ),
    "image": lambda rng: (
        lambda x, ids, k=rng.randint(1, 3), s=rng.randint(1, 2), p=rng.randint(0, 2), d=rng.randint(1, 2): F.conv2d(
            _image(x), torch.ones(2, 1, k, 1), stride=(s, 1), padding=(p, 0), dilation=(d, 1)
        )[0].sum(0)
    ),
    "image whole": lambda rng: (
        lambda x, ids, c=rng.choice((1, 3, 8)), k=rng.choice((2, 3, 5)): F.conv2d(
            _image(x).expand(1, 3, -1, -1), torch.ones(c, 3, k, k) * 0.1, padding=k // 2
        )[0].mean(0)
    ),
    "depthwise": lambda rng: (
        lambda x, ids, k=rng.choice((2, 3)): F.conv1d(x.T[None], torch.ones(x.shape[1], 1, k), groups=x.shape[1])[0].T
    ),
    "image up": lambda rng: (
        lambda x, ids, s=rng.randint(1, 3), p=rng.randint(0, 1), k=rng.randint(2, 3): F.conv_transpose2d(
            _image(x), torch.ones(1, 1, k, 1), stride=(s, 1), padding=(p, 0), output_padding=(s - 1, 0)
        )[0, 0]
    ),
    "image pool": lambda rng: (
        lambda x, ids, s=rng.randint(1, 3), f=rng.choice((F.max_pool2d, F.avg_pool2d)), c=rng.random() < 0.5: f(
            _image(x), (3, 1), (s, 1), (1, 0), ceil_mode=c
        )[0, 0]
    ),
    "resized": lambda rng: (
        lambda x, ids, h=rng.randint(1, 5), how=rng.choice(("nearest", "bilinear", "bicubic", "area")): F.interpolate(
            _image(x), size=(h, 4), mode=how
        )[0, 0]
    ),
    "twice as large": lambda rng: (
        lambda x, ids, how=rng.choice(("nearest", "bilinear", "bicubic")), k=rng.choice((2.0, 0.5, 1.5)): F.interpolate(
            _image(x), scale_factor=(k, 1.0), mode=how
        )[0, 0]
    ),
    "sampled": lambda rng: (
        lambda x, ids, pad=rng.choice(("zeros", "border", "reflection")), how=rng.choice(("bilinear", "nearest")): (
            F.grid_sample(
                _image(x), (ids.float().clamp(-9, 9) / 4)[None, None, :, None].expand(1, 1, -1, 2), how, pad, False
            )[0, 0]
        )
    ),
    "shuffled": lambda rng: lambda x, ids: F.pixel_shuffle(_image(x).expand(1, 4, -1, -1), 2)[0, 0],
    "normal": lambda rng: lambda x, ids: F.instance_norm(x.T[None])[0].T,
    "local": lambda rng: lambda x, ids: F.local_response_norm(x.T[None], 3)[0].T,
}


class Recurrence(nn.Module):
    """A recurrent layer over the rows, as a step."""

    def __init__(self, kind: str, width: int, hidden: int, both: bool) -> None:
        super().__init__()
        self.inner = getattr(nn, kind)(width, hidden, batch_first=True, bidirectional=both)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x[:, :1].expand(-1, self.inner.input_size)[None])[0][0]
        return y


class Cached(nn.Module):
    """Attention of the rows over a table's rows at the places and themselves, causal in the latter."""

    def __init__(self, table: int, width: int, grouped: bool) -> None:
        super().__init__()
        self.grouped, self.width = grouped, width
        self.register_buffer("table", torch.linspace(-1, 1, table * width).reshape(table, width))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        rows = x[:, :1].expand(-1, self.width)
        keys = torch.cat([self.table[ids % self.table.shape[0]], rows])
        n, total = rows.shape[0], keys.shape[0]
        mask = torch.arange(total) <= torch.arange(n)[:, None] + total - n
        q = rows.reshape(1, n, 2, -1).transpose(1, 2)
        k = keys.reshape(1, total, 2, -1).transpose(1, 2)
        if self.grouped:
            k = k[:, :1]
        y = F.scaled_dot_product_attention(q, k, k, mask, enable_gqa=self.grouped)
        return y.transpose(1, 2).reshape(n, -1)


class Written(nn.Module):
    """A table that is written at the places, of which the first rows are read."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(rows, 1))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        table = self.table.expand(-1, x.shape[1]).clone()
        table[ids] = x[: ids.shape[0]]
        return table[: x.shape[0]]


STATE: dict[str, Callable[[Random], Step]] = {
    "recurrence": lambda rng: Recurrence(
        rng.choice(("LSTM", "GRU", "RNN")), rng.choice((1, 3, 8)), rng.choice((1, 4, 8, 17)), rng.random() < 0.3
    ),
    "cache": lambda rng: Cached(rng.choice((1, 5, 16)), rng.choice((2, 4, 16)), rng.random() < 0.5),
    "written": lambda rng: Written(rng.choice((1, 4, 40))),
    "branch": lambda rng: lambda x, ids: torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v.flip(0), (x,)),
    "branch by size": lambda rng: (
        lambda x, ids: torch.cond(torch.tensor(True) & (ids.sum() > 3), lambda v: v.cumsum(0), lambda v: v + 1, (x,))
    ),
    "loop": lambda rng: (
        lambda x, ids: torch._higher_order_ops.while_loop(
            lambda k, v: k < 3, lambda k, v: (k + 1, v.roll(1, 0) + 0.5), (torch.tensor(0), x.clone())
        )[1]
    ),
    "loop by data": lambda rng: (
        lambda x, ids: torch._higher_order_ops.while_loop(
            lambda k, v: k < ids.clamp(0, 4).sum(), lambda k, v: (k + 1, v * 0.5), (torch.tensor(0), x.clone())
        )[1]
    ),
    "scan": lambda rng: (
        lambda x, ids: torch._higher_order_ops.scan(
            lambda c, e: (c * 0.5 + e, c.clone()), x.new_zeros(x.shape[1]), x, dim=0
        )[1]
    ),
    "vmap": lambda rng: lambda x, ids: torch.func.vmap(lambda r: r.cumsum(0).flip(0))(x),
    "gradient": lambda rng: lambda x, ids: torch.func.grad(lambda v: (v.cumsum(0)[::2] * 2).square().sum())(x),
    "gradient at": lambda rng: lambda x, ids: torch.func.grad(lambda v: v[ids].square().sum())(x),
    "bytes": lambda rng: (
        lambda x, ids, t=rng.choice((torch.int8, torch.uint8, torch.int16)): (
            (x * 40).clamp(-90, 90).to(t).flip(0).float()
        )
    ),
    "half": lambda rng: (
        lambda x, ids, t=rng.choice((torch.float16, torch.bfloat16, torch.float64)): x.to(t).cumsum(0).to(torch.float32)
    ),
    "integers": lambda rng: lambda x, ids: (ids // 3 + ids % 5)[:, None].clamp(-9, 9).float() + x[:1],
}
STEPS = {
    f"{kind} {name}": step
    for kind, table in (("size", SIZED), ("data", BY_DATA), ("along", ALONG), ("state", STATE))
    for name, step in table.items()
}
