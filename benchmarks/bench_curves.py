"""Loss curves of compiled learning steps beside eager PyTorch's: `python -m benchmarks.bench_curves`.

A transformer that predicts the next character of this repository's documents, and a ResNet with batch norm on pictures
of ten kinds in noise; 1,000 steps of Adam each, eager and compiled from the same weights on the same batches, seed by
seed. Rounding makes two such runs part sooner or later. What counts is whether they part further than seeds do.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import tilewright as tw
from benchmarks import harness
from benchmarks.torch_vision import BasicBlock

ROOT = Path(__file__).parents[1]
WINDOW = 50
"""Steps whose losses a point of a curve is the mean of."""
RATE, CLIP = 1e-3, 1.0
Batch = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """A network and its batches, both of a seed."""

    build: Callable[[], nn.Module]
    batches: Callable[[np.random.Generator], Iterator[Batch]]


class Transformer(nn.Module):
    """Two causal layers of width 64 on 64 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(128, 64), nn.Embedding(64, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 128)
        self.register_buffer("mask", torch.full((64, 64), float("-inf")).triu(1))

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens) + self.places.weight
        return self.head(self.layers(x, self.mask, is_causal=True)).flatten(0, 1)


class ResNet(nn.Module):
    """Three blocks of 16, 32 and 64 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(BasicBlock(16, 16, 1), BasicBlock(16, 32, 2), BasicBlock(32, 64, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(self.first(x)).mean((2, 3)))


def characters(rng: np.random.Generator) -> Iterator[Batch]:
    """16 pieces of the documents, and what follows each character."""
    text = b"".join(path.read_bytes() for path in sorted((ROOT / "docs").rglob("*.md")))
    codes = np.frombuffer(text, np.uint8).astype(np.int64) % 128
    while True:
        at = rng.integers(0, len(codes) - 65, 16)[:, None] + np.arange(65)
        yield codes[at[:, :-1]], codes[at[:, 1:]].reshape(-1)


def pictures(rng: np.random.Generator) -> Iterator[Batch]:
    """32 pictures of ten kinds, in noise."""
    kinds = np.random.default_rng(0).normal(size=(10, 3, 4, 4)).repeat(4, 2).repeat(4, 3)
    while True:
        labels = rng.integers(0, 10, 32)
        yield (0.3 * kinds[labels] + rng.normal(size=(32, 3, 16, 16))).astype(np.float32), labels


TASKS = {"transformer": Task(Transformer, characters), "resnet": Task(ResNet, pictures)}


def loss_of(model: nn.Module, x: Any, y: Any) -> Any:
    return F.cross_entropy(model(x), y)


def eager(model: nn.Module, example: Batch) -> Callable[..., float]:
    optimizer = torch.optim.Adam(model.parameters(), RATE)

    def step(*batch: Any) -> float:
        optimizer.zero_grad()
        loss = loss_of(model, *map(torch.as_tensor, batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return float(loss.detach())

    return step


def compiled(model: nn.Module, example: Batch) -> Callable[..., float]:
    step = tw.compile_step(model, loss_of, tw.train.Adam(RATE), example, clip=CLIP)
    return lambda *batch: step(*batch)["loss"]


KINDS = {"eager": eager, "compiled": compiled}


def curve(task: str, kind: str, seed: int, steps: int) -> list[float]:
    """The mean losses of windows of steps."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    chosen = TASKS[task]
    model = chosen.build().train()
    step = KINDS[kind](model, next(chosen.batches(np.random.default_rng(seed))))
    batches = chosen.batches(np.random.default_rng(1000 + seed))
    losses = [step(*next(batches)) for _ in range(steps)]
    return [float(np.mean(losses[k : k + WINDOW])) for k in range(0, steps, WINDOW)]


def row(task: str, curves: dict[str, list[list[float]]]) -> list[str]:
    """The mean loss at the end and over all steps, and how far the curves part, in deviations of eager's seeds."""
    one, two = (np.asarray(curves[kind]) for kind in KINDS)
    deviation = one.std(axis=0, ddof=1)
    parted = np.abs(one.mean(0) - two.mean(0)) / deviation
    cells = []
    for measure in (lambda c: c[:, -4:].mean(1), lambda c: c.mean(1)):
        a, b = measure(one), measure(two)
        cells += [f"{v.mean():.4f} ± {v.std(ddof=1):.4f}" for v in (a, b)]
        cells.append(f"{harness.exact_p(a, b):.2f}")
    others = np.abs(one[:, None] - one[None]).sum() / (len(one) * (len(one) - 1) * one.shape[1])
    return [task, *cells, f"{parted.max():.2f}", f"{np.abs(one - two).mean() / others:.2f}"]


HEADER = [
    "network",
    "last 200 steps, eager",
    "compiled",
    "p",
    "all steps, eager",
    "compiled",
    "p",
    "means part by",
    "one seed's part by",
]
_NOTE = """\
Cross entropies, means ± deviations over seeds; p as labels are exchanged (all splits). "Means part by": the largest
distance of the two mean curves at any of their points, in deviations of eager's seeds there. "One seed's part by": the
mean distance of the two runs of a seed, by that of two eager runs of different seeds.
"""


def draw(curves: dict[str, dict[str, list[list[float]]]], path: Path) -> None:
    """Each run's curve, eager ones below; nothing where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(curves), figsize=(5 * len(curves), 3.6), squeeze=False)
    styles = {"eager": {"color": "#ff7f0e", "lw": 2.5}, "compiled": {"color": "#1f77b4", "lw": 0.8}}
    for axes, (task, kinds) in zip(panels[0], curves.items(), strict=True):
        for kind, runs in kinds.items():
            for k, run in enumerate(runs):
                x = WINDOW * (np.arange(len(run)) + 0.5)
                axes.plot(x, run, label=kind if k == 0 else None, **styles[kind])
        axes.set_title(task, fontsize=10)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    curves: dict[str, dict[str, list[list[float]]]] = {}
    for task in options.tasks.split(","):
        runs: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
        for seed in range(options.seeds):
            for kind, candidate in runs.items():
                candidate.append(curve(task, kind, seed, options.steps))
                print(task, seed, kind, f"{candidate[-1][0]:.4f} ... {candidate[-1][-1]:.4f}", flush=True)
        curves[task] = runs
        print("  ".join(row(task, runs)), flush=True)
    if options.no_report:
        return
    table = harness.markdown_table(HEADER, [row(task, runs) for task, runs in curves.items()])
    text = f"{table}\n{options.seeds} seeds, {options.steps} steps. {_NOTE}\n![curves](curves.png)\n"
    harness.write_report("curves", "Loss curves of compiled steps beside eager PyTorch's", curves, text)
    draw(curves, harness.RESULTS / "curves.png")


if __name__ == "__main__":
    main()
