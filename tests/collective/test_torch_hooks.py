"""Compression hooks of PyTorch's DistributedDataParallel, on our backend and on Gloo."""

from __future__ import annotations

import multiprocessing
import traceback
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
OPTIONS: dict[str, dict[str, Any]] = {"powersgd": {"rank": 2, "start": 2}, "top-k": {"share": 0.25}}


def _train(rank: int, backend: str, path: str, names: list[str | None], send: Any) -> None:
    import torch.distributed as dist

    from tilewright.collective.torch_hooks import hook

    torch.set_num_threads(1)
    try:
        dist.init_process_group(backend, rank=rank, world_size=2, init_method=f"file://{path}")
        losses: list[list[float]] = []
        for name in names:
            torch.manual_seed(0)
            model = torch.nn.parallel.DistributedDataParallel(
                torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
            )
            if name is not None:
                model.register_comm_hook(None, hook(name, **OPTIONS.get(name, {})))
            optimizer = torch.optim.SGD(model.parameters(), 0.05)
            generator = torch.Generator().manual_seed(rank)
            losses.append([])
            for _ in range(60):
                x = torch.randn(32, 8, generator=generator)
                loss = (model(x) - x[:, :1] * x[:, 1:2].sign()).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
            flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
            both = [torch.empty_like(flat) for _ in range(2)]
            dist.all_gather(both, flat)
            assert torch.equal(both[0], both[1]), name
        dist.destroy_process_group()
        send.send(losses)
    except BaseException:
        send.send(traceback.format_exc())


@pytest.mark.parametrize("backend", ["gloo", "tilewright"])
def test_hooks_train_like_the_exact_mean(backend: str, tmp_path: Path) -> None:
    import tilewright.collective  # noqa: F401

    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    names = [None, "fp16", "int8", "top-k", "1-bit", "powersgd"]
    path = str(tmp_path / "store")
    processes = [context.Process(target=_train, args=(r, backend, path, names, send), daemon=True) for r in range(2)]
    for process in processes:
        process.start()
    try:
        for _ in range(2):
            assert receive.poll(100)
            losses = receive.recv()
            assert isinstance(losses, list), losses
            exact = sum(losses[0][-20:]) / 20
            for name, some in zip(names[1:], losses[1:], strict=True):
                assert sum(some[-20:]) / 20 < exact * 1.15, name
    finally:
        for process in processes:
            process.join(5)
            process.kill()
