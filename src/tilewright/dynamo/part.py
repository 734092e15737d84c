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

    def __init__(
        self, name: str, cut: Cut, program: Program, eager: Callable[..., Any], threads: int, frozen: bool
    ) -> None:
        self.name, self.cut, self.program = name, cut, program
        self._eager, self._threads, self._frozen = eager, threads, frozen
        self._library, self._packing = link(program), packing(program.manifest)
        self._sets: dict[tuple[int, ...], tuple[Packed, Callable[..., Any]]] = {}
        self._call: Callable[..., Any] = self.again
        self._lock = threading.Lock()
        self._warned = False

    def function(self) -> Callable[..., Any]:
        """The callable: the part's inputs, then its weights; a tensor, or a tuple of them."""
        refused, finish = self.refused, finisher(self.cut.outputs)
        if self.cut.weights:
            self._call = self.again
        else:
            packed = self._packed()
            packed.take(())
            self._call = packed.call

        def call(*tensors: Any) -> Any:
            try:
                return self._call(*tensors)
            except Error as error:
                return refused(error, tensors)

        return call if finish is None else lambda *tensors: finish(call(*tensors))

    def _packed(self) -> Packed:
        return Packed(self.program, self._library, self._packing, self._threads, self._frozen, self.again)

    def again(self, *tensors: Any) -> Any:
        """A call whose weights are not those of the last one, or in which something else is out of the ordinary: the
        program is given these weights, and takes calls with them by itself from now on."""
        count = len(self.cut.inputs)
        weights = tensors[count:]
        place = tuple(w.data_ptr() for w in weights)
        with self._lock:
            packed, call = self._sets.pop(place) if place in self._sets else (self._packed(), self.again)
            if not packed.holds(weights):
                call = packed.take(weights)
            self._sets[place] = packed, call
            if len(self._sets) > MAX_SETS:
                del self._sets[next(iter(self._sets))]
            self._call = call
        return packed.call(*tensors[:count])

    def refused(self, error: Error, tensors: Sequence[Any]) -> Any:
        """What PyTorch computes in place of a program that refuses a call."""
        if not self._warned:
            self._warned = True
            warnings.warn(f"{self.name} runs in PyTorch: {error.headline()}", RuntimeWarning, stacklevel=2)
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
