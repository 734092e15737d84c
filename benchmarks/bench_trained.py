"""Models trained here in fewer bits and compressed: `make bench-trained`, or `python -m benchmarks.bench_trained`.

A convolutional network and a small transformer on scikit-learn's handwritten digits, a network on its table of breast
cancer. Accuracy is on a third of the data that training does not see. Bars: int8 within 0.5 % of f32, int4w within 1 %;
a file at least 8 times smaller within 1 %, and 30 times on two of them, where it is pruned and trained again.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

import tilewright as tw
from benchmarks.harness import RESULTS, markdown_table, write_markdown
from tilewright.compression.recipe import Recipe

HELD_OUT = 3
"""One of so many samples is not trained on."""
DROPS = {"int8": 0.005, "int4w": 0.01}
ROWS = 32
"""Samples of a call."""
RECIPES = (
    ("80 % pruned, 16 values", Recipe(prune=0.8, stages=3, values=16, epochs=10, rate=2e-3)),
    ("90 % pruned, trained", Recipe(prune=0.9, stages=4, values=16, epochs=10, rate=2e-3)),
    ("95 % pruned, trained", Recipe(prune=0.95, stages=6, values=16, epochs=10, rate=2e-3)),
    ("95 % by movement", Recipe(prune=0.95, by="movement", stages=6, values=16, epochs=10, rate=2e-3)),
    ("95 %, labels", Recipe(prune=0.95, stages=6, values=16, epochs=10, rate=2e-3, temperature=2.0, labels=0.5)),
    ("Tucker, 80 % pruned", Recipe(energy=0.8, prune=0.8, stages=3, values=16, epochs=15, rate=2e-3)),
    ("CP, 60 % pruned", Recipe(energy=0.8, convolutions="cp", prune=0.6, stages=3, values=16, epochs=15, rate=2e-3)),
)


class Attending(nn.Module):
    """Eight rows of a digit as tokens through two layers of a transformer."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.place = nn.Parameter(torch.randn(8, width) / 8)
        layers = (nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True) for _ in range(2))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x.reshape(-1, 8, 8)) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def tabular() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))


@dataclass(frozen=True)
class Task:
    """A model's name, how it is made, and its data."""

    name: str
    make: Callable[[], nn.Module]
    load: Callable[..., Any]

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        bunch = self.load()
        x = bunch.data.astype(np.float32)
        x = (x - x.mean(0)) / (x.std(0) + 1e-3) if x.shape[1] == 30 else x / 16
        order = np.random.default_rng(0).permutation(len(x))
        return x[order].astype(np.float32), bunch.target[order]


TASKS = (
    Task("digits CNN", convolutional, load_digits),
    Task("digits transformer", Attending, load_digits),
    Task("tabular MLP", tabular, load_breast_cancer),
)


def trained(task: Task, x: np.ndarray, y: np.ndarray, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    module = task.make()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs[chosen]), targets[chosen]).backward()
            optimizer.step()
    return module.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--tasks", default=",".join(task.name for task in TASKS))
    parser.add_argument(
        "--without-search", action="store_true", help="recipes that are named alone, no search among others"
    )
    parser.add_argument("--sizes", action="store_true", help="compression alone")
    parser.add_argument("--recipes", default="", help="of these names alone, with semicolons between")
    args = parser.parse_args()
    torch.set_num_threads(1)
    bits, sizes = [], []
    for task in (t for t in TASKS if t.name in args.tasks.split(",")):
        x, y = task.data()
        cut = len(x) // HELD_OUT
        module = trained(task, x[cut:], y[cut:], args.epochs)
        example = torch.from_numpy(x[:ROWS])

        def accuracy(model: Any, x: np.ndarray = x[:cut], y: np.ndarray = y[:cut]) -> float:
            return float(np.mean(np.argmax(np.asarray(model(x)), 1) == y))

        samples = [x[cut + k : cut + k + ROWS] for k in range(0, 8 * ROWS, ROWS)]
        for precision, drop in DROPS.items() if not args.sizes else ():
            arguments = {"metric": accuracy, "max_drop": drop, "calibrate": samples}
            report = tw.quantize(module, (example,), precision=precision, **arguments).report
            kinds = {t: sum(r.type == t for r in report.layers) for t in dict.fromkeys(r.type for r in report.layers)}
            numbers = [f"{100 * v:.2f}" for v in (*report.metric, report.drop, drop)]
            layers = ", ".join(f"{n} {t}" for t, n in kinds.items())
            bits.append([task.name, precision, *numbers, layers, f"{report.speedup:.2f}"])
            print(bits[-1], flush=True)
        starts = range(cut, len(x) - ROWS + 1, ROWS)
        every, known = [x[k : k + ROWS] for k in starts], [y[k : k + ROWS].astype(np.int64) for k in starts]
        wanted = [r for r in RECIPES if not args.recipes or r[0] in args.recipes.split(";")]
        for name, chosen in (("the first that holds", None), *wanted)[args.without_search :]:
            options: dict[str, Any] = {"metric": accuracy, "max_drop": 0.01, "labels": known}
            small = tw.compress(module, (example,), calibrate=every, recipe=chosen, **options)
            done = small.report
            numbers = [f"{100 * v:.2f}" for v in (*done.metric, done.metric[0] - done.metric[1])]
            sizes.append([task.name, name, *numbers, str(done.nbytes[0]), str(done.nbytes[1]), f"{done.ratio:.1f}"])
            print(sizes[-1], flush=True)
    head = ["model", "recipe", "accuracy %", "now", "drop", "bytes of weights", "of the file", "times smaller"]
    text = "Bars: 8 times within 1 %; 30 times on two.\n\n" + markdown_table(head, sizes)
    picture = draw(sizes)
    text += f"\n\n![times smaller against loss]({picture.name})" if picture is not None else ""
    write_markdown("compressed", "Models trained here, compressed", text)
    if bits:
        head = ["model", "type", "accuracy % in f32", "now", "drop", "bar", "layers", "times as fast"]
        write_markdown("trained", "Models trained here, in fewer bits, 1 thread", markdown_table(head, bits))


def draw(rows: list[list[str]]) -> Path | None:
    """results/compressed.png: the loss of each recipe against how many times smaller the file is, a line through those
    that no other one is better than in both; nothing where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for model in dict.fromkeys(row[0] for row in rows):
        points = sorted((float(r[7]), float(r[4]), r[1]) for r in rows if r[0] == model)
        best = [p for p in points if not any(q[0] >= p[0] and q[1] < p[1] for q in points)]
        (line,) = axes.plot([p[0] for p in best], [p[1] for p in best], label=model)
        axes.scatter([p[0] for p in points], [p[1] for p in points], color=line.get_color())
        for smaller, drop, name in points:
            axes.annotate(name, (smaller, drop), fontsize=6, xytext=(3, 3), textcoords="offset points")
    axes.axhline(1, color="#999999", linestyle=":")
    axes.set(xscale="log", xlabel="times smaller", ylabel="accuracy lost, %")
    axes.legend()
    path = RESULTS / "compressed.png"
    figure.savefig(path, dpi=110, bbox_inches="tight")
    return path


if __name__ == "__main__":
    main()
