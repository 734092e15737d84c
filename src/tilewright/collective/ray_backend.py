"""The backend "TILEWRIGHT" of `ray.util.collective`: actors of one machine reduce through shared memory.

    from tilewright.collective import ray_backend
    ray_backend.register()                                        # in the driver and in each actor
    ray.util.collective.init_collective_group(2, rank, "TILEWRIGHT", "learners")

Arrays are NumPy's, or tensors on the CPU, which share their memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.util.collective import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from tilewright.collective.group import join
from tilewright.collective.reductions import Array
from tilewright.support.digest import blake2b

NAME = "TILEWRIGHT"
JOIN_SECONDS = 120.0
"""Seconds that an actor waits for the others."""
_OPERATIONS = {"SUM": "sum", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}


class RayGroup(BaseGroup):  # type: ignore[misc]
    """A group of `tilewright.collective` with the methods that Ray calls."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        digest = blake2b(group_name.encode(), digest_size=12).hexdigest()  # names may have any characters
        self._group = join(f"ray-{digest}", rank, world_size, timeout=JOIN_SECONDS)

    @classmethod
    def backend(cls) -> str:
        return NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        self._group.close()

    def allreduce(self, tensor: Any, allreduce_options: Any = None) -> None:
        for one in _several(tensor):
            self._group.all_reduce(_array(one), _operation(allreduce_options))

    def barrier(self, barrier_options: Any = None) -> None:
        self._group.barrier()

    def reduce(self, tensor: Any, reduce_options: Any = None) -> None:
        root = getattr(reduce_options, "root_rank", 0)
        for one in _several(tensor):
            self._group.reduce(_array(one), root, _operation(reduce_options))

    def broadcast(self, tensor: Any, broadcast_options: Any = None) -> None:
        for one in _several(tensor):
            self._group.broadcast(_array(one), getattr(broadcast_options, "root_rank", 0))

    def allgather(self, tensor_list: Any, tensor: Any, allgather_options: Any = None) -> None:
        rows = tensor_list[0] if isinstance(tensor_list[0], list) else tensor_list
        for out, row in zip(rows, self._group.all_gather(_array(_several(tensor)[0])), strict=True):
            _array(out)[...] = row

    def reducescatter(self, tensor: Any, tensor_list: Any, reducescatter_options: Any = None) -> None:
        parts = tensor_list[0] if isinstance(tensor_list[0], list) else tensor_list
        rows = np.stack([_array(part) for part in parts])
        out = _array(_several(tensor)[0])
        out[...] = self._group.reduce_scatter(rows, operation=_operation(reducescatter_options))

    def send(self, tensor: Any, send_options: Any) -> None:
        for one in _several(tensor):
            self._group.send(_array(one), send_options.dst_rank)

    def recv(self, tensor: Any, recv_options: Any) -> None:
        for one in _several(tensor):
            self._group.receive(_array(one), recv_options.src_rank)


def _several(tensor: Any) -> Sequence[Any]:
    return tensor if isinstance(tensor, list) else [tensor]


def _array(tensor: Any) -> Array:
    """An array that shares the memory of a tensor."""
    array: Array = tensor if isinstance(tensor, np.ndarray) else tensor.detach().numpy()
    return array


def _operation(options: Any) -> str:
    operation = getattr(options, "reduceOp", None)
    return _OPERATIONS[getattr(operation, "name", "SUM")]


def register() -> None:
    """Register the backend with Ray in this process."""
    register_collective_backend(NAME, RayGroup)


__all__ = ["NAME", "RayGroup", "register"]
