"""The backend of `torch.distributed`: its collectives beside Gloo's on equal data, and DDP."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

REDUCTIONS = ["SUM", "PRODUCT", "MIN", "MAX"]


def collectives(rank: int, ranks: int) -> list[Any]:
    """The results of every collective that Gloo has, on tensors of several types and strides."""
    results: list[Any] = []
    generator = torch.Generator().manual_seed(rank)

    def own(*shape: int, dtype: Any = torch.float32) -> Any:
        numbers = torch.randn(shape, generator=generator)
        return (numbers * 8).to(dtype) if not dtype.is_floating_point else numbers.to(dtype)

    for dtype in (torch.float32, torch.int64, torch.uint8):
        for shape in ((), (0,), (70, 30), (500, 300)) if dtype == torch.float32 else ((13,),):
            for name in REDUCTIONS:
                x = own(*shape, dtype=dtype)
                dist.all_reduce(x, getattr(dist.ReduceOp, name))
                results.append(x)
            dist.broadcast(x := own(*shape, dtype=dtype), 1)
            results.append(x)
            outs = [torch.empty(shape, dtype=dtype) for _ in range(ranks)]
            dist.all_gather(outs, own(*shape, dtype=dtype))
            results.extend(outs)
            dist.reduce(x := own(*shape, dtype=dtype), 0)
            results.append(x if rank == 0 else None)
            gathered = [torch.empty(shape, dtype=dtype) for _ in range(ranks)] if rank == 1 else None
            dist.gather(own(*shape, dtype=dtype), gathered, dst=1)
            results.extend(gathered or [])
            parts = [own(*shape, dtype=dtype) for _ in range(ranks)] if rank == 0 else None
            dist.scatter(x := torch.empty(shape, dtype=dtype), parts, src=0)
            results.append(x)
    dist.all_to_all_single(out := torch.empty(2 * ranks, 3), own(2 * ranks, 3))
    splits = [[1, 3], [2, 4]] if ranks == 2 else [[1] * ranks] * ranks
    got = [splits[r][rank] for r in range(ranks)]
    dist.all_to_all_single(uneven := torch.empty(sum(got)), own(sum(splits[rank])), got, splits[rank])
    dist.all_gather_object(objects := [None] * ranks, {"rank": rank, "text": "x" * 1000})
    work = [dist.isend(own(50_000), (rank + 1) % ranks), dist.irecv(z := torch.empty(50_000), (rank - 1) % ranks)]
    [w.wait() for w in work]
    handle = dist.all_reduce(waited := own(1000), async_op=True)
    handle.wait()
    dist.barrier()
    return [*results, out, uneven, z, waited, *(str(o) for o in objects)]


def trained(rank: int, ranks: int) -> list[Any]:
    """The parameters of a network after five steps by DDP."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(10, 300), torch.nn.ReLU(), torch.nn.Linear(300, 1))
    model = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 10, generator=generator)).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in network.parameters()]


def only_ours(rank: int, ranks: int) -> list[Any]:
    """Call what Gloo lacks: bf16, means, scaled sums, reduce_scatter, one tensor for all, groups in groups, errors."""
    x = torch.full((5,), float(rank + 1), dtype=torch.bfloat16)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    dist.reduce_scatter_tensor(part := torch.empty(2), torch.arange(2.0 * ranks))
    dist.all_gather_into_tensor(whole := torch.empty(ranks * 2), part)
    z = torch.arange(24.0).reshape(4, 6)
    dist.all_reduce(z[:, ::2])  # whose elements are not side by side
    assert torch.equal(z, torch.arange(24.0).reshape(4, 6) * torch.tensor([ranks, 1, ranks, 1, ranks, 1]))
    halved = dist._make_nccl_premul_sum(0.5)
    for dtype in (torch.bfloat16, torch.float32):
        dist.reduce_scatter_tensor(one := torch.empty(2, dtype=dtype), torch.ones(2 * ranks, dtype=dtype), op=halved)
        dist.all_reduce(every := torch.full((3,), 4.0, dtype=dtype), op=halved)
        dist.reduce(partial := torch.full((3,), 4.0, dtype=dtype), 0, op=halved)
        assert (one == ranks / 2).all() and (every == 2 * ranks).all()
        assert (partial == (2 * ranks if rank == 0 else 4)).all()
    with pytest.raises(Exception, match="as large as theirs together"):
        dist.reduce_scatter_tensor(torch.empty(3), torch.ones(2 * ranks))
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(y := torch.ones(3), group=pair)
    with pytest.raises(Exception, match="ranks call different things"):
        dist.all_reduce(torch.ones(3 + rank))
    return [x, part, whole, y if rank < 2 else None]


BODIES = {"collectives": collectives, "trained": trained, "only_ours": only_ours}


def worker(rank: int, ranks: int, folder: str, backend: str, body: str) -> None:
    import tilewright.collective  # noqa: F401 - registers the backend

    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{folder}/{backend}-{body}", rank=rank, world_size=ranks)
    assert dist.get_backend() == backend
    torch.save(BODIES[body](rank, ranks), f"{folder}/{backend}-{body}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def results(ranks: int, backend: str, body: str) -> list[list[Any]]:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (ranks, folder, backend, body), nprocs=ranks)
        return [torch.load(Path(folder) / f"{backend}-{body}-{rank}.pt") for rank in range(ranks)]


@pytest.mark.parametrize(("ranks", "body"), [(2, "collectives"), (3, "collectives"), (2, "trained")])
def test_results_are_gloos(ranks: int, body: str) -> None:
    ours, theirs = results(ranks, "tilewright", body), results(ranks, "gloo", body)
    for mine, other in zip(ours, theirs, strict=True):
        assert len(mine) == len(other) > 1
        for a, b in zip(mine, other, strict=True):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
            else:
                assert a == b


def test_what_gloo_lacks() -> None:
    for rank, (x, part, whole, y) in enumerate(results(3, "tilewright", "only_ours")):
        assert (x == 2).all()
        torch.testing.assert_close(part, torch.arange(2.0 * rank, 2.0 * rank + 2) * 3)
        torch.testing.assert_close(whole, torch.arange(6.0) * 3)
        assert y is None if rank == 2 else (y == 2).all()
