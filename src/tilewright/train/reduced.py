"""What becomes of gradients before they move parameters: learning in parallel on parts of a batch.

    step = tw.compile_step(model, loss, optimizer, example, reduce=tw.train.averaged())     # in every process

Gradients are one vector. A function gets parts of it, in the order of the way back (the last parameters' gradients are
there first), and changes them in place; what it returns may have a `wait`, which is called before parameters move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.model import Model
from tilewright.train.arena import Arena

Array = np.ndarray[Any, Any]
Reduce = Callable[[Array], Any]
BUCKET = 25 << 20
"""Bytes from which on gradients are handed over, as PyTorch's DistributedDataParallel has it."""


@dataclass(frozen=True, slots=True)
class Update:
    """The second half of a step: the update, behind a function of the gradients.

    model   from the arena, scalars and gradients to the norm of these and the new arena
    reduce  changes each part of the gradients
    parts   where the parts begin and end, in elements
    norm    of the gradients as they are then
    """

    model: Model
    reduce: Reduce
    parts: tuple[tuple[int, int], ...]
    norm: Array

    @classmethod
    def of(cls, model: Model, reduce: Reduce, arena: Arena) -> Update:
        return cls(model, reduce, buckets(arena), np.zeros(1, np.float32))

    def __call__(self, before: Array, scalars: Array, gradients: Array, after: Array) -> float:
        """Parameters after the update. Gives the norm of all gradients together."""
        begun = [self.reduce(gradients[begin:end]) for begin, end in self.parts]
        for work in begun:
            wait = getattr(work, "wait", None)
            if wait is not None:
                wait()
        self.model(before, scalars, gradients, out=(self.norm, after))
        return float(self.norm[0])


def buckets(arena: Arena, nbytes: int = BUCKET) -> tuple[tuple[int, int], ...]:
    """Where parts of the gradients begin and end: whole parameters, the last ones first."""
    found: list[tuple[int, int]] = []
    end = arena.part
    for start in reversed(arena.starts):
        if 4 * (end - start) >= nbytes or start == 0:
            found.append((start, end))
            end = start
    return tuple(found)


def averaged(group: Any = None) -> Reduce:
    """A function that gives each part the mean over the processes of a group of `torch.distributed`; None: over all."""
    import torch
    from torch import distributed

    count = distributed.get_world_size(group)

    def reduce(part: Array) -> Any:
        tensor = torch.from_numpy(part).div_(count)
        return distributed.all_reduce(tensor, group=group, async_op=True)

    return reduce


__all__: Sequence[str] = ["BUCKET", "Reduce", "Update", "averaged", "buckets"]
