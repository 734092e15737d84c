"""The state of a parameter server: weights, and the clock of each worker.

A worker's clock is how many times it has pushed. Consistency is how far a worker may be ahead of the slowest one when
it pulls:

    staleness 0      synchronous: a step's gradients are averaged when all are there, in the order of the workers, so
                     that the bits are those of an all-reduction; no worker sees a step half done
    staleness s      bounded: gradients are added as they come; a worker with clock c waits until all have c - s
                     (Ho et al. 2013)
    staleness None   asynchronous: no worker waits
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.collective.reductions import reduce_into
from tilewright.support.classes import dataclass
from tilewright.support.errors import CollectiveError

Array = np.ndarray[Any, Any]


class Rule(Protocol):
    """How a gradient updates weights in place; it has no state of its own."""

    def __call__(self, weights: Array, gradient: Array) -> None: ...


@dataclass(frozen=True, slots=True)
class SGD:
    """The rule of gradient descent: weights minus the rate times the gradient."""

    rate: float

    def __call__(self, weights: Array, gradient: Array) -> None:
        weights -= weights.dtype.type(self.rate) * gradient


@dataclass(frozen=True, slots=True)
class Add:
    """The rule that adds the pushed values to the weights."""

    def __call__(self, weights: Array, gradient: Array) -> None:
        weights += gradient


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """A worker's gradients of one step.

    Attributes:
        clock: how many times the worker has pushed before.
        dense: gradients of whole arrays by name.
        rows: of some rows of an array by name: numbers of rows, i64[k], and gradients, [k, ...]; those of a row that is
            there twice are added.
    """

    worker: int
    clock: int
    dense: Mapping[str, Array]
    rows: Mapping[str, tuple[Array, Array]]


class Shard:
    """Weights by name, f32 or f64, which are updated in place, and the clocks of workers. One thread may use it at a
    time.

    Attributes:
        clocks: how many times each worker has pushed.
        steps: how many times weights have been updated.
    """

    def __init__(self, values: Mapping[str, Array], workers: int, rule: Rule, staleness: int | None = 0) -> None:
        if workers < 1 or (staleness is not None and staleness < 0):
            raise CollectiveError("no such server", where="server", got=f"{workers} workers, staleness {staleness}")
        self.values = dict(values)
        for name, value in self.values.items():
            if value.dtype not in (np.float32, np.float64) or not value.flags.c_contiguous or not value.flags.writeable:
                raise CollectiveError(
                    "weights must be f32 or f64, C-contiguous and writable", where=f"weight {name!r}", got=value.dtype
                )
        self.rule = rule
        self.staleness = staleness
        self.clocks = [0] * workers
        self.steps = 0
        self._waiting: dict[int, dict[int, Push]] = {}

    def check(self, push: Push) -> None:
        """Raise CollectiveError unless a push is valid: its worker, its names, shapes and types."""
        where = f"push {push.clock} of worker {push.worker}"
        if not 0 <= push.worker < len(self.clocks):
            raise CollectiveError("no such worker", where=where, expected=f"0 to {len(self.clocks) - 1}")
        if push.clock > self.clocks[push.worker]:
            raise CollectiveError("a push is missing", where=where, expected=self.clocks[push.worker])
        for name, gradient in push.dense.items():
            value = self._value(name, where)
            if gradient.shape != value.shape or gradient.dtype != value.dtype:
                got = f"{gradient.dtype}{gradient.shape}"
                raise CollectiveError(
                    f"the gradient of {name!r} is another", where=where, expected=f"{value.dtype}{value.shape}", got=got
                )
        for name, (numbers, gradient) in push.rows.items():
            value = self._value(name, where)
            check_rows(numbers, value, where)
            shape = (len(numbers), *value.shape[1:])
            if gradient.shape != shape:
                raise CollectiveError(
                    f"the rows of {name!r} do not fit", where=where, expected=shape, got=gradient.shape
                )
            if gradient.dtype != value.dtype:
                raise CollectiveError(f"rows of {name!r}", where=where, expected=value.dtype, got=gradient.dtype)

    def push(self, push: Push) -> bool:
        """Accept a worker's gradients; returns whether weights were updated. A push that was accepted before has no
        effect, so that a worker without an answer may repeat it."""
        self.check(push)
        if push.clock < self.clocks[push.worker]:
            return False
        self.clocks[push.worker] += 1
        if self.staleness != 0:
            self._move([push], len(self.clocks))
            return True
        step = self._waiting.setdefault(push.clock, {})
        step[push.worker] = push
        if len(step) < len(self.clocks):
            return False
        del self._waiting[push.clock]
        self._move([step[w] for w in range(len(self.clocks))], len(self.clocks))
        return True

    def may_pull(self, clock: int) -> bool:
        """Whether a worker with this clock may pull, as far as staleness is bounded."""
        return self.staleness is None or min(self.clocks) >= clock - self.staleness

    def waiting(self) -> list[Push]:
        """Pushes that were accepted but have not updated weights yet."""
        return [push for _, step in sorted(self._waiting.items()) for _, push in sorted(step.items())]

    def _value(self, name: str, where: str) -> Array:
        if name not in self.values:
            raise CollectiveError("no such weight", where=where, expected=sorted(self.values)[:8], got=name[:80])
        return self.values[name]

    def _move(self, pushes: Sequence[Push], workers: int) -> None:
        """Update the weights by the mean gradient of a step: the sum of all `pushes`, divided by the number of
        workers."""
        self.steps += 1
        for name, value in self.values.items():
            dense = [p.dense[name] for p in pushes if name in p.dense]
            if dense:
                total = np.empty_like(value)
                if len(dense) == workers:
                    reduce_into(total, dense, "f32" if value.dtype == np.float32 else "f64", "avg")
                else:
                    np.divide(sum(dense[1:], dense[0]), value.dtype.type(workers), out=total)
                self.rule(value, total)
            sparse = [p.rows[name] for p in pushes if name in p.rows]
            if sparse:
                self._move_rows(value, sparse, workers)

    def _move_rows(self, value: Array, sparse: Sequence[tuple[Array, Array]], workers: int) -> None:
        numbers, place = np.unique(np.concatenate([n for n, _ in sparse]), return_inverse=True)
        total = np.zeros((len(numbers), *value.shape[1:]), value.dtype)
        np.add.at(total, place, np.concatenate([g for _, g in sparse]))
        rows = value[numbers]
        self.rule(rows, total / value.dtype.type(workers))
        value[numbers] = rows


def check_rows(numbers: Array, value: Array, where: str) -> None:
    """Raise CollectiveError, about `where`, unless `numbers` are valid row numbers of the array `value`."""
    if numbers.ndim != 1 or numbers.dtype != np.int64 or not value.ndim:
        got = f"{numbers.dtype}{list(numbers.shape)} of {value.ndim} dimensions"
        raise CollectiveError("no numbers of rows", where=where, expected="i64[n]", got=got)
    count = len(value)
    if numbers.size and (numbers.min() < 0 or numbers.max() >= count):
        raise CollectiveError(
            "no such row", where=where, expected=f"0 to {count - 1}", got=f"{numbers.min()} to {numbers.max()}"
        )
