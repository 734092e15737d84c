"""A group over several machines: shared memory within each, and between them PyTorch's Gloo backend with one rank of
each machine, so that this package needs no network protocol."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tilewright.collective.group import Group
from tilewright.collective.reductions import DTYPES, Array, check_reduction, narrowed, widened
from tilewright.live.store.files import store_root
from tilewright.support.errors import CollectiveError

_OPERATIONS = {
    "sum": "SUM",
    "prod": "PRODUCT",
    "min": "MIN",
    "max": "MAX",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}


def this_machine() -> str:
    """A text that identifies the memory that processes share here, equal in all that can form a `Group`: the boot of
    the machine, and the file system of the store. It differs between two containers that have memory file systems of
    their own, even if a launcher calls them one machine."""
    folder = store_root()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip() if boot.exists() else os.uname().nodename}:{folder.stat().st_dev}"


class Spanning:
    """The ranks of several machines, with the methods of `Group` that the backend calls.

    Args:
        node: the ranks of this machine.
        members: the ranks of each machine, the first of which communicates with other machines.
        store: PyTorch's, for the groups between machines.
    """

    def __init__(
        self, node: Group, members: Sequence[Sequence[int]], rank: int, ranks: int, store: Any, timeout: float
    ) -> None:
        self.rank, self.ranks, self.timeout = rank, ranks, timeout
        self._node = node
        self._members = members
        self._machine = next(k for k, some in enumerate(members) if rank in some)
        limit = timedelta(seconds=timeout)
        self._leaders: Any = None
        if node.rank == 0:
            between = dist.PrefixStore("tilewright/leaders", store)
            self._leaders = dist.ProcessGroupGloo(between, self._machine, len(members), limit)
        self._world: Any = dist.ProcessGroupGloo(dist.PrefixStore("tilewright/world", store), rank, ranks, limit)

    def barrier(self) -> None:
        self._node.barrier()
        if self._leaders is not None:
            self._leaders.barrier().wait()
        self._node.barrier()

    def all_reduce(self, array: Array, operation: str = "sum", *, dtype: str | None = None) -> Array:
        """Reduce the arrays of all ranks by `operation`, in place: within each machine, then between machines by one
        rank of each, then broadcast within each machine. Returns `array`. `dtype` names the element type where NumPy
        has none, such as "bf16"."""
        name = dtype or next(n for n, d in DTYPES.items() if d == array.dtype and n != "bf16")
        check_reduction(operation, name, lambda: f"rank {self.rank} of {self.ranks}: all_reduce")
        inside = "sum" if operation == "avg" else operation
        total = widened(array, name).copy() if name in ("f16", "bf16") else array
        wide = "f32" if total is not array else name
        self._node.reduce(total, 0, inside, dtype=wide)
        if self._leaders is not None:
            self._between(total, wide, inside)
        self._node.broadcast(total, 0, dtype=wide)
        if operation == "avg":
            np.divide(total, self.ranks, out=total)
        if total is not array:
            array[...] = narrowed(total, name)
        return array

    def all_reduce_at(self, data: int, elements: int, dtype: str, operation: str) -> bool:
        """Returns False: an all-reduction between machines, whatever the address `data`, number of `elements`, `dtype`
        and `operation`, is never a single native call, as `Group.all_reduce_at` may be."""
        return False

    def _between(self, array: Array, dtype: str, operation: str) -> None:
        """Reduce `array`, whose element type is named `dtype`, in place by `operation` between the first ranks of all
        machines, by PyTorch's Gloo backend. Raises CollectiveError for complex numbers that are not summed."""
        if dtype == "bool":  # a sum of booleans is "or"
            array, operation = array.view(np.uint8), {"sum": "max", "prod": "min"}.get(operation, operation)
        if array.dtype.kind == "c":
            if operation != "sum":
                raise CollectiveError("complex numbers are only summed between machines", where=f"rank {self.rank}")
            array = array.view(np.float32 if dtype == "c64" else np.float64)
        flat = array.reshape(-1)
        if dtype == "i16":
            flat = flat.astype(np.int32)  # Gloo has no sums of these
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, _OPERATIONS[operation])
        self._leaders.allreduce([torch.from_numpy(flat)], options).wait()
        if dtype == "i16":
            array.reshape(-1)[:] = flat

    def reduce(self, array: Array, root: int = 0, operation: str = "sum", *, dtype: str | None = None) -> Array:
        total = self.all_reduce(array.copy(), operation, dtype=dtype)
        if self.rank == root:
            array[...] = total
        return array

    def broadcast(self, array: Array, root: int = 0, *, dtype: str | None = None) -> Array:
        """Broadcast the array of rank `root` in place: within the root's machine, from its first rank to the first
        ranks of other machines, and within those."""
        data = array.reshape(-1).view(np.uint8)
        machine = next(k for k, some in enumerate(self._members) if root in some)
        if machine == self._machine:
            self._node.broadcast(data, list(self._members[machine]).index(root))
        if self._leaders is not None and data.size:
            options = dist.BroadcastOptions()
            options.rootRank = machine
            self._leaders.broadcast([torch.from_numpy(data)], options).wait()
        if machine != self._machine:
            self._node.broadcast(data, 0)
        return array

    def all_gather(self, array: Array, out: Array | None = None, *, dtype: str | None = None) -> Array:
        """The arrays of all ranks, [ranks, *array.shape], in `out` if that is passed. Elements are copied as bytes, so
        that `dtype` does not matter."""
        result = np.empty((self.ranks, *array.shape), array.dtype) if out is None else out
        rows = result.reshape(self.ranks, -1).view(np.uint8)
        own = self._node.gather(np.ascontiguousarray(array).reshape(-1).view(np.uint8), 0)
        if self._leaders is not None and own is not None and rows.size:
            most = max(map(len, self._members))
            padded = np.zeros((most, rows.shape[1]), np.uint8)
            padded[: len(own)] = own
            every = [torch.empty(padded.shape, dtype=torch.uint8) for _ in self._members]
            self._leaders.allgather([every], [torch.from_numpy(padded)]).wait()
            for some, theirs in zip(self._members, every, strict=True):
                rows[list(some)] = theirs.numpy()[: len(some)]
        self._node.broadcast(rows.reshape(-1), 0)
        return result

    def gather(self, array: Array, root: int = 0, *, dtype: str | None = None) -> Array | None:
        result = self.all_gather(array, dtype=dtype)
        return result if self.rank == root else None

    def scatter(self, out: Array, parts: Array | None = None, root: int = 0, *, dtype: str | None = None) -> Array:
        every = np.empty((self.ranks, *out.shape), out.dtype)
        if self.rank == root:
            if parts is None or parts.shape != every.shape:
                got = None if parts is None else parts.shape
                raise CollectiveError("there is no row for each rank", where="scatter", expected=every.shape, got=got)
            every[...] = parts
        out[...] = self.broadcast(every, root, dtype=dtype)[self.rank]
        return out

    def reduce_scatter(
        self, array: Array, out: Array | None = None, operation: str = "sum", *, dtype: str | None = None
    ) -> Array:
        row: Array = self.all_reduce(array.copy(), operation, dtype=dtype)[self.rank]
        if out is None:
            return row
        out[...] = row.reshape(out.shape)
        return out

    def all_to_all(self, parts: Sequence[Array], outs: Sequence[Array], *, dtype: str | None = None) -> None:
        """Fill `outs[r]` with rank r's part, of its `parts`, for this rank. Elements are copied as bytes, so that
        `dtype` does not matter."""
        sizes = self.all_gather(np.array([part.nbytes for part in parts], np.int64))
        wrong = [r for r in range(self.ranks) if sizes[r, self.rank] != outs[r].nbytes]
        data = np.zeros(int(sizes.sum(1).max()), np.uint8)
        flat = np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])
        data[: flat.size] = flat
        every = self.all_gather(data)
        if wrong:
            raise CollectiveError(f"rank {wrong[0]} has another size for this rank", where="all_to_all")
        for r, out in enumerate(outs):
            first = int(sizes[r, : self.rank].sum())
            out.reshape(-1).view(np.uint8)[:] = every[r, first : first + out.nbytes]

    def send(self, array: Array, to: int, tag: int = 0) -> None:
        self._world.send([torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8))], to, tag).wait()

    def receive(self, array: Array, source: int, tag: int = 0) -> None:
        self._world.recv([torch.from_numpy(array.reshape(-1).view(np.uint8))], source, tag).wait()

    def first_message(self, sources: Sequence[int], tag: int = 0) -> int:
        raise CollectiveError("messages of any rank are not received across machines", where=f"rank {self.rank}")

    def close(self) -> None:
        self._node.close()


__all__ = ["Spanning", "this_machine"]
