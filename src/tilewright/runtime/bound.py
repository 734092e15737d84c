"""A call with bound arguments, which native code can make later: a function and the address of its argument."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.runtime.arguments import bind_inputs, bind_outputs
from tilewright.runtime.call import NO_EXECUTOR
from tilewright.runtime.engine import Engine
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import Struct
from tilewright.runtime.limits import ENDLESS, REFUSED
from tilewright.runtime.model import Model
from tilewright.runtime.refusals import refused
from tilewright.support.errors import CallError, Error

BOUND = Struct("call*", "model*", "io*", "dims*", "status")
"""A bound call in memory: the function `call(model, io, dims)`, its arguments, and the status that it returned."""


class BoundCall:
    """A call of a model on arrays, which must stay where they are.

    Attributes:
        address: of its BOUND.
    """

    def __init__(self, engine: Engine, arrays: Sequence[Array], dims: tuple[int, ...]) -> None:
        self._engine = engine
        self._arrays = arrays
        self._io = np.array([*(a.ctypes.data for a in arrays), 0], np.int64)
        self._dims = np.array([*dims, 0], np.int64)
        words = [engine.call_address, engine.address, self._io.ctypes.data, self._dims.ctypes.data, 0]
        self._bound = np.array(words, np.int64)
        self.address: int = self._bound.ctypes.data

    def explain(self, status: int) -> Error:
        """The error with which the last call ended, from its status."""
        status = int(self._bound[BOUND.status >> 3])
        if ENDLESS <= status < REFUSED:
            return self._engine.ended(status)
        if status >= REFUSED:
            return refused(self._engine.manifest, status - REFUSED, self._io[-1:])
        return CallError("the call was not made", where=f"program {self._engine.manifest.name!r}", got=status)


def bound_call(model: Model, inputs: Sequence[Array], outputs: Sequence[Array]) -> BoundCall | None:
    """A model's call on `inputs` and `outputs`, arrays that native code reads and writes in place; None if it cannot:
    where inputs would be copied, data decides sizes, or the program keeps state or runs on a GPU. Raises CallError if
    the arrays do not fit."""
    manifest, engine = model.manifest, model._engine
    if manifest.extents or manifest.state is not None or manifest.ragged is not None or engine.device is not None:
        return None
    bound = bind_inputs(manifest.inputs, manifest.symbols, inputs)
    theirs, ours = bind_outputs(manifest.outputs, engine.output_shapes(bound.dims), tuple(outputs))
    pairs = [*zip(inputs, bound.arrays, strict=True), *zip(theirs, ours, strict=True)]
    if any(a.ctypes.data != b.ctypes.data for a, b in pairs):
        return None
    if any(np.may_share_memory(o, a) for o in ours for a in bound.arrays):
        return None
    engine.ensure(bound.dims)
    return BoundCall(engine, [*bound.arrays, *ours], bound.dims)


__all__ = ["BOUND", "NO_EXECUTOR", "BoundCall", "bound_call"]
