"""Layers that networks lean on, against eager PyTorch in the same process: where we would be slower than it.

    python -m benchmarks.bench_cliffs [--only NAME...] [--target x86-64-v3] [--rounds 9] [--write]

One thread each, calls in turns, the least of the turns on each side; the ratio is eager's time by ours, so 1 is level
and less than 1 a cliff. Results are checked against eager first. `--write` puts the table into
results/cliffs-TARGET.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

import tilewright as tw
from benchmarks.harness import RESULTS

TURN_SECONDS = 0.01
TOLERANCE = 1e-4
"""Of the largest magnitude of an output: eager itself rounds in another order."""


@dataclass(frozen=True, slots=True)
class Case:
    """A layer by name: what eager runs, its inputs by shape, and the function of fresh inputs from a seed."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A layer's times, microseconds of a call, and eager's time by ours."""

    name: str
    eager: float
    ours: float
    ratio: float


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
    """Numbers no two of which are equal, for the order among equals is nobody's promise."""
    return lambda: torch.randperm(math.prod(shape)).reshape(shape) / math.prod(shape)


def cases() -> dict[str, Callable[[], Case]]:
    """All layers by name, each made when it is asked for."""
    found: dict[str, Callable[[], Case]] = {}

    def add(name: str, make: Callable[[], nn.Module], *inputs: Callable[[], Tensor] | tuple[int, ...]) -> None:
        def case() -> Case:
            torch.manual_seed(0)
            given = tuple(_random(*i) if isinstance(i, tuple) else i() for i in inputs)
            return Case(name, make().eval(), given)

        found[name] = case

    def function(name: str, call: Callable[..., object], *inputs: Callable[[], Tensor] | tuple[int, ...]) -> None:
        add(name, lambda: _Function(call), *inputs)

    for cell, maker in (("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn", nn.RNN)):
        for steps, batch, size in ((100, 1, 256), (50, 8, 256), (20, 1, 64), (32, 32, 128), (100, 4, 512)):
            add(
                f"{cell} {steps}x{batch}x{size}",
                lambda maker=maker, size=size: _Sequences(maker(size, size, batch_first=False)),
                (steps, batch, size),
            )
    for rows, width, out in ((77, 512, 2048), (77, 768, 3072), (50, 768, 768), (197, 384, 1536), (1, 768, 3072)):
        add(
            f"norm+linear {rows}x{width}x{out}",
            lambda width=width, out=out: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out)),
            (1, rows, width),
        )
    for classes, count in ((30522, 128), (1000, 2048), (50257, 1024)):
        add(
            f"embedding {classes} of {count}x768",
            lambda classes=classes: nn.Embedding(classes, 768),
            lambda classes=classes, count=count: torch.randint(0, classes, (1, count)),
        )
    function("roll 1x56x56x96", lambda x: torch.roll(x, (-3, -3), (1, 2)), (1, 56, 56, 96))
    function("roll 1x14x14x384", lambda x: torch.roll(x, (-3, -3), (1, 2)), (1, 14, 14, 384))
    function("roll rows 512x1000", lambda x: torch.roll(x, 1, 1), (512, 1000))
    function("roll+windows 1x56x56x96", _window_partition, (1, 56, 56, 96))
    function("windows+roll 64x49x96", _window_reverse, (64, 49, 96))
    function("sum outer+inner 64x128x56", lambda x: x.sum((0, 2)), (64, 128, 56))
    function("sum outer+inner 8x64x56x56", lambda x: x.sum((0, 2, 3)), (8, 64, 56, 56))
    function("sum outer 512x1000", lambda x: x.sum(0), (512, 1000))
    function("sum inner 512x1000", lambda x: x.sum(1), (512, 1000))
    function("sum middle 8x512x64", lambda x: x.sum(1), (8, 512, 64))
    function("max outer+inner 16x64x99", lambda x: x.amax((0, 2)), (16, 64, 99))
    function("var 32x1000", lambda x: x.var(1), (32, 1000))
    function("logsumexp 128x1000", lambda x: x.logsumexp(1), (128, 1000))
    function("cumsum last 128x1024", lambda x: x.cumsum(1), (128, 1024))
    function("cumsum first 1024x128", lambda x: x.cumsum(0), (1024, 128))
    function("cumsum long 100000", lambda x: x.cumsum(0), (100000,))
    function("sort 1000", lambda x: torch.sort(x, -1), _distinct(1, 1000))
    function("sort 64x1000", lambda x: torch.sort(x, -1), _distinct(64, 1000))
    function("sort 1000x32", lambda x: torch.sort(x, -1), _distinct(1000, 32))
    function("sort 100000", lambda x: torch.sort(x, -1), _distinct(1, 100000))
    function("topk 5 of 64x1000", lambda x: torch.topk(x, 5), _distinct(64, 1000))
    function("topk 50 of 8x50257", lambda x: torch.topk(x, 50), _distinct(8, 50257))
    function("topk 300 of 8400", lambda x: torch.topk(x, 300), _distinct(1, 8400))
    function("argmax 8x50257", lambda x: x.argmax(-1), (8, 50257))
    function("argmax 128x1000", lambda x: x.argmax(-1), (128, 1000))
    function("argmax channels 1x21x256x256", lambda x: x.argmax(1), (1, 21, 256, 256))
    function("max with index 128x1000", lambda x: x.max(-1), (128, 1000))
    for b, m, k, n in ((64, 16, 16, 16), (256, 8, 32, 8), (12, 49, 32, 49), (32, 1, 64, 77), (1000, 4, 4, 4)):
        function(f"bmm {b}x{m}x{k}x{n}", torch.bmm, (b, m, k), (b, k, n))
    function("attention one key", F.scaled_dot_product_attention, *((1, 8, 64, 64), (1, 8, 1, 64), (1, 8, 1, 64)))
    function(
        "attention one query", F.scaled_dot_product_attention, *((1, 12, 1, 64), (1, 12, 512, 64), (1, 12, 512, 64))
    )
    function("attention 12x77x64", F.scaled_dot_product_attention, *((1, 12, 77, 64),) * 3)
    for channels, size, out in ((64, 56, 3), (256, 14, 3), (512, 13, 6), (512, 7, 1), (256, 32, 7)):
        add(
            f"adaptive pool {channels}x{size} to {out}",
            lambda out=out: nn.AdaptiveAvgPool2d(out),
            (1, channels, size, size),
        )
    add("adaptive max 64x56 to 3", lambda: nn.AdaptiveMaxPool2d(3), (1, 64, 56, 56))
    add("max pool 3x3 s2 64x112", lambda: nn.MaxPool2d(3, 2, 1), (1, 64, 112, 112))
    add("max pool 2x2 s2 37x75", lambda: nn.MaxPool2d(2, 2), (1, 37, 75, 75))
    add("max pool 3x3 s1 64x13x7", lambda: nn.MaxPool2d(3, 1, 1), (1, 64, 13, 7))
    add("max pool 5x5 s1 128x20", lambda: nn.MaxPool2d(5, 1, 2), (1, 128, 20, 20))
    add("average pool 3x3 s2 64x55", lambda: nn.AvgPool2d(3, 2, 1), (1, 64, 55, 55))
    add("average pool 7x7 s7 32x56", lambda: nn.AvgPool2d(7), (1, 32, 56, 56))
    add("max pool 1d 64x1000", lambda: nn.MaxPool1d(2), (1, 64, 1000))
    add("max pool 3d 32x8x28x28", lambda: nn.MaxPool3d(2), (1, 32, 8, 28, 28))
    add("average pool 3d 32x8x28x28", lambda: nn.AvgPool3d(2), (1, 32, 8, 28, 28))
    for c, k, size, kernel, groups, stride in (
        (128, 128, 28, 3, 32, 1),
        (96, 96, 28, 3, 8, 1),
        (60, 240, 28, 1, 3, 1),
        (24, 72, 14, 3, 6, 2),
        (30, 30, 33, 5, 10, 1),
        (256, 256, 14, 3, 2, 1),
    ):
        add(
            f"conv {c}-{k}-{size} k{kernel} g{groups} s{stride}",
            lambda c=c, k=k, kernel=kernel, groups=groups, stride=stride: nn.Conv2d(
                c, k, kernel, stride, kernel // 2, groups=groups
            ),
            (1, c, size, size),
        )
    for c, k, size, groups in ((64, 64, 28, 4), (64, 64, 28, 64), (48, 24, 14, 3)):
        add(
            f"transposed {c}-{k}-{size} g{groups}",
            lambda c=c, k=k, groups=groups: nn.ConvTranspose2d(c, k, 4, 2, 1, groups=groups),
            (1, c, size, size),
        )
    add("conv3d 16-32-8x28", lambda: nn.Conv3d(16, 32, 3, padding=1), (1, 16, 8, 28, 28))
    add("conv3d 3-32-8x56 s2", lambda: nn.Conv3d(3, 32, 3, 2, 1), (1, 3, 8, 56, 56))
    add("conv3d depthwise 32-8x28", lambda: nn.Conv3d(32, 32, 3, padding=1, groups=32), (1, 32, 8, 28, 28))
    add("conv3d 1x3x3 64-4x28", lambda: nn.Conv3d(64, 64, (1, 3, 3), padding=(0, 1, 1)), (1, 64, 4, 28, 28))
    add("conv1d 64-64-1000 k3", lambda: nn.Conv1d(64, 64, 3, padding=1), (1, 64, 1000))
    add("depthwise 96x57 k7", lambda: nn.Conv2d(96, 96, 7, padding=3, groups=96), (1, 96, 57, 57))
    function("concat channels 4x32x56", lambda *x: torch.cat(x, 1).relu(), *((1, 32, 56, 56),) * 4)
    function("concat last 4x1000x24", lambda *x: torch.cat(x, -1), *((1000, 24),) * 4)
    function("concat chain", lambda x, y: torch.cat((torch.cat((x, y), 1), x), 1), (64, 100), (64, 60))
    function("stack 8x1000", lambda *x: torch.stack(x, 1), *((1000,),) * 8)
    function("transpose 1024x1024", lambda x: x.t().contiguous(), (1024, 1024))
    function("transpose 1x197x12x64", lambda x: x.transpose(1, 2).contiguous(), (1, 197, 12, 64))
    function("nchw to nhwc 1x64x112", lambda x: x.permute(0, 2, 3, 1).contiguous(), (1, 64, 112, 112))
    function("transpose 4096x3", lambda x: x.t().contiguous(), (4096, 3))
    function("gather 500x128", lambda x, i: x.gather(0, i), (500, 128), lambda: torch.randint(0, 500, (300, 128)))
    function("index rows 4096 of 1000x64", lambda x, i: x[i], (1000, 64), lambda: torch.randint(0, 1000, (4096,)))
    function("index columns", lambda x, i: x[:, i], (256, 512), lambda: torch.randint(0, 512, (100,)))
    function("pad reflect 64x56", lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), (1, 64, 56, 56))
    function("upsample bilinear 64x28", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 64, 28, 28))
    function("upsample nearest 64x28", lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), (1, 64, 28, 28))
    function("group norm 1x64x56", lambda x: F.group_norm(x, 8), (1, 64, 56, 56))
    function("layer norm 197x768", lambda x: F.layer_norm(x, (768,)), (197, 768))
    function("softmax 12x197x197", lambda x: x.softmax(-1), (12, 197, 197))
    function("softmax channels 1x21x128", lambda x: x.softmax(1), (1, 21, 128, 128))
    function("masked softmax 12x77x77", lambda x, m: (x + m).softmax(-1), (12, 77, 77), (77, 77))
    return found


def measure(case: Case, rounds: int, target: str | None) -> Row:
    """The times of a layer on both sides, in turns; raises where the results differ."""
    model = tw.compile(case.module, case.inputs, dynamic=None, target=target)
    with torch.inference_mode():
        check(case, model)

        def eager() -> object:
            return case.module(*case.inputs)

        def ours() -> object:
            return model(*case.inputs)

        calls = [max(1, round(TURN_SECONDS / once(side))) for side in (eager, ours)]
        turns = [[timed(side, n) for side, n in zip((eager, ours), calls, strict=True)] for _ in range(rounds)]
    ratio = statistics.median(e / o for e, o in turns)
    least = [min(side) * 1e6 for side in zip(*turns, strict=True)]
    return Row(case.name, round(least[0], 1), round(least[1], 1), round(ratio, 3))


def check(case: Case, model: tw.Model) -> None:
    expected, got = case.module(*case.inputs), model(*case.inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    got = got if isinstance(got, tuple | list) else (got,)
    for e, g in zip(expected, got, strict=True):
        error = np.abs(np.asarray(g, np.float64) - e.numpy().astype(np.float64)).max(initial=0)
        bound = TOLERANCE * max(1.0, float(e.abs().max()))
        if not error <= bound:
            raise SystemExit(f"{case.name}: differs from eager by {error:.2g}, expected at most {bound:.2g}")


def once(side: Callable[[], object]) -> float:
    """Seconds of a warm call."""
    side()
    return min(timed(side, 1) for _ in range(3))


def timed(side: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        side()
    return (time.perf_counter() - start) / calls


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_cliffs", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="layers whose names contain one of these")
    parser.add_argument("--target", default=None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console(width=120)
    rows = []
    for name, make in cases().items():
        if not any(part in name for part in options.only):
            continue
        try:
            rows.append(measure(make(), options.rounds, options.target))
        except tw.Error as error:
            console.print(f"{name}: {error}", markup=False)
            continue
        r = rows[-1]
        console.print(f"{r.ratio:6.2f}  {r.name:36s} eager {r.eager:10.1f} µs  ours {r.ours:10.1f} µs", markup=False)
    if options.write:
        text = json.dumps([asdict(r) for r in rows], indent=1)
        (RESULTS / f"cliffs-{options.target or 'host'}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
