"""Two processes learn digits on halves of each batch: by PyTorch's DistributedDataParallel on our backend, and by
compiled steps whose gradients are reduced while the way back goes on."""

from __future__ import annotations

import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tilewright as tw
from examples.distributed.digits import digits
from examples.distributed.processes import run

BATCH = 64


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(144, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def batches(rank: int, ranks: int, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's rows of each batch."""
    x, y = digits(BATCH * steps, seed=1)
    mine = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
    return [
        (torch.from_numpy(x[k * BATCH :][mine].copy()), torch.from_numpy(y[k * BATCH :][mine].copy()))
        for k in range(steps)
    ]


def accuracy(model: nn.Module) -> float:
    x, y = digits(2000, seed=2)
    with torch.no_grad():
        guesses = model(torch.from_numpy(x)).argmax(1)
    return float((guesses == torch.from_numpy(y)).float().mean())


def by_ddp(rank: int, ranks: int, steps: int, path: str) -> dict[str, float]:
    import torch.distributed as dist

    import tilewright.collective  # noqa: F401  (it registers the backend)

    torch.set_num_threads(1)
    dist.init_process_group("tilewright", rank=rank, world_size=ranks, init_method=f"file://{path}")
    model = nn.parallel.DistributedDataParallel(network())
    optimizer, loss = torch.optim.SGD(model.parameters(), 0.3), nn.CrossEntropyLoss()
    begin = time.perf_counter()
    for x, y in batches(rank, ranks, steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    seconds = time.perf_counter() - begin
    result = {"accuracy": accuracy(model.module), "seconds": seconds}
    dist.destroy_process_group()
    return result


def by_compiled_steps(rank: int, ranks: int, steps: int, name: str) -> dict[str, float]:
    torch.set_num_threads(1)
    model, data = network(), batches(rank, ranks, steps)
    with tw.collective.join(name, rank, ranks, timeout=120) as group:
        reduce: Any = tw.train.overlapped(tw.train.averaged(group))
        step = tw.compile_step(
            model, nn.CrossEntropyLoss(), tw.train.SGD(0.3), example=data[0], reduce=reduce, bucket=1 << 14
        )
        group.barrier()
        begin = time.perf_counter()
        for x, y in data:
            step(x, y)
        seconds = time.perf_counter() - begin
        reduce.close()
    model.load_state_dict(step.state_dict())
    return {"accuracy": accuracy(model), "seconds": seconds}


def main(steps: int = 600, ranks: int = 2) -> dict[str, dict[str, float]]:
    """Both ways, and what rank 0 says of them."""
    with tempfile.TemporaryDirectory() as folder:
        ddp = run(ranks, by_ddp, ranks, steps, str(Path(folder) / "store"))[0]
    compiled = run(ranks, by_compiled_steps, ranks, steps, f"digits-{secrets.token_hex(4)}")[0]
    results = {"DDP": ddp, "compiled steps": compiled}
    for name, one in results.items():
        print(f"{name}: {one['accuracy']:.1%} of unseen digits, {steps} steps in {one['seconds']:.2f} s")
    return results
