"""Reduces gradients in a thread during the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.engine import Engine, Operation, Recording, Variable
from tilewright.train.reduced import Array, Reduce


class Overlapped:
    """A step's `reduce` function that runs in a thread of its own: it reduces parts in the order in which the backward
    pass computes them, while that goes on. Native code runs without the GIL, so that both proceed at once if there is a
    free core.

        reduce = tw.train.overlapped(tw.train.averaged(group))

    Args:
        reduce: the function that reduces a part in place, completely when it returns.
        cpus: the CPUs on which the thread may run, such as those that compute no model; None for all.
    """

    def __init__(self, reduce: Reduce, cpus: Sequence[int] | None = None) -> None:
        self._reduce = reduce
        self._engine = Engine(1, cpus=cpus)
        self._order = Variable("reductions")

    def __call__(self, part: Array) -> Work:
        operation = self._engine.push(lambda: _whole(self._reduce(part)), writes=[self._order], name="reduce")
        return Work(self._engine, operation, self._order)

    def record(self) -> Recording:
        """Record from now on what the thread does, and when (`Engine.record`)."""
        return self._engine.record()

    def close(self) -> None:
        """Wait for the reductions that have begun or are queued, and end the thread that runs them."""
        self._engine.close()


class Work:
    """A reduction of gradients that runs in the thread of an engine."""

    def __init__(self, engine: Engine, operation: Operation, order: Variable) -> None:
        self._engine = engine
        self._operation = operation
        self._order = order

    def wait(self) -> None:
        """Wait until the reduction ends. Raises the exception of a reduction that failed; later ones can begin
        again."""
        try:
            self._engine.wait(self._operation)
        except BaseException:
            self._engine.recover(self._order)
            raise


def _whole(begun: Any) -> None:
    """Wait for a reduction that the caller's function has only started, if the returned object has a method `wait`."""
    wait = getattr(begun, "wait", None)
    if wait is not None:
        wait()


def overlapped(reduce: Reduce, cpus: Sequence[int] | None = None) -> Overlapped:
    """A function for `reduce=` of `compile_step` that calls `reduce` in a thread, so that it overlaps with the backward
    pass; `cpus` are those of the thread."""
    return Overlapped(reduce, cpus)
