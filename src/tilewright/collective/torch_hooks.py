"""Communication hooks for PyTorch's DistributedDataParallel: compressed exchange of gradients, over any backend.

    model.register_comm_hook(None, tilewright.collective.torch_hooks.hook("powersgd", rank=4))

Buckets are reduced one after another by an engine's thread during the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from tilewright.collective.compressed import Array, method
from tilewright.engine import Engine, Variable


class _Ranks:
    """The operations of a `torch.distributed` group on arrays."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.ranks: int = dist.get_world_size(group)

    def all_reduce(self, array: Array, operation: str) -> None:
        array /= self.ranks  # before the sum, which might be too large for halves
        dist.all_reduce(torch.from_numpy(array), group=self.group)

    def all_gather(self, array: Array) -> Array:
        out = torch.empty((self.ranks, *array.shape), dtype=torch.from_numpy(array).dtype)
        dist.all_gather(list(out), torch.from_numpy(array), group=self.group)
        result: Array = out.numpy()
        return result


def hook(name: str, group: Any = None, **options: Any) -> Callable[[Any, Any], Any]:
    """A hook for `register_comm_hook(None, hook)`.

    Args:
        name: fp16, int8, top-k, 1-bit or powersgd.
        group: of `torch.distributed`; None: all processes.
        options: of the method.
    """
    compression, engine, order = method(name, **options), Engine(1), Variable("buckets")

    def run(state: Any, bucket: Any) -> Any:
        buffer, index, future = bucket.buffer(), bucket.index(), Future()

        def reduce() -> None:
            try:
                vector = buffer.detach().numpy()
                compression.mean(_Ranks(group), vector, index)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(buffer)

        engine.push(reduce, writes=[order], name="reduce")
        return future

    run.__annotations__.clear()  # DDP compares them with types, and these are texts
    run.method = compression  # type: ignore[attr-defined]
    return run


__all__ = ["hook"]
