"""Reductions over a slow link while the backward pass goes on: `python -m benchmarks.bench_overlap`.

Two processes of one machine learn with compiled steps; each reduction takes as long as a link of a given bandwidth
would, which is simulated: a token bucket fills while the process sleeps, so that the link takes no core. All gradients
need a given multiple of the time of a step without reductions. Steps whose buckets are reduced while the backward pass
computes the next, and steps that wait for each, take turns in the same two processes.

The most that there is to gain: of a step of one unit, whose backward pass is two thirds and has a bucket a layer,
waiting takes 1 + share, and overlapping 1/3 + 1/9 + share where the link is slower than the backward pass.
"""

from __future__ import annotations

import argparse
import secrets
import time
from statistics import median
from typing import Any

import numpy as np

import tilewright as tw
from examples.distributed.processes import run

LAYERS, ROWS = 6, 128
Array = np.ndarray[Any, Any]


class Link:
    """A reduction, and the time that its bytes need: 2 (n - 1) / n of them go through a link of one rank."""

    def __init__(self, group: Any, bandwidth: float) -> None:
        self.group, self.bandwidth, self._free = group, bandwidth, 0.0

    def __call__(self, part: Array) -> None:
        begin = time.monotonic()
        self.group.all_reduce(part, "avg")
        nbytes = 2 * (self.group.ranks - 1) / self.group.ranks * part.nbytes
        self._free = max(self._free, begin) + nbytes / self.bandwidth
        time.sleep(max(0.0, self._free - time.monotonic()))


def network(width: int) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(width, width, bias=False), nn.ReLU())]
    return nn.Sequential(*layers)


def learn(rank: int, ranks: int, name: str, turns: int, share: float, width: int) -> list[list[float]]:
    """Seconds of each way's steps turn by turn, of the slower process."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    x = np.random.default_rng(rank).standard_normal((ROWS, width)).astype(np.float32)
    y = np.zeros((ROWS, width), np.float32)
    with tw.collective.join(name, rank, ranks, timeout=600) as group:
        link = Link(group, 1e18)
        over: Any = tw.train.overlapped(link)
        example = (torch.from_numpy(x), torch.from_numpy(y))
        steps = [
            tw.compile_step(
                network(width), nn.MSELoss(), tw.train.SGD(0.01), example=example, reduce=r, bucket=4 * width**2
            )
            for r in (over, link)
        ]
        group.barrier()
        alone = []
        for _ in range(5):
            begin = time.perf_counter()
            steps[1](x, y)
            alone.append(time.perf_counter() - begin)
        slowest = group.all_reduce(np.array([median(alone)]), "max")[0]
        link.bandwidth = LAYERS * width * width * 4 * 2 * (ranks - 1) / ranks / (share * float(slowest))
        times: list[list[float]] = [[], []]
        for step in steps:
            step(x, y)
        for _ in range(turns):
            for k, step in enumerate(steps):
                group.barrier()
                begin = time.perf_counter()
                step(x, y)
                times[k].append(float(group.all_reduce(np.array([time.perf_counter() - begin]), "max")[0]))
        over.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument(
        "--shares", type=float, nargs="*", default=[0.25, 0.5, 1.0], help="of a step, that the link takes"
    )
    parser.add_argument("--width", type=int, default=512, help="of the six layers; a bucket is a layer")
    options = parser.parse_args()
    for share in options.shares:
        name = f"overlap-{secrets.token_hex(4)}"
        overlapped, waited = run(2, learn, 2, name, options.turns, share, options.width, seconds=900)[0]
        ratios = sorted(w / o for o, w in zip(overlapped, waited, strict=True))
        quarter = len(ratios) // 4
        print(
            f"a link that takes {share:g} of a step: {1e3 * median(overlapped):.0f} ms overlapped, waiting takes "
            f"{median(ratios):.2f} [{ratios[quarter]:.2f}, {ratios[-1 - quarter]:.2f}] times as long",
            flush=True,
        )


if __name__ == "__main__":
    main()
