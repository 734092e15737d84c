"""`Step`: a compiled learning step with its parameters and all other state that persists between steps.

The parameters and the optimiser's state are in two arenas that alternate: a step reads one and writes the other; the
same holds for buffers that change. So a step that gives NaN or infinity can be refused without a trace. Accumulated or
reduced gradients have a vector of their own: sums alternate between it and the arena that the next update writes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import field
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tilewright.ir.dtype import DType, f32
from tilewright.ir.graph import Value
from tilewright.runtime.interop import as_numpy, framework, on_cpu
from tilewright.runtime.model import Model
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError
from tilewright.train.arena import Arena, checked, zeros
from tilewright.train.plan import Active, Layout, StepPlan, together
from tilewright.train.reduced import ReducedStage, Update
from tilewright.train.saved import read_step, write_step
from tilewright.train.schedules import Schedule

Array = np.ndarray[Any, Any]
OnNonfinite = Literal["raise", "skip", "keep"]
Vectors = tuple[tuple[Array, ...], tuple[Array, ...]]
"""The vectors that a step reads, and those that it writes."""
GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1


@dataclass(slots=True)
class Turns:
    """Two vectors that exchange their roles after each step: a step reads `now` and writes `after`."""

    now: Array
    after: Array

    @classmethod
    def of(cls, arena: Arena) -> Turns:
        return cls(arena.empty(), arena.empty())

    def swap(self) -> None:
        self.now, self.after = self.after, self.now


@dataclass(slots=True)
class Kind:
    """One of the programs of a learning step: for updates in which the same stages and averages take part, or for
    batches whose gradients are only accumulated.

    results  its results beside the new vectors, each the first number of an array
    finite   those results that must be finite: losses and norms
    ready    the vectors that it reads after the batch, and those that it writes, for each turn
    """

    model: Model
    results: list[Array]
    numbers: list[tuple[str, Array]]
    finite: tuple[str, ...]
    ready: list[Vectors | None] = field(default_factory=lambda: [None, None])

    @classmethod
    def of(cls, model: Model, plan: StepPlan, active: Active, dtype: DType) -> Kind:
        stages = [s for s, there in zip(plan.stages, active, strict=False) if there]
        names = [name for stage in stages for name in stage.metrics]
        outputs = model.outputs[: len(names)]
        results = [np.zeros([int(d) for d in s.shape], dtype.numpy) for s in outputs]
        numbers = [(n, r.reshape(-1)[:1]) for n, r in zip(names, results, strict=True)]
        return cls(model, results, numbers, tuple(n for s in stages for n in (s.metrics[0], s.norm)))


class Step:
    """A compiled learning step.

    count     the number of batches so far
    rates     the learning rate of each group of parameters; `lr` is the first
    schedule  a function from the number of updates so far to a factor of all rates; None for none
    seed      of random numbers, which also depend on the count
    turn      which of its two arenas holds the parameters
    refuse    a function of a step's results; if it is true, parameters stay unchanged. With `reduce`, accumulated
              gradients are then lost, and all processes must decide the same. None: never
    """

    def __init__(
        self,
        models: Mapping[Active, Model],
        gather: Model | None,
        plan: StepPlan,
        layout: Layout,
        on_nonfinite: OnNonfinite,
        schedule: Schedule | None = None,
        seed: int = 0,
        update: Update | None = None,
    ) -> None:
        objective = together([stage.objective for stage in plan.stages])
        t = layout.arena.dtype
        kinds = {active: Kind.of(model, plan, active, t) for active, model in models.items()} if update is None else {}
        self._kinds = kinds
        self._only = next(iter(kinds.values())) if len(kinds) == 1 and gather is None else None
        self._gathers = None if gather is None else Kind.of(gather, plan, next(iter(models)), t)
        self._update = update
        self.model = models[max(models)]  # in which most takes part
        self.metrics = tuple(name for stage in plan.stages for name in stage.metrics)
        self.refuse: Callable[[dict[str, float]], bool] | None = None
        self.on_nonfinite = on_nonfinite
        self.schedule = schedule
        self.seed = seed
        self.count = 0
        self.rates = plan.rates
        self._objective = objective
        self._plan = plan
        self._batches = plan.batches
        self._numbers = plan.only.scalars if plan.only is not None else None
        self._layout = layout
        self._arena = Turns.of(layout.arena)
        self._buffers = Turns.of(layout.buffers)
        self._gradients = zeros(layout.arena.part if gather or update else 0, t)
        self._scalars = np.zeros(len(plan.scalars(1, self.rates)), t.numpy)
        self._pack = struct.Struct(f"={self._scalars.size}{'f' if t is f32 else 'd'}").pack_into
        self._scalars_bytes = self._scalars.data
        self._key = np.zeros(2, np.uint32)
        self._counters = {name: int(value) for name, value in objective.counters.items()}
        self.turn = 0
        self._fill(layout.arena, self._arena.now, objective.weights)
        self._fill(layout.buffers, self._buffers.now, {**objective.others, **objective.weights})

    @staticmethod
    def _fill(arena: Arena, memory: Array, values: Mapping[str, Any]) -> None:
        arena.fill(memory, {name: values[name] for name in arena.names})

    @property
    def lr(self) -> float:
        """The learning rate of the next update, before `schedule`."""
        return self.rates[0]

    @lr.setter
    def lr(self, rate: float) -> None:
        self.rates[0] = rate

    @property
    def updates(self) -> int:
        """How many times parameters have been updated."""
        return self.count // self._plan.batches

    def __call__(self, *batch: Any, **named: Any) -> dict[str, float]:
        """Run the step on a batch: arrays in the order of the example, the last ones also by the names that the loss
        (or the model, and "target") has for them. Returns the loss, the metrics, and `gradient_norm`, the norm of all
        gradients together before clipping.

        With `accumulate=n`, every n-th call updates the parameters, by the mean of the gradients of n batches. The norm
        is that of the gradients accumulated so far; with `reduce`, only calls that update return one. With several
        stages, those that take part return `NAME_loss` and `NAME_gradient_norm`.

        Raises CallError for arrays that do not fit, and with `on_nonfinite="raise"` where the loss or a gradient is NaN
        or infinite; parameters are then as they were.
        """
        if named:
            batch = self._in_order(batch, named)
        if self._update is not None:
            return self._reduced(self._update, batch)
        batches = self._batches
        moves = batches == 1 or (self.count + 1) % batches == 0
        if moves:
            self._set_scalars()
        if self._objective.key is not None:
            self._draw()
        if self._gathers is not None and self.count % batches == 0:
            self._sums()[0].fill(0)
        kind = self._only or self._kind(moves)
        inputs, outputs = kind.ready[self.turn] or self._vectors(kind, moves)
        try:
            kind.model(*batch, *inputs, out=outputs)
        except CallError as error:
            raise self._misfit(batch, error) from None
        result = {name: number.item() for name, number in kind.numbers}
        if self.on_nonfinite != "keep":
            for name in kind.finite:
                if not isfinite(result[name]):
                    return self._nonfinite(kind, result)
        if self.refuse is not None and self.refuse(result):
            return result
        if self._buffers.now.size:
            self._buffers.swap()
        if moves:
            self._arena.swap()
            self.turn ^= 1
        self.count += 1
        return result

    def _expected(self) -> list[Value]:
        """The inputs of the step that the caller passes: the batch, without the key of random numbers."""
        return [v for v in self._objective.graph.inputs if v.name != self._objective.key]

    def _in_order(self, batch: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arrays of a batch, `batch` by position and `named` by name, in order."""
        expected = self._expected()
        rest = [v.name for v in expected[len(batch) :]]
        if named.keys() != set(rest):
            shown = ", ".join(f"{v.name}: {v.type}" for v in expected)
            got = f"{len(batch)} in order, {', '.join(named)}"
            raise CallError("the names are not those of the batch", where="step", expected=shown, got=got)
        return (*batch, *(named[name] for name in rest))

    def _misfit(self, batch: tuple[Any, ...], error: CallError) -> CallError:
        """The error for a batch that does not fit, which only names its arrays."""
        expected = self._expected()
        if len(batch) == len(expected):
            return error
        shown = ", ".join(f"{v.name}: {v.type}" for v in expected)
        return CallError("wrong number of arrays in the batch", where="step", expected=shown, got=len(batch))

    def _nonfinite(self, kind: Kind, result: dict[str, float]) -> dict[str, float]:
        """The result of a step whose loss or gradients are not finite. Raises CallError instead if the step was
        compiled so."""
        if self.on_nonfinite == "raise":
            got = ", ".join(f"{name.replace('_', ' ')} {result[name]}" for name in kind.finite)
            raise CallError("the step is not finite; parameters are as they were", where="step", got=got)
        return result

    def _reduced(self, update: Update, batch: tuple[Any, ...]) -> dict[str, float]:
        """Take a step on `batch` with `reduce`, whose gradients are reduced before the update; returns the losses and
        metrics by name. Only the reduced gradients decide whether the step is finite, so that all processes decide
        alike."""
        moves = (self.count + 1) % self._batches == 0
        active = self._plan.active(self.updates + 1)
        if self._objective.key is not None:
            self._draw()
        if self._batches > 1 and self.count % self._batches == 0:
            self._sums()[0].fill(0)
        if moves:
            self._set_scalars()
        result: dict[str, float] = {}
        for stage in self._taking(update, active):
            gradients, changed = self._sums()[1], self._buffers.after[: self._layout.changed.part]
            stage.back(batch, self._read(stage, not result), gradients, changed, update.reduce if moves else None)
            result |= stage.last_metrics()
            if moves:
                arena = self._arena
                norm = stage.move(arena.now, self._scalars, gradients, arena.after, self._layout.arena.part)
                result[stage.plan.norm] = norm
                if self.on_nonfinite != "keep" and not isfinite(norm):
                    self._begin_anew()  # what has been gathered is spoiled, by whichever process
                    if self.on_nonfinite == "raise":
                        raise CallError("the step is not finite; parameters are as they were", where="step", got=norm)
                    return result
        self._follow(update, active[len(update.stages) :] if moves else ())
        if self.refuse is not None and self.refuse(result):
            self._begin_anew()
            return result
        if moves:
            self._arena.swap()
            self.turn ^= 1
        self._buffers.swap()
        self.count += 1
        return result

    def _begin_anew(self) -> None:
        """Drop the accumulated gradients of earlier batches of the current update."""
        self.count -= self.count % self._batches

    def _taking(self, update: Update, active: Active) -> list[ReducedStage]:
        """The stages that take part in an update. If the step has several, the vectors that it writes first get a copy
        of the old values, since each stage reads what earlier ones have written."""
        results = [stage for stage, there in zip(update.stages, active, strict=False) if there]
        if len(update.stages) > 1:
            arena, all_move = self._arena, len(results) == len(update.stages)
            size = self._layout.arena.part if all_move else arena.now.size  # the state of what moves is written anyway
            arena.after[:size] = arena.now[:size]
            self._buffers.after[:] = self._buffers.now
        return results

    def _read(self, stage: ReducedStage, first: bool) -> dict[str, Array]:
        """The step's vectors that a stage reads, by their names in its graph: for the `first` stage the vectors before
        the step, else the ones that earlier stages have written."""
        arena, buffers = (self._arena.now, self._buffers.now) if first else (self._arena.after, self._buffers.after)
        if stage.changes and not first:
            buffers = buffers.copy()  # it writes the other one
        key = {} if self._objective.key is None else {self._objective.key: self._key}
        return {"arena": arena, "buffers": buffers, "gathered": self._sums()[0], **key}

    def _follow(self, update: Update, active: Active) -> None:
        """Update the parameters that are averages of others; `active` says of each average whether it takes part in
        this step."""
        start = self._layout.changed.part
        if any(active):
            update.follow[active](self._arena.after, self._buffers.now, out=self._buffers.after[start:])
        else:
            self._buffers.after[start:] = self._buffers.now[start:]

    def _sums(self) -> tuple[Array, Array]:
        """(the gradients accumulated so far, the memory for their sum with this batch's): the step's own vector of
        gradients, and the first part of the next arena, in turns, so that an update, which overwrites the latter, reads
        the former."""
        others = self._arena.after[: self._layout.arena.part]
        earlier = self._batches - 1 - self.count % self._batches - (self._update is None)
        return (others, self._gradients) if earlier % 2 == 0 else (self._gradients, others)

    def _kind(self, moves: bool) -> Kind:
        if not moves:
            assert self._gathers is not None
            return self._gathers
        return self._kinds[self._plan.active(self.updates + 1)]

    def _vectors(self, kind: Kind, moves: bool) -> Vectors:
        """(the vectors that a program reads after the batch, those that it writes); `moves`: it updates parameters.
        Without accumulated gradients they are cached for both turns, as building them would take longer than a small
        step."""
        objective, buffers = self._objective, self._buffers if self._layout.buffers.names else None
        inputs = [*([] if objective.key is None else [self._key]), self._arena.now]
        inputs += [self._scalars] if moves else []
        before, gathered = self._sums()
        inputs += [before] if self._gathers is not None else []
        inputs += [buffers.now] if buffers is not None else []
        outputs = [*kind.results, self._arena.after if moves else gathered]
        outputs += [buffers.after] if buffers is not None else []
        vectors = tuple(inputs), tuple(outputs)
        if self._gathers is None:
            kind.ready[self.turn] = vectors
        return vectors

    def _set_scalars(self) -> None:
        updates, rates = self.count // self._batches, self.rates
        if self.schedule is not None:
            factor = self.schedule(updates)
            rates = [rate * factor for rate in rates]
        if self._numbers is None:
            self._pack(self._scalars_bytes, 0, *self._plan.scalars(updates + 1, rates))
        else:
            self._pack(self._scalars_bytes, 0, *self._numbers(updates + 1, rates[0]))

    def _draw(self) -> None:
        """Set the key of this step's random numbers: output `count` of SplitMix64 (Steele et al., 2014)."""
        z = (self.seed + GOLDEN * (self.count + 1)) & WORD
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
        z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
        z ^= z >> 31
        self._key[:] = z & 0xFFFFFFFF, z >> 32

    @property
    def parameters(self) -> dict[str, Array]:
        """The parameters by name, as views of the arena, valid until the next step."""
        return self._layout.arena.views(self._arena.now)

    @property
    def states(self) -> dict[str, dict[str, Array]]:
        """The optimiser's state, by its name and the parameter's, as views valid until the next step."""
        arena = self._layout.arena
        return {state: arena.views(self._arena.now, 1 + k) for k, state in enumerate(arena.state)}

    @property
    def buffers(self) -> dict[str, Array]:
        """The buffers that steps change: running statistics, which hold until the next step, and counts of steps."""
        counts = {name: np.array(start + self.count) for name, start in self._counters.items()}
        return self._layout.buffers.views(self._buffers.now) | counts

    @property
    def weights(self) -> dict[str, Array]:
        """All entries of the model's own dictionary of weights, in its order: trained and constant parameters, and
        buffers. They are views, valid until the next step; trained parameters of another type than the step's arena,
        such as 16 bits, are copies. Pass them to `Model.update` or `Publisher.publish`."""
        arena, buffers = self._layout.arena, self._layout.buffers
        own = arena.narrowed(self.parameters) | buffers.narrowed(buffers.views(self._buffers.now))
        result = {**self._objective.others, **self._objective.weights, **self.buffers, **own}
        return result | {name: result[first] for name, first in self._objective.tied.items() if first in result}

    def state_dict(self) -> dict[str, Any]:
        """Copies of `weights`: for a PyTorch module tensors, for its `load_state_dict`; otherwise arrays."""
        copied = self._objective.tensor or np.array
        return {name: copied(array) for name, array in self.weights.items()}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Replace the parameters, and those buffers that are among the values; the optimiser's state stays, and so do
        weights that training does not change. Raises ModelError, before anything has changed, if names or shapes
        differ."""
        arguments = {name: _array(value) for name, value in values.items()}
        arena, buffers = self._layout.arena, self._layout.buffers
        known = {*self._objective.others, *self._objective.weights, *self._objective.tied, *self._counters}
        own = {name: a for name, a in arguments.items() if name in arena.names or name not in known}
        moving = {name: a for name, a in arguments.items() if name in buffers.names} or buffers.views(self._buffers.now)
        arrays = arena.narrowed(checked(own, {n: v.shape for n, v in self.parameters.items()}))
        buffers.fill(self._buffers.now, moving)
        arena.fill(self._arena.now, arrays)
        for name in self._counters:
            if name in arguments:
                self._counters[name] = int(arguments[name]) - self.count

    def save(self, path: str | Path) -> None:
        """Write parameters, buffers, the optimiser's state and the number of steps to a safetensors file."""
        arena = self._layout.arena
        arrays = {
            f"{part}/{name}": array
            for k, part in enumerate(("parameter", *arena.state))
            for name, array in arena.views(self._arena.now, k).items()
        }
        arrays |= {f"buffer/{n}": a for n, a in self.buffers.items()}
        if self._batches > 1:
            arrays |= {f"gathered/{n}": a for n, a in arena.views(self._sums()[0]).items()}
        write_step(path, arrays, self.count, self.rates, self.seed)

    def load(self, path: str | Path) -> None:
        """Restore the state of `save`: the next steps are the same, bit by bit.

        Raises ModelError, before anything has changed, for a file of another step.
        """
        arena, buffers = self._layout.arena, self._layout.buffers
        shapes = {f"{part}/{n}": v.shape for part in ("parameter", *arena.state) for n, v in self.parameters.items()}
        shapes |= {f"buffer/{n}": a.shape for n, a in self.buffers.items()}
        if self._batches > 1:
            shapes |= {f"gathered/{n}": v.shape for n, v in self.parameters.items()}
        saved = read_step(path, shapes, len(self.rates))
        for k, part in enumerate(("parameter", *arena.state)):
            values = {n: saved.arrays[f"{part}/{n}"] for n in arena.names}
            arena.fill(self._arena.now, values if k else arena.narrowed(values), k)
        buffers.fill(self._buffers.now, {n: saved.arrays[f"buffer/{n}"] for n in buffers.names})
        for name in self._counters:
            self._counters[name] = int(saved.arrays[f"buffer/{name}"]) - saved.count
        self.count, self.rates, self.seed = saved.count, saved.rates, saved.seed
        if self._batches > 1:
            arena.fill(self._sums()[0], {n: saved.arrays[f"gathered/{n}"] for n in arena.names})

    def show(self, stage: str) -> str:
        """The text `stage` of the step's program, as `Model.show` prints it."""
        return self.model.show(stage)


def _array(value: Any) -> Array:
    """A tensor of any framework as a NumPy array."""
    return as_numpy(on_cpu(value).detach(), "a weight") if framework(value) == "torch" else np.asarray(value)
