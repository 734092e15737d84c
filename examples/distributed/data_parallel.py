"""Two processes learn on halves of each batch: by PyTorch's DistributedDataParallel on our backend, and by compiled
steps whose gradients are reduced while the backward pass goes on. They learn digits, by a small network and by
ResNet-18."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # which DDP imports in each process otherwise
from torch import nn

import tilewright as tw
from examples.distributed.digits import digits
from examples.distributed.processes import run
from examples.distributed.resnet import ResNet18


@dataclass(frozen=True)
class Task:
    """Something to learn: `shaped` makes a network's input of images f32[n, 144]; `bucket` is the size, in bytes, from
    which compiled steps hand gradients over."""

    network: Callable[[], nn.Module]
    shaped: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    batch: int
    steps: int
    rate: float
    bucket: int


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(144, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def enlarged(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """f32[n, 3, 32, 32]."""
    large = np.kron(images.reshape(-1, 1, 12, 12), np.ones((3, 3), np.float32))[:, :, 2:34, 2:34]
    return np.ascontiguousarray(np.repeat(large, 3, 1))


TASKS = {
    "digits": Task(small, lambda images: images, 64, 600, 0.3, 1 << 14),
    "ResNet-18": Task(ResNet18, enlarged, 32, 30, 0.02, 1 << 22),
}
Batches = list[tuple[torch.Tensor, torch.Tensor]]


def network(task: Task) -> nn.Module:
    torch.manual_seed(0)
    return task.network()


def batches(task: Task, rank: int, ranks: int) -> Batches:
    """This rank's rows of each batch."""
    x, y = digits(task.batch * task.steps, seed=1)
    x, mine = task.shaped(x), slice(rank * task.batch // ranks, (rank + 1) * task.batch // ranks)
    rows = range(0, len(x), task.batch)
    return [(torch.from_numpy(x[k:][mine].copy()), torch.from_numpy(y[k:][mine].copy())) for k in rows]


def accuracy(task: Task, model: nn.Module) -> float:
    x, y = digits(1000, seed=2)
    model.eval()
    with torch.no_grad():
        guesses = model(torch.from_numpy(task.shaped(x))).argmax(1)
    return float((guesses == torch.from_numpy(y)).float().mean())


def by_ddp(rank: int, ranks: int, name: str, path: str, backend: str = "tilewright") -> dict[str, Any]:
    import torch.distributed as dist

    import tilewright.collective  # noqa: F401  (it registers the backend)

    torch.set_num_threads(1)
    dist.init_process_group(backend, rank=rank, world_size=ranks, init_method=f"file://{path}")
    task, losses = TASKS[name], []
    model = nn.parallel.DistributedDataParallel(network(task))
    optimizer, loss = torch.optim.SGD(model.parameters(), task.rate), nn.CrossEntropyLoss()
    data = batches(task, rank, ranks)
    begin = time.perf_counter()
    for x, y in data:
        optimizer.zero_grad()
        error = loss(model(x), y)
        error.backward()
        optimizer.step()
        losses.append(error.item())
    seconds = time.perf_counter() - begin
    result = {"accuracy": accuracy(task, model.module), "seconds": seconds, "losses": losses}
    dist.destroy_process_group()
    return result


def by_compiled_steps(rank: int, ranks: int, name: str, group_name: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    task = TASKS[name]
    model, data, losses = network(task), batches(task, rank, ranks), []
    with tw.collective.join(group_name, rank, ranks, timeout=300) as group:
        reduce: Any = tw.train.overlapped(tw.train.averaged(group))
        step = tw.compile_step(
            model, nn.CrossEntropyLoss(), tw.train.SGD(task.rate), example=data[0], reduce=reduce, bucket=task.bucket
        )
        group.barrier()
        begin = time.perf_counter()
        for x, y in data:
            losses.append(step(x, y)["loss"])
        seconds = time.perf_counter() - begin
        reduce.close()
    model.load_state_dict(step.state_dict())
    return {"accuracy": accuracy(task, model), "seconds": seconds, "losses": losses}


def main(name: str = "digits", ranks: int = 2) -> dict[str, dict[str, Any]]:
    """Both ways, and what rank 0 says of them."""
    with tempfile.TemporaryDirectory() as folder:
        ddp = run(ranks, by_ddp, ranks, name, str(Path(folder) / "store"), seconds=900)[0]
    compiled = run(ranks, by_compiled_steps, ranks, name, f"learners-{secrets.token_hex(4)}", seconds=900)[0]
    results = {"DDP": ddp, "compiled steps": compiled}
    for way, one in results.items():
        losses, steps = one["losses"], TASKS[name].steps
        print(
            f"{name}, {way}: {one['accuracy']:.1%} of unseen digits, {steps} steps in {one['seconds']:.2f} s, "
            f"loss {losses[0]:.4f} -> {losses[-1]:.4f}"
        )
    return results
