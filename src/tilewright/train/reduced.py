"""The reduction of gradients before the update of parameters: data-parallel learning.

    step = tw.compile_step(model, loss, optimizer, example, reduce=tw.train.averaged())     # in every process

Gradients are one vector, computed in buckets in the order of the backward pass: those of the last parameters come
first. The backward pass makes a native call for each bucket (`train/cut.py`); after each, the caller's function gets
the bucket and changes it in place, or starts to: the returned object may have a method `wait`, which is called before
the update, so that reductions overlap with computing the next bucket. Each of several stages has a backward pass and an
update of its own, as its loss depends on the updates of the stages before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.graph import Graph
from tilewright.runtime.model import Model
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError
from tilewright.train.arena import ALIGN, Arena, zeros
from tilewright.train.plan import Active, Group, Layout, StagePlan, StepPlan
from tilewright.train.program import Bucket, back_graphs, follow_graph, update_graph

Array = np.ndarray[Any, Any]
Reduce = Callable[[Array], Any]
BUCKET = 25 << 20
"""A bucket is complete with this many bytes, as in PyTorch's DistributedDataParallel."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """Two functions that turn a step's graphs into programs.

    passed    the graph after all passes over the whole of it
    compiled  the program of a graph, passed or not
    """

    passed: Callable[[Graph], Graph]
    compiled: Callable[[Graph], Model]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the backward pass, up to a bucket of gradients.

    inputs    the names of its inputs: the batch, the step's vectors, and values of earlier sections
    fresh     whether it returns new buffers
    retained  the names of the values that it returns for later sections
    bucket    where its gradients begin and end in their vector, in elements
    """

    model: Model
    inputs: tuple[str, ...]
    fresh: bool
    retained: tuple[str, ...]
    bucket: Bucket


@dataclass(slots=True)
class Back:
    """The backward pass of one stage, in sections.

    batch     the names of a batch's arrays
    sections  one after the other
    results   memory of the loss and metrics, which the first section returns
    names     what these are called in the graph
    retained  memory of the values between sections, by name, for batches of the sizes `held`
    """

    batch: tuple[str, ...]
    sections: tuple[Section, ...]
    results: tuple[Array, ...]
    names: tuple[str, ...]
    retained: dict[str, Array]
    held: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, plan: StepPlan, layout: Layout, stage: StagePlan, compiler: Compiler, nbytes: int) -> Back:
        metrics, fresh = len(stage.objective.metrics), bool(stage.objective.changed)
        cuts = buckets(layout.arena, stage.groups, nbytes)
        graphs, order = back_graphs(plan, layout, stage, cuts, compiler.passed)
        sections = []
        for k, (graph, bucket) in enumerate(zip(graphs, order, strict=True)):
            new = fresh and not k
            outputs = graph.outputs[(0 if k else metrics) + 1 + new :]
            inputs = tuple(v.name for v in graph.inputs)
            sections.append(Section(compiler.compiled(graph), inputs, new, tuple(v.name for v in outputs), bucket))
        shapes = [[int(d) for d in spec.shape] for spec in sections[0].model.outputs[:metrics]]
        results = tuple(zeros(ALIGN)[:1].reshape(shape) for shape in shapes)
        batch = tuple(v.name for v in plan.stages[0].objective.graph.inputs if v.name != plan.key)
        return cls(batch, tuple(sections), results, tuple(v.name for v in graphs[0].outputs[:metrics]), {})

    def __call__(
        self,
        batch: Sequence[Any],
        vectors: Mapping[str, Array],
        gradients: Array,
        buffers: Array,
        reduce: Reduce | None,
    ) -> None:
        """Compute the loss and gradients of a batch, and pass the gradients to `reduce`.

        Args:
            batch: its arrays.
            vectors: the step's by name: the arena, buffers, accumulated gradients, the key of random numbers.
            gradients: the vector that gets the gradients of all parameters.
            buffers: the vector that gets new buffers.
            reduce: the function that reduces each bucket, which is complete when this returns. None for none.

        If a section fails, as the batch does not fit, NaN is passed to `reduce` instead, so that no other process waits
        in vain or updates parameters without this one.
        """
        begun: list[Any] = []
        failed: Exception | None = None
        known: dict[str, Any] = {}
        try:
            for section in self.sections:
                begin, end = section.bucket
                if failed is None:
                    try:
                        known = known or self._known(batch, vectors)
                        self._compute(section, known, gradients[begin:end], buffers)
                    except Exception as error:
                        failed, self.held = error, None
                if failed is not None:
                    gradients[begin:end] = np.nan
                if reduce is not None:
                    begun.append(_reduced(reduce, gradients[begin:end]))
        finally:
            _finish(begun)
        if failed is not None:
            try:
                raise failed
            finally:  # the error holds this frame, and the frame the work on gradients: PyTorch's holds its group
                failed = None
                begun.clear()

    def _known(self, batch: Sequence[Any], vectors: Mapping[str, Array]) -> dict[str, Any]:
        """The values that sections of the backward pass read, by name: the batch, the step's vectors, and results. If
        shapes differ from those of the last batch, retained values are dropped."""
        if len(batch) != len(self.batch):
            what = "arrays are not as many as the example's"
            raise CallError(what, where="step", expected=len(self.batch), got=len(batch))
        sizes = tuple(getattr(array, "shape", None) for array in batch)
        if sizes != self.held:
            self.held = sizes
            self.retained.clear()
        results = zip(self.names, self.results, strict=True)
        return {**dict(zip(self.batch, batch, strict=True)), **vectors, **dict(results)}

    def _compute(self, section: Section, known: dict[str, Any], bucket: Array, buffers: Array) -> None:
        inputs = [known[name] if name in known else self.retained[name] for name in section.inputs]
        if any(name not in self.retained for name in section.retained):
            new = section.model.empty_outputs(*inputs)
            self.retained |= {name: new[name] for name in section.retained}
        results = self.results if section is self.sections[0] else ()
        fresh = (buffers,) if section.fresh else ()
        section.model(*inputs, out=(*results, bucket, *fresh, *(self.retained[name] for name in section.retained)))


def _reduced(reduce: Reduce, bucket: Array) -> Any:
    try:
        return reduce(bucket)
    except Exception as error:
        raise _unreduced(error) from error


def _finish(begun: Sequence[Any]) -> None:
    """Wait for all reductions, even if some fail, so that none writes to gradients afterwards."""
    failed: Exception | None = None
    for work in begun:
        wait = getattr(work, "wait", None)
        if wait is not None:
            try:
                wait()
            except Exception as error:
                failed = failed or error
    if failed is not None:
        try:
            raise _unreduced(failed) from failed
        finally:
            failed = None


def _unreduced(error: Exception) -> CallError:
    got = f"{type(error).__name__}: {error}"
    return CallError("gradients were not reduced; parameters are as they were", where="step", got=got)


@dataclass(frozen=True, slots=True)
class ReducedStage:
    """A stage in several native calls: the backward pass, bucket by bucket, and the update by the reduced gradients.

    update  from the arena, scalars and gradients to the norm of these, new parameters and new state
    span    the range of its parameters in the vector of all
    norm    of the reduced gradients
    """

    plan: StagePlan
    back: Back
    update: Model
    span: Bucket
    norm: Array

    @property
    def changes(self) -> bool:
        """Whether its backward pass returns new buffers."""
        return bool(self.plan.objective.changed)

    def last_metrics(self) -> dict[str, float]:
        """The loss and metrics of the last batch."""
        return {n: a.item() for n, a in zip(self.plan.objective.metrics, self.back.results, strict=True)}

    def move(self, before: Array, scalars: Array, gradients: Array, after: Array, part: int) -> float:
        """Write new parameters and state, from the ones in `before`, the step's `scalars` and `gradients`, to the arena
        `after`, each of whose parts has `part` elements. Returns the norm of all gradients together."""
        begin, end = self.span
        vectors = [after[first + begin : first + end] for first in range(0, after.size, part)]
        self.update(before, scalars, gradients[begin:end], out=(self.norm, *vectors))
        return float(self.norm[0])


@dataclass(frozen=True, slots=True)
class Update:
    """A learning step in several native calls, between which the caller's function reduces gradients.

    stages  the stages, run one after the other
    follow  programs that compute the parameters which are averages of others, from the arena after the stages and the
            buffers; one for each set of averages that is updated
    reduce  the function that changes each bucket of the gradients
    """

    stages: tuple[ReducedStage, ...]
    follow: Mapping[Active, Model]
    reduce: Reduce

    @classmethod
    def of(cls, plan: StepPlan, layout: Layout, compiler: Compiler, reduce: Reduce, nbytes: int) -> Update:
        stages, compiled = [], compiler.compiled
        for stage in plan.stages:
            back, update = Back.of(plan, layout, stage, compiler, nbytes), compiled(update_graph(plan, layout, stage))
            span = layout.arena.span(stage.names)
            stages.append(ReducedStage(stage, back, update, span, np.zeros(1, np.float32)))
        choices = {active[len(plan.stages) :] for active in plan.kinds()}
        follow = {active: compiled(follow_graph(plan, layout, active)) for active in sorted(choices) if any(active)}
        return cls(tuple(stages), follow, reduce)


def buckets(arena: Arena, groups: Sequence[Group], nbytes: int = BUCKET) -> list[Bucket]:
    """The ranges (begin, end) of buckets of `nbytes` bytes or more in the vector of gradients: whole parameters, the
    last ones first. Each bucket belongs to one group, since a group may contain parameters of all layers (such as
    biases), which are only complete at the very end."""
    results: list[Bucket] = []
    starts = dict(zip(arena.names, arena.starts, strict=True))
    for group in reversed(groups):
        first, end = arena.span(group.names)
        for name in reversed(group.names):
            if 4 * (end - starts[name]) >= nbytes or starts[name] == first:
                results.append((starts[name], end))
                end = starts[name]
    return results


def averaged(group: Any = None) -> Reduce:
    """A function that replaces each part of the gradients by its mean over the processes of a group.

    Args:
        group: of `tw.collective.join`, or of `torch.distributed`; None: all processes of the latter.
    """
    all_reduce = getattr(group, "all_reduce", None)  # PyTorch's groups call theirs otherwise
    if all_reduce is not None:
        return lambda part: all_reduce(part, "avg")
    import torch
    from torch import distributed

    count = distributed.get_world_size(group)

    def reduce(part: Array) -> Any:
        tensor = torch.from_numpy(part).div_(count)
        return distributed.all_reduce(tensor, group=group, async_op=True)

    return reduce


__all__: Sequence[str] = ["BUCKET", "Reduce", "ReducedStage", "Section", "Update", "averaged", "buckets"]
