"""One of two processes that learn together by gloo, with all contenders in it:

    python -m benchmarks.peers.data_parallel CASE STORE RANK OUT ROUNDS SECONDS

Each process has a core of its own, which gloo's threads share with it. Turns begin with a barrier.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROCESSES = 2
PARTS = 8
"""Buckets of a step's gradients, about."""
CONTENDERS = ("buckets", "waiting", "one", "alone", "ddp")


def contenders(case: str) -> dict[str, Callable[[], float]]:
    """A step of each; all but the last are ours:

    buckets  reduced while the backward pass goes on
    waiting  each waited for before the backward pass goes on
    one      bucket of all gradients
    alone    nothing is reduced, in one bucket
    ddp      PyTorch's DistributedDataParallel, with its fused Adam
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import tilewright as tw
    from benchmarks.peers.training import RATE, stepping, task_of

    averaged = tw.train.averaged()
    nbytes = sum(4 * p.numel() for p in task_of(case)[0].parameters())

    def own(reduce: Callable[[Any], Any], bucket: int) -> Callable[[], float]:
        module, loss, batch = task_of(case)
        adam = tw.train.Adam(RATE)
        step = tw.compile_step(module, loss, adam, batch, clip=0.5, reduce=reduce, bucket=bucket)
        arrays = [x.numpy() for x in batch]
        return lambda: step(*arrays)["loss"]

    def ddp() -> Callable[[], float]:
        module, loss, batch = task_of(case)
        wrapped = DistributedDataParallel(module, gradient_as_bucket_view=True)
        return stepping(loss, wrapped, batch)

    torch.manual_seed(0)
    return {
        "buckets": own(averaged, nbytes // PARTS),
        "waiting": own(lambda part: averaged(part).wait(), nbytes // PARTS),
        "one": own(averaged, 1 << 40),
        "alone": own(lambda part: None, 1 << 40),
        "ddp": ddp(),
    }


def main(case: str, store: str, rank: str, out: str, rounds: str, seconds: str) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(rank) % len(cores)]})
    import torch.distributed.nn.functional  # noqa: F401  (before there is a group, which it would keep)
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=PROCESSES)
    calls = contenders(case)
    losses = {name: call() for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    for _ in range(int(rounds)):
        for name, call in calls.items():
            distributed.barrier()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
        if _any(time.perf_counter() - begin > float(seconds)):
            break
    Path(out).write_text(json.dumps({"times": times, "losses": losses}))
    distributed.destroy_process_group()


def _any(holds: bool) -> bool:
    """Whether it holds in one of the processes: they end with the same round."""
    import torch
    from torch import distributed

    result = torch.tensor([float(holds)])
    distributed.all_reduce(result)
    return bool(result.item())


if __name__ == "__main__":
    main(*sys.argv[1:])
