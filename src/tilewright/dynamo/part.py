"""`Part`: a part of a graph as a callable on PyTorch's tensors."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.dynamo.partition import Cut
from tilewright.dynamo.weights import Packed, packing
from tilewright.runtime.program import Program, link
from tilewright.support.errors import Error

MAX_SETS = 64
"""The number of weight sets that a part keeps packed: modules of one class share TorchDynamo's compiled code."""


class Part:
    """A part of a PyTorch graph compiled to a program, called with tensors like a function.

    Args:
        eager: the same as PyTorch runs it, for calls that the program does not serve.
        frozen: weights are packed once and are never looked at again.
    """

    def __init__(
        self, name: str, cut: Cut, program: Program, eager: Callable[..., Any], threads: int, frozen: bool
    ) -> None:
        self.name, self.cut, self.program = name, cut, program
        self.__name__, self.__module__ = name, __name__
        self._eager, self._threads, self._frozen = eager, threads, frozen
        self._library, self._packing = link(program), packing(program.manifest)
        self._sets: dict[tuple[int, ...], tuple[Packed, Callable[..., Any]]] = {}
        self._globals: dict[str, Any] = {}
        self._names: list[str] = []
        self._lock = threading.Lock()
        self._warned = False

    def __call__(self, *tensors: Any) -> Any:
        """Call with the part's inputs, then its weights; returns a tensor, or a tuple of them."""
        return self.repeat(*tensors)

    def known_in(self, namespace: dict[str, Any]) -> None:
        """Note the names of this part in `namespace`, a function's globals: whenever weights change, the builtin that
        runs the program with the new weights is put there in its place, which makes calls as short as possible."""
        self._globals = namespace
        self._names = [name for name, value in namespace.items() if value is self]

    def _packed(self) -> Packed:
        return Packed(self.program, self._library, self._packing, self._threads, self._frozen, self.repeat)

    def repeat(self, *tensors: Any) -> Any:
        """Handle a call whose weights differ from the last call's, or that is otherwise exceptional: the program gets
        these weights, and handles further calls with them by itself."""
        try:
            return self._packed_with(tensors[len(self.cut.inputs) :]).call(*tensors[: len(self.cut.inputs)])
        except Error as error:
            return self.refused(error, tensors)

    def _packed_with(self, weights: Sequence[Any]) -> Packed:
        place = tuple(w.data_ptr() for w in weights)
        with self._lock:
            packed, call = self._sets.pop(place) if place in self._sets else (self._packed(), self.repeat)
            if not packed.holds(weights):
                call = packed.take(weights)
            self._sets[place] = packed, call
            if len(self._sets) > MAX_SETS:
                del self._sets[next(iter(self._sets))]
            self._globals.update(dict.fromkeys(self._names, call))
        return packed

    def refused(self, error: Error, tensors: Sequence[Any]) -> Any:
        """The result for `tensors` computed by PyTorch, after the program refused them with `error`. The first time it
        warns."""
        if not self._warned:
            self._warned = True
            warnings.warn(f"{self.name} runs in PyTorch: {error.headline()}", RuntimeWarning, stacklevel=2)
        return self._eager(*tensors)


__all__ = ["Part"]
