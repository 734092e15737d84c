"""`Part`: a part of a graph as a callable on PyTorch's tensors."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.dynamo.partition import Cut
from tilewright.dynamo.weights import Packed, packing
from tilewright.frontend.torch.aten import Port, dense_order
from tilewright.runtime.program import Program, link
from tilewright.support.errors import Error

MAX_SETS = 64
"""Sets of weights that a part keeps packed: modules of one class share what TorchDynamo has compiled."""


class Part:
    """A compiled part.

    Args:
        eager: the same as PyTorch runs it, for calls that the program does not serve.
        frozen: weights are packed once and are never looked at again.
    """

    def __init__(self, cut: Cut, program: Program, eager: Callable[..., Any], threads: int, frozen: bool) -> None:
        self.cut, self.program = cut, program
        self._eager, self._threads, self._frozen = eager, threads, frozen
        self._library, self._packing = link(program), packing(program.manifest)
        self._sets: dict[tuple[int, ...], Packed] = {}
        self._lock = threading.Lock()
        self._warned = False

    def function(self) -> Callable[..., Any]:
        """The callable: the part's inputs, then its weights; a tensor, or a tuple of them."""
        count, finish = len(self.cut.inputs), finisher(self.cut.outputs)
        call = self._watching(count) if self.cut.weights else self._plain()
        return call if finish is None else lambda *tensors: finish(call(*tensors))

    def _plain(self) -> Callable[..., Any]:
        packed = Packed(self.program, self._library, self._packing, self._threads, self._frozen)
        packed.take(())
        run, refused = packed.call, self.refused

        def call(*tensors: Any) -> Any:
            try:
                return run(*tensors)
            except Error as error:
                return refused(error, tensors)

        return call

    def _watching(self, count: int) -> Callable[..., Any]:
        follow, refused = self.follow, self.refused
        state: tuple[Callable[..., bool], Callable[..., Any]] = (lambda *weights: False), (lambda *inputs: None)

        def call(*tensors: Any) -> Any:
            nonlocal state
            unchanged, run = state  # together: another thread may exchange them
            try:
                weights = tensors[count:]
                if not unchanged(*weights):
                    packed = follow(weights)
                    state = unchanged, run = packed.unchanged, packed.call
                return run(*tensors[:count])
            except Error as error:
                return refused(error, tensors)

        return call

    def follow(self, weights: Sequence[Any]) -> Packed:
        """The program with these weights, packed again if they have changed."""
        place = tuple(w.data_ptr() for w in weights)
        with self._lock:
            found = self._sets.pop(place, None)
            if found is None:
                found = Packed(self.program, self._library, self._packing, self._threads, self._frozen)
            self._sets[place] = found
            if len(self._sets) > MAX_SETS:
                del self._sets[next(iter(self._sets))]
            if not found.unchanged(*weights):
                found.take(weights)
            return found

    def refused(self, error: Error, tensors: Sequence[Any]) -> Any:
        """What PyTorch computes in place of a program that refuses a call."""
        if not self._warned:
            self._warned = True
            warnings.warn(f"{self.program.manifest.name} runs in PyTorch: {error.headline()}", stacklevel=2)
        return self._eager(*tensors)


def finisher(outputs: Sequence[Port]) -> Callable[[Any], Any] | None:
    """What gives the program's results the strides that were traced; None where they have them."""
    each = [_restrided(port) for port in outputs]
    if not any(each):
        return None
    if len(each) == 1:
        return each[0]

    def finish(results: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(r if f is None else f(r) for f, r in zip(each, results, strict=True))

    return finish


def _restrided(port: Port) -> Callable[[Any], Any] | None:
    fake = port.node.meta["val"]
    shape, strides = tuple(fake.shape), tuple(fake.stride())
    if not all(isinstance(d, int) for d in (*shape, *strides)):
        inverse = tuple(sorted(range(len(port.order)), key=port.order.__getitem__))
        return None if port.is_plain else lambda result: result.permute(inverse)
    if torch.empty(shape, device="meta").stride() == strides:
        return None
    if dense_order(fake) is not None:
        return lambda result: result.as_strided(shape, strides)
    return lambda result: torch.empty_strided(shape, strides, dtype=result.dtype).copy_(result)


__all__ = ["Part", "finisher"]
