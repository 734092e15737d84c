"""Train both networks side by side: `python -m examples.mnist_like`, or `make demo-train`.

All learners see the same batches, epoch by epoch in turns. Fails if one of ours is less accurate than PyTorch's or
scikit-learn's by more than half a percent.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext

from rich.console import Console
from rich.live import Live

from examples.mnist_like.digits import Digits, load
from examples.mnist_like.learners import LEARNERS, installed
from examples.mnist_like.networks import NETWORKS, accuracy
from examples.mnist_like.view import Row, lines, picture

ALLOWED = 0.005
"""By how much ours may be less accurate than another's."""
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.mnist_like", description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learners", help="names with commas between; all that are installed if left out")
    options = parser.parse_args(arguments)
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)  # before JAX is imported
    console = Console()
    data = load(options.seed)
    chosen = options.learners.split(",") if options.learners else installed()
    missing = [name for name in LEARNERS if name not in installed()]
    rows: list[Row] = []
    live = Live(console=console, refresh_per_second=8) if console.is_terminal else None

    def changed() -> None:
        if live is not None:
            live.update(picture(rows, missing))

    with live or nullcontext():
        for name in NETWORKS:
            mine = [Row(name, learner) for learner in chosen]
            rows += mine
            train(mine, data, options.epochs, options.batch, options.seed, changed)
    if live is None:
        lines(rows, console)
    return compared(rows, references(data), console)


def train(rows: list[Row], data: Digits, epochs: int, batch: int, seed: int, changed: Callable[[], None]) -> None:
    """Train one network by the learner of each row, in turns, and note in the rows how it goes."""
    learners = []
    for row in rows:
        start = time.perf_counter()
        learners.append(LEARNERS[row.learner][1](NETWORKS[row.network], batch))
        row.first = time.perf_counter() - start
    for epoch in range(epochs):
        batches = list(data.batches(batch, seed + epoch))
        for row, learner in zip(rows, learners, strict=True):
            start = time.perf_counter()
            losses = [learner.step(*item) for item in batches]
            seconds = time.perf_counter() - start
            if epoch:
                row.seconds += seconds
            else:
                row.first += seconds
            row.losses.append(sum(losses) / len(losses))
            row.accuracy = accuracy(learner.weights(), data.test, data.test_labels)
            changed()


def references(data: Digits) -> dict[str, float]:
    """scikit-learn's own accuracy with both models."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    models = (LogisticRegression(max_iter=1000), MLPClassifier((128,), max_iter=200, random_state=0))
    result = {}
    for name, model in zip(NETWORKS, models, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own criterion of an end is stricter than accuracy asks for
            model.fit(data.train, data.train_labels)
        result[name] = float(model.score(data.test, data.test_labels))
    return result


def compared(rows: list[Row], sklearn: dict[str, float], console: Console) -> int:
    """Prints how ours compares; 1 if it is less accurate than another."""
    code = 0
    for name, share in sklearn.items():
        mine = {row.learner: row for row in rows if row.network == name}
        ours = mine.pop("Tilewright", None)
        if ours is None:
            continue
        peers = {"scikit-learn": share, **{learner: row.accuracy for learner, row in mine.items()}}
        reached = ", ".join(f"{peer} {candidate:.2%}" for peer, candidate in peers.items())
        times = ", ".join(f"{row.seconds / ours.seconds:.1f}x as fast as {n}" for n, row in mine.items())
        console.print(f"{name}: {ours.accuracy:.2%} ({reached}) {times}", highlight=False, soft_wrap=True)
        if ours.accuracy < max(peers.values()) - ALLOWED:
            console.print(f"[red]failed[/red] {name} is less accurate than the others")
            code = 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
