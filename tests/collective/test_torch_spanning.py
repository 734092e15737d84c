"""Groups of several machines, played by processes that are told to be on different ones, against NumPy."""

from __future__ import annotations

import multiprocessing
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
MACHINES = ["a", "b", "a", "b", "b"]


def tensors(seed: int, dtype: Any, size: int = 1000) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-9, 9, (size,), generator=generator).to(dtype) for _ in MACHINES]


def every_collective(rank: int) -> None:
    import torch.distributed as dist

    ranks = len(MACHINES)
    for seed, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int16)):
        every = tensors(seed, dtype)
        for operation, want in (
            (dist.ReduceOp.SUM, torch.stack(every).to(torch.float64).sum(0).to(dtype)),
            (dist.ReduceOp.MAX, torch.stack(every).amax(0)),
        ):
            out = every[rank].clone()
            dist.all_reduce(out, operation)
            assert torch.equal(out, want), (dtype, operation)
        if dtype.is_floating_point:
            out = every[rank].clone()
            dist.all_reduce(out, dist.ReduceOp.AVG)
            torch.testing.assert_close(out, (torch.stack(every).float().sum(0) / ranks).to(dtype))
        for root in range(ranks):
            out = every[rank].clone()
            dist.broadcast(out, root)
            assert torch.equal(out, every[root])
            out = every[rank].clone()
            dist.reduce(out, root, dist.ReduceOp.MAX)
            assert torch.equal(out, torch.stack(every).amax(0) if rank == root else every[rank])
            rows = [torch.empty_like(every[0]) for _ in MACHINES] if rank == root else None
            dist.gather(every[rank], rows, root)
            assert rows is None or all(torch.equal(a, b) for a, b in zip(rows, every, strict=True))
            out = torch.empty_like(every[0])
            dist.scatter(out, [e.clone() for e in every] if rank == root else None, root)
            assert torch.equal(out, every[rank])
        rows = [torch.empty_like(every[0]) for _ in MACHINES]
        dist.all_gather(rows, every[rank])
        assert all(torch.equal(a, b) for a, b in zip(rows, every, strict=True))
        out = torch.empty(1000 // ranks, dtype=dtype)
        dist.reduce_scatter(out, list(every[rank].chunk(ranks)), dist.ReduceOp.MAX)
        assert torch.equal(out, torch.stack(every).amax(0).chunk(ranks)[rank])
        outs = [torch.empty(3, dtype=dtype) for _ in MACHINES]
        dist.all_to_all(outs, [every[rank][3 * r : 3 * r + 3].clone() for r in range(ranks)])
        assert all(torch.equal(o, every[r][3 * rank : 3 * rank + 3]) for r, o in enumerate(outs))
    dist.barrier()
    if rank == 0:
        dist.send(torch.arange(5), 1)
    elif rank == 1:
        dist.recv(out := torch.zeros(5, dtype=torch.int64), 0)
        assert torch.equal(out, torch.arange(5))


def _rank(rank: int, path: str, send: Any) -> None:
    import torch.distributed as dist

    from tilewright.collective import torch_backend

    torch.set_num_threads(1)
    torch_backend.this_machine = lambda: MACHINES[rank]
    try:
        dist.init_process_group("tilewright", rank=rank, world_size=len(MACHINES), init_method=f"file://{path}")
        every_collective(rank)
        dist.destroy_process_group()
        send.send("done")
    except BaseException:
        send.send(traceback.format_exc())


def test_collectives_of_two_machines(tmp_path: Path) -> None:
    from tilewright.collective.spanning import this_machine

    assert this_machine() == this_machine()
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    processes = [
        context.Process(target=_rank, args=(r, str(tmp_path / "store"), send), daemon=True)
        for r in range(len(MACHINES))
    ]
    for process in processes:
        process.start()
    try:
        for _ in processes:
            assert receive.poll(100)
            text = receive.recv()
            assert text == "done", text
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    assert np.unique(MACHINES).size == 2
