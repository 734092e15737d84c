"""The plan of a learning step as data: its objectives, the parameters that each updates, and their positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from tilewright.ir.dtype import DType, f32, f64
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, TensorType, Value
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError
from tilewright.train.arena import Arena
from tilewright.train.optimizers import Optimizer
from tilewright.train.stages import Average


@dataclass(frozen=True, slots=True)
class Objective:
    """A loss to be minimised, as a graph with its parameters.

    graph     from the batch (and a key of random numbers) to the loss, metrics, and new values of buffers
    weights   the values of its parameters by name
    metrics   what the loss and the metrics are called
    movable   the parameters that may be trained
    changed   the buffers whose new values are the graph's last outputs
    counters  integer buffers that grow by one at each step, with their values; they are not in the graph
    key       the input that random numbers depend on
    others    the other entries of the model's own dictionary of weights
    tied      later names of parameters in that dictionary, each with the first
    tensor    a function from an array to an entry of that dictionary, such as a tensor; None: arrays
    """

    graph: Graph
    weights: Mapping[str, Any]
    metrics: tuple[str, ...]
    movable: tuple[str, ...]
    changed: tuple[str, ...] = ()
    counters: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    tensor: Callable[[Any], Any] | None = None


def together(objectives: Sequence[Objective]) -> Objective:
    """One objective for the whole step: weights, changed buffers and metrics of all `objectives`, and the graph of the
    first."""
    weights: dict[str, Any] = {}
    changed: dict[str, None] = {}
    for objective in objectives:
        weights |= objective.weights
        changed |= dict.fromkeys(objective.changed)
    metrics = tuple(name for objective in objectives for name in objective.metrics)
    key = next((o.key for o in objectives if o.key is not None), None)
    return replace(objectives[0], weights=weights, metrics=metrics, changed=tuple(changed), key=key)


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that one optimiser updates together."""

    optimizer: Optimizer
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The parameters that are updated by the gradient of one objective.

    objective  the loss to be minimised
    groups     the parameters that move, and how
    clip       the largest norm of all its gradients together; None for no limit
    norm       the name of that norm among the metrics
    every      it takes part in every n-th update
    """

    objective: Objective
    groups: tuple[Group, ...]
    clip: float | None = None
    norm: str = "gradient_norm"
    every: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for group in self.groups for name in group.names)

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*self.objective.metrics, self.norm)


Active = tuple[bool, ...]
"""For each stage, and then each average, whether it takes part in an update."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of a learning step: which parameters its stages update, from which losses.

    stages    one after the other
    averages  parameters that are averages of others, updated after the stages
    batches   how many batches' gradients make one update
    """

    stages: tuple[StagePlan, ...]
    averages: tuple[Average, ...] = ()
    batches: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for stage in self.stages for name in stage.names)

    @property
    def groups(self) -> list[Group]:
        return [group for stage in self.stages for group in stage.groups]

    @property
    def key(self) -> str | None:
        """The input that random numbers depend on."""
        return next((s.objective.key for s in self.stages if s.objective.key is not None), None)

    @property
    def only(self) -> Optimizer | None:
        """The optimiser, if a single one updates all parameters in every update, for which there is a faster path; else
        None."""
        one = len(self.groups) == 1 and self.stages[0].every == 1
        return self.groups[0].optimizer if one else None

    @property
    def rates(self) -> list[float]:
        return [group.optimizer.lr for group in self.groups]

    def scalars(self, count: int, rates: Sequence[float]) -> tuple[float, ...]:
        """The numbers that update `count` (from 1) passes to its kernels."""
        counts = [max(1, count // stage.every) for stage in self.stages for _ in stage.groups]
        results = (g.optimizer.scalars(k, lr) for g, k, lr in zip(self.groups, counts, rates, strict=True))
        return tuple(number for numbers in results for number in numbers)

    def active(self, count: int) -> Active:
        """The stages and averages that take part in update `count` (from 1)."""
        return tuple(every > 0 and count % every == 0 for every in self._periods)

    def kinds(self) -> Iterator[Active]:
        """All different kinds of updates."""
        yield from dict.fromkeys(self.active(k + 1) for k in range(math.lcm(*filter(None, self._periods))))

    @property
    def _periods(self) -> tuple[int, ...]:
        return (*(s.every for s in self.stages), *(a.every for a in self.averages))


def check_trained(graph: Graph, names: Collection[str]) -> None:
    """Raise ModelError for a loss that is not one float, and for parameters to be trained that are not floats of 16
    bits or more."""
    for value in graph.params:
        if value.name in names and not is_trainable(value.dtype):
            expected = "f32, f64, bf16 or f16"
            raise ModelError("such parameters are not trained", where=value.name, expected=expected, got=value.type)
    loss = graph.outputs[0]
    if as_int(loss.type.size) != 1 or not is_trainable(loss.dtype):
        raise ModelError("the loss must be one number", expected="f32", got=loss.type)


def is_trainable(t: DType) -> bool:
    """Whether parameters of this type are trained."""
    return t.is_float and t.bits >= 16


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of parameters and buffers in a step's vectors. The buffers are the ones that objectives change
    (`changed`), followed by the parameters that are averages of others, in the order of these others."""

    arena: Arena
    buffers: Arena
    changed: Arena


def layout_of(plan: StepPlan) -> Layout:
    """The positions of a step's parameters and buffers in its vectors.

    Raises ModelError for changing buffers that are no such floats as parameters, for parameters that two stages update,
    and for averages of what no stage updates.
    """
    result: dict[str, TensorType] = {}
    moved: dict[str, TensorType] = {}
    for stage in plan.stages:
        graph = stage.objective.graph
        types = {v.name: v.type for v in graph.params}
        result |= types
        for name in stage.names:
            if name in moved:
                raise ModelError("two stages move one parameter", got=name)
            moved[name] = types[name]
    changed = _changed(plan)
    for name, held in changed.items():
        if not is_trainable(held.dtype):
            raise ModelError("buffers that change must be floats or count steps", where=name, got=held)
    states = {group.optimizer.state for group in plan.groups}
    if len(states) > 1:
        kinds = ", ".join(type(group.optimizer).__name__ for group in plan.groups)
        raise ModelError("optimisers of one step keep the same state", got=kinds)
    wide = f64 if any(t.dtype is f64 for t in (*moved.values(), *changed.values())) else f32
    arena = _vector({name: moved[name] for name in plan.names}, wide, next(iter(states), ()))
    following = {target: moved[source] for target, source in _followed(plan, moved, result, changed)}
    return Layout(arena, _vector(changed | following, wide), _vector(changed, wide))


def _vector(types: Mapping[str, TensorType], wide: DType, state: tuple[str, ...] = ()) -> Arena:
    own = tuple(t.dtype for t in types.values())
    return Arena(tuple(types), tuple(map(_sizes, types.values())), state, wide, own)


def followed(average: Average, names: Sequence[str]) -> list[tuple[str, str]]:
    """(parameter that is an average, the parameter that it follows) for those of `names` that match the average's
    source."""
    sources = [name for name in names if name.startswith(average.source)]
    return [(average.target + name.removeprefix(average.source), name) for name in sources]


def _followed(
    plan: StepPlan, moved: Mapping[str, TensorType], result: Mapping[str, TensorType], changed: Mapping[str, TensorType]
) -> Iterator[tuple[str, str]]:
    for average in plan.averages:
        pairs = followed(average, plan.names)
        there = {name for name in result if name.startswith(average.target)}
        wrong = sorted(there ^ {target for target, _ in pairs})
        if wrong or not pairs:
            expected = ", ".join(target for target, _ in pairs) or f"parameters {average.source}* that move"
            raise ModelError("what follows others has their names", expected=expected, got=", ".join(sorted(there)))
        for target, source in pairs:
            if result[target] != moved[source] or target in moved or target in changed:
                raise ModelError("cannot follow another parameter", where=target, expected=moved[source])
        yield from pairs


def _changed(plan: StepPlan) -> dict[str, TensorType]:
    """The buffers that objectives change. Raises ModelError if two do."""
    result: dict[str, TensorType] = {}
    for stage in plan.stages:
        changed = stage.objective.changed
        for name, value in zip(changed, new_buffers(stage.objective), strict=True):
            if name in result:
                raise ModelError("two stages change one buffer", got=name)
            result[name] = value.type
    return result


def new_buffers(objective: Objective) -> tuple[Value, ...]:
    """The outputs of an objective's graph that are new values of buffers."""
    outputs = objective.graph.outputs
    return outputs[len(outputs) - len(objective.changed) :]


def _sizes(type: TensorType) -> tuple[int, ...]:
    return tuple(as_int(d) or 0 for d in type.shape)
