"""What becomes of gradients before they move parameters: learning in parallel on parts of a batch.

    step = tw.compile_step(model, loss, optimizer, example, reduce=tw.train.averaged())     # in every process

Gradients are one vector, and come in buckets in the order of the way back: the last parameters' are there first. The
way back is a native call for each of them (`train/cut.py`); behind each, a function gets the bucket and changes it in
place, or begins to: what it returns may have a `wait`, which is called before parameters move, so that such work goes
on while the next bucket is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.graph import Graph
from tilewright.runtime.model import Model
from tilewright.runtime.specs import OutputSpec
from tilewright.support.classes import dataclass
from tilewright.train.arena import ALIGN, Arena, zeros

Array = np.ndarray[Any, Any]
Reduce = Callable[[Array], Any]
BUCKET = 25 << 20
"""Bytes from which on gradients are handed over, as PyTorch's DistributedDataParallel has it."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the way back, up to a bucket of gradients.

    inputs   the names of what it reads: the batch, the step's vectors, and what sections before it have kept
    outputs  of what it gives, but for the loss and metrics of the first
    bucket   where its gradients begin and end in their vector, in elements
    """

    model: Model
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bucket: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Update:
    """A step in several native calls: the way back, bucket by bucket, and the update by what a function made of them.

    sections  the way back
    results   the loss and metrics that the first one gives, each a number
    kept      what sections keep for later ones, by name
    model     from the arena, scalars and gradients to the norm of these and the new arena
    reduce    changes each bucket of the gradients
    norm      of the gradients as they are then
    """

    sections: tuple[Section, ...]
    results: tuple[Array, ...]
    kept: Mapping[str, Array]
    model: Model
    reduce: Reduce
    norm: Array

    @classmethod
    def of(
        cls,
        graphs: Sequence[Graph],
        compiled: Callable[[Graph], Model],
        update: Model,
        reduce: Reduce,
        borders: Sequence[tuple[int, int]],
        metrics: int,
    ) -> Update:
        """Of the sections' graphs, the first of which gives so many `metrics`, the loss among them."""
        sections: list[Section] = []
        kept: dict[str, Array] = {}
        for k, (graph, border) in enumerate(zip(graphs, borders, strict=True)):
            model, first = compiled(graph), 0 if k else metrics
            names = tuple(v.name for v in graph.outputs[first:])
            sections.append(Section(model, tuple(v.name for v in graph.inputs), names, border))
            read = {v.name for later in graphs[k + 1 :] for v in later.inputs}
            specs = zip(graph.outputs[first:], model.outputs[first:], strict=True)
            kept |= {v.name: np.empty(_sizes(spec), v.dtype.numpy) for v, spec in specs if v.name in read}
        results = tuple(zeros(ALIGN)[:1].reshape(_sizes(spec)) for spec in sections[0].model.outputs[:metrics])
        kept |= {v.name: array for v, array in zip(graphs[0].outputs, results, strict=False)}
        return cls(tuple(sections), results, kept, update, reduce, np.zeros(1, np.float32))

    def back(self, values: Mapping[str, Array], gradients: Array, buffers: Array, *, last: bool) -> None:
        """The loss and gradients of a batch.

        Args:
            values: the batch and the step's vectors by name.
            gradients: where they go.
            buffers: where new buffers go.
            last: whether others change the gradients, as parameters move by them; done when this returns.
        """
        begun = []
        known = {**values, **self.kept}
        for section in self.sections:
            begin, end = section.bucket
            fresh = [self.kept.get(name, buffers) for name in section.outputs[1:]]
            results = self.results if section is self.sections[0] else ()
            section.model(*(known[name] for name in section.inputs), out=(*results, gradients[begin:end], *fresh))
            if last:
                begun.append(self.reduce(gradients[begin:end]))
        for work in begun:
            wait = getattr(work, "wait", None)
            if wait is not None:
                wait()

    def move(self, before: Array, scalars: Array, gradients: Array, after: Array) -> float:
        """Parameters after the update. Gives the norm of all gradients together."""
        self.model(before, scalars, gradients, out=(self.norm, after))
        return float(self.norm[0])


def _sizes(spec: OutputSpec) -> list[int]:
    return [int(d) for d in spec.shape]


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


__all__: Sequence[str] = ["BUCKET", "Reduce", "Section", "Update", "averaged", "buckets"]
