"""The layers of `bench_cliffs`, by family: what networks lean on, in the sizes that they have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Case:
    """A layer by name: what eager runs, and its inputs."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]


class _Function(nn.Module):
    """A module of one function, with layers of its own as `layers`."""

    def __init__(self, function: Callable[..., object], *layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(layers)

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*self.layers, *inputs)


class _Sequences(nn.Module):
    """A recurrent layer over whole sequences: all states, not the last ones."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.layer(x)[0]
        return states


def _window_partition(x: Tensor) -> Tensor:
    """Swin's windows of 7x7, rolled by three."""
    x = torch.roll(x, (-3, -3), (1, 2))
    b, h, w, c = x.shape
    return x.view(b, h // 7, 7, w // 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)


def _window_reverse(x: Tensor) -> Tensor:
    x = x.view(1, 8, 8, 7, 7, -1).permute(0, 1, 3, 2, 4, 5).reshape(1, 56, 56, -1)
    return torch.roll(x, (3, 3), (1, 2))


def _random(*shape: int) -> Tensor:
    return torch.rand(*shape) - 0.5


def _distinct(*shape: int) -> Callable[[], Tensor]:
    """Numbers no two of which are equal, for the order among equals is not promised."""
    return lambda: torch.randperm(math.prod(shape)).reshape(shape) / math.prod(shape)


Source = Callable[[], Tensor] | tuple[int, ...]
"""A function that returns an input, or the shape of a random one."""


@dataclass(slots=True)
class Cases:
    """Layers by name, each made when it is asked for."""

    cases: dict[str, Callable[[], Case]] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], nn.Module], *inputs: Source) -> None:
        def case() -> Case:
            torch.manual_seed(0)
            arguments = tuple(_random(*i) if isinstance(i, tuple) else i() for i in inputs)
            return Case(name, make().eval(), arguments)

        self.cases[name] = case

    def function(self, name: str, call: Callable[..., object], *inputs: Source) -> None:
        self.add(name, lambda: _Function(call), *inputs)


def _recurrent(to: Cases) -> None:
    """Recurrent layers over whole sequences."""
    for cell, maker in (("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn", nn.RNN)):
        for steps, batch, size in ((100, 1, 256), (50, 8, 256), (20, 1, 64), (32, 32, 128), (100, 4, 512)):
            to.add(
                f"{cell} {steps}x{batch}x{size}",
                lambda maker=maker, size=size: _Sequences(maker(size, size, batch_first=False)),
                (steps, batch, size),
            )


def _products(to: Cases) -> None:
    """Products after norms, and small ones side by side."""
    for rows, width, out in ((77, 512, 2048), (77, 768, 3072), (50, 768, 768), (197, 384, 1536), (1, 768, 3072)):
        to.add(
            f"norm+linear {rows}x{width}x{out}",
            lambda width=width, out=out: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out)),
            (1, rows, width),
        )


def _lookups(to: Cases) -> None:
    """Embeddings, gathers and indices."""
    for classes, count in ((30522, 128), (1000, 2048), (50257, 1024)):
        to.add(
            f"embedding {classes} of {count}x768",
            lambda classes=classes: nn.Embedding(classes, 768),
            lambda classes=classes, count=count: torch.randint(0, classes, (1, count)),
        )


def _rolls(to: Cases) -> None:
    """Rolls and the windows of Swin."""
    to.function("roll 1x56x56x96", lambda x: torch.roll(x, (-3, -3), (1, 2)), (1, 56, 56, 96))
    to.function("roll 1x14x14x384", lambda x: torch.roll(x, (-3, -3), (1, 2)), (1, 14, 14, 384))
    to.function("roll rows 512x1000", lambda x: torch.roll(x, 1, 1), (512, 1000))
    to.function("roll+windows 1x56x56x96", _window_partition, (1, 56, 56, 96))
    to.function("windows+roll 64x49x96", _window_reverse, (64, 49, 96))


def _reductions(to: Cases) -> None:
    """Sums, maxima and statistics over any dimensions."""
    to.function("sum outer+inner 64x128x56", lambda x: x.sum((0, 2)), (64, 128, 56))
    to.function("sum outer+inner 8x64x56x56", lambda x: x.sum((0, 2, 3)), (8, 64, 56, 56))
    to.function("sum outer 512x1000", lambda x: x.sum(0), (512, 1000))
    to.function("sum inner 512x1000", lambda x: x.sum(1), (512, 1000))
    to.function("sum middle 8x512x64", lambda x: x.sum(1), (8, 512, 64))
    to.function("max outer+inner 16x64x99", lambda x: x.amax((0, 2)), (16, 64, 99))
    to.function("var 32x1000", lambda x: x.var(1), (32, 1000))
    to.function("logsumexp 128x1000", lambda x: x.logsumexp(1), (128, 1000))


def _orders(to: Cases) -> None:
    """Cumulative sums, sorts and the first k."""
    to.function("cumsum last 128x1024", lambda x: x.cumsum(1), (128, 1024))
    to.function("cumsum first 1024x128", lambda x: x.cumsum(0), (1024, 128))
    to.function("cumsum long 100000", lambda x: x.cumsum(0), (100000,))
    to.function("sort 1000", lambda x: torch.sort(x, -1), _distinct(1, 1000))
    to.function("sort 64x1000", lambda x: torch.sort(x, -1), _distinct(64, 1000))
    to.function("sort 1000x32", lambda x: torch.sort(x, -1), _distinct(1000, 32))
    to.function("sort 100000", lambda x: torch.sort(x, -1), _distinct(1, 100000))
    to.function("topk 5 of 64x1000", lambda x: torch.topk(x, 5), _distinct(64, 1000))
    to.function("topk 50 of 8x50257", lambda x: torch.topk(x, 50), _distinct(8, 50257))
    to.function("topk 300 of 8400", lambda x: torch.topk(x, 300), _distinct(1, 8400))
    to.function("argmax 8x50257", lambda x: x.argmax(-1), (8, 50257))
    to.function("argmax 128x1000", lambda x: x.argmax(-1), (128, 1000))
    to.function("argmax channels 1x21x256x256", lambda x: x.argmax(1), (1, 21, 256, 256))
    to.function("max with index 128x1000", lambda x: x.max(-1), (128, 1000))


def _attention(to: Cases) -> None:
    """Attention with few keys or queries."""
    for b, m, k, n in ((64, 16, 16, 16), (256, 8, 32, 8), (12, 49, 32, 49), (32, 1, 64, 77), (1000, 4, 4, 4)):
        to.function(f"bmm {b}x{m}x{k}x{n}", torch.bmm, (b, m, k), (b, k, n))
    to.function("attention one key", F.scaled_dot_product_attention, *((1, 8, 64, 64), (1, 8, 1, 64), (1, 8, 1, 64)))
    to.function(
        "attention one query", F.scaled_dot_product_attention, *((1, 12, 1, 64), (1, 12, 512, 64), (1, 12, 512, 64))
    )
    to.function("attention 12x77x64", F.scaled_dot_product_attention, *((1, 12, 77, 64),) * 3)


def _pools(to: Cases) -> None:
    """Pooling, adaptive and strided, of lines, maps and volumes."""
    for channels, size, out in ((64, 56, 3), (256, 14, 3), (512, 13, 6), (512, 7, 1), (256, 32, 7)):
        to.add(
            f"adaptive pool {channels}x{size} to {out}",
            lambda out=out: nn.AdaptiveAvgPool2d(out),
            (1, channels, size, size),
        )
    to.add("adaptive max 64x56 to 3", lambda: nn.AdaptiveMaxPool2d(3), (1, 64, 56, 56))
    to.add("max pool 3x3 s2 64x112", lambda: nn.MaxPool2d(3, 2, 1), (1, 64, 112, 112))
    to.add("max pool 2x2 s2 37x75", lambda: nn.MaxPool2d(2, 2), (1, 37, 75, 75))
    to.add("max pool 3x3 s1 64x13x7", lambda: nn.MaxPool2d(3, 1, 1), (1, 64, 13, 7))
    to.add("max pool 5x5 s1 128x20", lambda: nn.MaxPool2d(5, 1, 2), (1, 128, 20, 20))
    to.add("average pool 3x3 s2 64x55", lambda: nn.AvgPool2d(3, 2, 1), (1, 64, 55, 55))
    to.add("average pool 7x7 s7 32x56", lambda: nn.AvgPool2d(7), (1, 32, 56, 56))
    to.add("max pool 1d 64x1000", lambda: nn.MaxPool1d(2), (1, 64, 1000))
    to.add("max pool 3d 32x8x28x28", lambda: nn.MaxPool3d(2), (1, 32, 8, 28, 28))
    to.add("average pool 3d 32x8x28x28", lambda: nn.AvgPool3d(2), (1, 32, 8, 28, 28))


def _convolutions(to: Cases) -> None:
    """Convolutions in groups, transposed, of lines and volumes."""
    for c, k, size, kernel, groups, stride in (
        (128, 128, 28, 3, 32, 1),
        (96, 96, 28, 3, 8, 1),
        (60, 240, 28, 1, 3, 1),
        (24, 72, 14, 3, 6, 2),
        (30, 30, 33, 5, 10, 1),
        (256, 256, 14, 3, 2, 1),
    ):
        to.add(
            f"conv {c}-{k}-{size} k{kernel} g{groups} s{stride}",
            lambda c=c, k=k, kernel=kernel, groups=groups, stride=stride: nn.Conv2d(
                c, k, kernel, stride, kernel // 2, groups=groups
            ),
            (1, c, size, size),
        )
    for c, k, size, groups in ((64, 64, 28, 4), (64, 64, 28, 64), (48, 24, 14, 3)):
        to.add(
            f"transposed {c}-{k}-{size} g{groups}",
            lambda c=c, k=k, groups=groups: nn.ConvTranspose2d(c, k, 4, 2, 1, groups=groups),
            (1, c, size, size),
        )
    to.add("conv3d 16-32-8x28", lambda: nn.Conv3d(16, 32, 3, padding=1), (1, 16, 8, 28, 28))
    to.add("conv3d 3-32-8x56 s2", lambda: nn.Conv3d(3, 32, 3, 2, 1), (1, 3, 8, 56, 56))
    to.add("conv3d depthwise 32-8x28", lambda: nn.Conv3d(32, 32, 3, padding=1, groups=32), (1, 32, 8, 28, 28))
    to.add("conv3d 1x3x3 64-4x28", lambda: nn.Conv3d(64, 64, (1, 3, 3), padding=(0, 1, 1)), (1, 64, 4, 28, 28))
    to.add("conv1d 64-64-1000 k3", lambda: nn.Conv1d(64, 64, 3, padding=1), (1, 64, 1000))
    to.add("depthwise 96x57 k7", lambda: nn.Conv2d(96, 96, 7, padding=3, groups=96), (1, 96, 57, 57))


def _copies(to: Cases) -> None:
    """Concatenations, transpositions, gathers, pads."""
    to.function("concat channels 4x32x56", lambda *x: torch.cat(x, 1).relu(), *((1, 32, 56, 56),) * 4)
    to.function("concat last 4x1000x24", lambda *x: torch.cat(x, -1), *((1000, 24),) * 4)
    to.function("concat chain", lambda x, y: torch.cat((torch.cat((x, y), 1), x), 1), (64, 100), (64, 60))
    to.function("stack 8x1000", lambda *x: torch.stack(x, 1), *((1000,),) * 8)
    to.function("transpose 1024x1024", lambda x: x.t().contiguous(), (1024, 1024))
    to.function("transpose 1x197x12x64", lambda x: x.transpose(1, 2).contiguous(), (1, 197, 12, 64))
    to.function("nchw to nhwc 1x64x112", lambda x: x.permute(0, 2, 3, 1).contiguous(), (1, 64, 112, 112))
    to.function("transpose 4096x3", lambda x: x.t().contiguous(), (4096, 3))
    to.function("gather 500x128", lambda x, i: x.gather(0, i), (500, 128), lambda: torch.randint(0, 500, (300, 128)))
    to.function("index rows 4096 of 1000x64", lambda x, i: x[i], (1000, 64), lambda: torch.randint(0, 1000, (4096,)))
    to.function("index columns", lambda x, i: x[:, i], (256, 512), lambda: torch.randint(0, 512, (100,)))
    to.function("pad reflect 64x56", lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), (1, 64, 56, 56))


def _others(to: Cases) -> None:
    """Interpolation, norms and softmax."""
    to.function("upsample bilinear 64x28", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 64, 28, 28))
    to.function("upsample nearest 64x28", lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), (1, 64, 28, 28))
    to.function("group norm 1x64x56", lambda x: F.group_norm(x, 8), (1, 64, 56, 56))
    to.function("layer norm 197x768", lambda x: F.layer_norm(x, (768,)), (197, 768))
    to.function("softmax 12x197x197", lambda x: x.softmax(-1), (12, 197, 197))
    to.function("softmax channels 1x21x128", lambda x: x.softmax(1), (1, 21, 128, 128))
    to.function("masked softmax 12x77x77", lambda x, m: (x + m).softmax(-1), (12, 77, 77), (77, 77))


class _GraphLayer(nn.Module):
    """A layer of a graph network (Kipf and Welling's): sums over edges of a linear layer's rows."""

    def __init__(self, width: int, expanded: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.expanded = expanded

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        y = self.linear(x)
        if self.expanded:
            sent = torch.gather(y, 0, source[:, None].expand(-1, y.shape[1]))
            return torch.zeros_like(y).scatter_add(0, target[:, None].expand(-1, y.shape[1]), sent).relu()
        return torch.zeros_like(y).index_add(0, target, y[source]).relu()


def _graphs(to: Cases) -> None:
    """Rows that are added where an index says: graph networks."""

    def places(rows: int, count: int) -> Callable[[], Tensor]:
        return lambda: torch.randint(0, rows, (count,))

    def expanded(x: Tensor, i: Tensor, u: Tensor) -> Tensor:
        return torch.scatter_add(x, 0, i[:, None].expand(-1, x.shape[1]), u)

    for rows, edges, width in (
        (100, 500, 16),
        (100, 500, 64),
        (1000, 5000, 32),
        (1000, 5000, 128),
        (3000, 12000, 64),
        (10000, 40000, 64),
    ):
        size = f"{edges} of {rows}x{width}"
        inputs: tuple[Source, ...] = ((rows, width), places(rows, edges), (edges, width))
        to.function(f"graph index_add {size}", lambda x, i, u: torch.index_add(x, 0, i, u), *inputs)
        to.function(f"graph scatter_add {size}", expanded, *inputs)
    for rows, edges, width in ((100, 500, 32), (1000, 5000, 64), (2708, 10556, 64), (5000, 20000, 128)):
        for whole in (False, True):
            to.add(
                f"graph layer {'gather' if whole else 'index'} {edges} of {rows}x{width}",
                lambda width=width, whole=whole: _GraphLayer(width, whole),
                (rows, width),
                places(rows, edges),
                places(rows, edges),
            )


FAMILIES = (
    _recurrent,
    _products,
    _lookups,
    _rolls,
    _reductions,
    _orders,
    _attention,
    _pools,
    _convolutions,
    _copies,
    _graphs,
    _others,
)


def cases() -> dict[str, Callable[[], Case]]:
    """All layers by name."""
    created = Cases()
    for family in FAMILIES:
        family(created)
    return created.cases
