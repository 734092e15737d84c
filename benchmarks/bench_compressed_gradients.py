"""Gradients in fewer bits on a trained transformer: `python -m benchmarks.bench_compressed_gradients`.

Two processes learn digits by compiled steps, each on half of a batch: a row of pixels is a token of a transformer with
some 130,000 weights. For the exact mean and for each method: how many times fewer bytes travel, processor time of a
step's reductions, and the accuracy on unseen digits, as the mean and range of several seeds.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import tilewright as tw
from examples.distributed.digits import digits
from examples.distributed.processes import run

WIDTH, LAYERS, BATCH, UNSEEN = 64, 3, 64, 4000
AVERAGED = 10
"""Sets of weights, from the last quarter of the steps, whose mean is tested: accuracy changes from step to step."""
METHODS: dict[str, dict[str, Any]] = {
    "exact": {},
    "fp16": {},
    "int8": {},
    "top-k": {"share": 0.05, "start": 50},
    "1-bit": {"start": 50},
    "powersgd": {"rank": 8, "start": 50},
}


def network(seed: int) -> Any:
    import torch
    from torch import nn

    class Rows(nn.Module):
        """Images f32[n, 144] to scores f32[n, 10]: the 12 rows are tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(12, WIDTH)
            self.places = nn.Parameter(torch.randn(12, WIDTH) * 0.1)
            layer = nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, 0.0, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False, norm=nn.LayerNorm(WIDTH))
            self.scores = nn.Linear(WIDTH, 10)

        def forward(self, x: Any) -> Any:
            tokens = self.embed(x.reshape(-1, 12, 12)) + self.places
            return self.scores(self.layers(tokens).mean(1))

    torch.manual_seed(seed)
    return Rows()


def learn(rank: int, ranks: int, name: str, method: str, steps: int, seed: int) -> tuple[float, float, float]:
    """Accuracy, the ratio of bytes, and milliseconds of processor time that a step's reductions take."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    x, y = digits(BATCH * steps, seed=10 + seed)
    spent = [0.0]
    with tw.collective.join(name, rank, ranks, timeout=600) as group:
        compressed = None if method == "exact" else tw.collective.Compressed(group, method, **METHODS[method])
        reduction: Any = compressed or tw.train.averaged(group)

        def reduce(part: np.ndarray[Any, Any]) -> None:
            begin = time.thread_time()
            reduction(part)
            spent[0] += time.thread_time() - begin

        model = network(seed)
        example = (torch.from_numpy(x[: BATCH // ranks]), torch.from_numpy(y[: BATCH // ranks]))
        optimizer = tw.train.SGD(0.01, momentum=0.9)
        step = tw.compile_step(model, nn.CrossEntropyLoss(), optimizer, example=example, reduce=reduce)
        sets: list[dict[str, Any]] = []
        for k in range(steps):
            rows = slice(k * BATCH + rank * BATCH // ranks, k * BATCH + (rank + 1) * BATCH // ranks)
            step(x[rows], y[rows])
            if k >= 3 * steps // 4 and (steps - 1 - k) % max(1, steps // 4 // AVERAGED) == 0:
                sets.append({name: value.clone() for name, value in step.state_dict().items()})
    model.load_state_dict({name: torch.stack([one[name] for one in sets]).mean(0) for name in sets[0]})
    model.eval()
    unseen, wanted = digits(UNSEEN, seed=2)
    with torch.no_grad():
        guesses = model(torch.from_numpy(unseen)).argmax(1).numpy()
    ratio = 1.0 if compressed is None else compressed.ratio
    return float((guesses == wanted).mean()), ratio, 1e3 * spent[0] / steps


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    options = parser.parse_args(arguments)
    for method in options.methods:
        results = [
            run(2, learn, 2, f"compressed-{secrets.token_hex(4)}", method, options.steps, seed, seconds=1800)[0]
            for seed in range(options.seeds)
        ]
        accuracies, ratio, added = [100 * r[0] for r in results], results[0][1], min(r[2] for r in results)
        low, high = min(accuracies), max(accuracies)
        print(
            f"{method:8} {ratio:5.1f} times fewer bytes, {added:6.2f} ms a step, "
            f"{np.mean(accuracies):.2f} % [{low:.2f}, {high:.2f}] of unseen digits",
            flush=True,
        )


if __name__ == "__main__":
    main()
