"""The arena: parameters and an optimiser's state as one vector, with a fixed range for each parameter. Its elements are
f32, or f64 where any parameter is; parameters of narrower types are in it with their values.

[ parameters | state 1 | state 2 ... ]      every part has the parameters' order; each begins at 64 bytes
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType, f32
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError

Array = np.ndarray[Any, Any]
ALIGN = 16
"""The alignment in elements: 64 bytes."""


@dataclass(frozen=True, slots=True)
class Arena:
    """The ranges of all parameters in one vector: names, shapes, and the optimiser's states, each of which is such a
    vector too. `dtype` is the vector's element type, f32 or f64; `types` are the parameters' own (none: the
    vector's)."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    state: tuple[str, ...] = ()
    dtype: DType = f32
    types: tuple[DType, ...] = ()

    def part_of(self, names: Sequence[str]) -> Arena:
        """The arena of some of these parameters alone, without states."""
        places = [self.names.index(name) for name in names]
        shapes = tuple(self.shapes[k] for k in places)
        return Arena(tuple(names), shapes, (), self.dtype, tuple(self.types[k] for k in places))

    def narrowed(self, views: Mapping[str, Array]) -> dict[str, Array]:
        """The values of parameters in their own types: copies, rounded, of those in `views` that have another."""
        return {name: views[name].astype(t.numpy, copy=False) for name, t in zip(self.names, self.types, strict=True)}

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def room(self) -> tuple[int, ...]:
        """The number of elements that each parameter occupies in the vector, rounded up to the alignment of the
        next."""
        return tuple(-(-size // ALIGN) * ALIGN for size in self.sizes)

    def span(self, names: Sequence[str]) -> tuple[int, int]:
        """(begin, end) in the vector of consecutive parameters `names`, with the padding after the last."""
        if not names:
            return 0, 0
        first, last = self.names.index(names[0]), self.names.index(names[-1])
        return self.starts[first], self.starts[last] + self.room[last]

    @property
    def starts(self) -> tuple[int, ...]:
        ends = np.cumsum((0, *self.room))
        return tuple(int(e) for e in ends[:-1])

    @property
    def part(self) -> int:
        """The number of elements that all parameters occupy together, which is that of each state vector, too."""
        return sum(self.room)

    @property
    def size(self) -> int:
        return self.part * (1 + len(self.state))

    def views(self, memory: Array, part: int = 0) -> dict[str, Array]:
        """The parameters (`part` 0), or the optimiser's first, second, ... state of each (1, 2, ...), as views of
        `memory` by name."""
        first = part * self.part
        return {
            name: memory[first + start : first + start + size].reshape(shape)
            for name, shape, start, size in zip(self.names, self.shapes, self.starts, self.sizes, strict=True)
        }

    def fill(self, memory: Array, values: Mapping[str, Any], part: int = 0) -> None:
        """Copy `values` into the arena `memory` once all of them fit; `part` 1, 2, ... stands for the optimizer's
        first, second, ... state.

        Raises ModelError naming what is missing, unknown, or has another shape.
        """
        views = self.views(memory, part)
        arrays = checked(values, {name: view.shape for name, view in views.items()})
        for name, view in views.items():
            view[...] = arrays[name]

    def empty(self) -> Array:
        """A vector of zeros for the arena, aligned to 64 bytes."""
        return zeros(self.size, self.dtype)


def zeros(size: int, dtype: DType = f32) -> Array:
    """A vector of zeros, f32 or f64, aligned to 64 bytes."""
    raw = np.zeros(size + ALIGN, dtype.numpy)
    first = -raw.ctypes.data // dtype.itemsize % ALIGN
    return raw[first : first + size]


def checked(values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The values as arrays of these names and shapes.

    Raises ModelError naming what is missing, unknown, or has another shape.
    """
    wrong: Sequence[str] = sorted(shapes.keys() ^ values.keys())
    if wrong:
        raise ModelError("the names are not those of the parameters", expected=", ".join(shapes), got=", ".join(wrong))
    arrays = {name: np.asarray(values[name]) for name in shapes}
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ModelError("the shape is another", where=name, expected=shape, got=arrays[name].shape)
    return arrays
