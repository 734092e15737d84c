"""`Rooms`: the number of rows for which memory is reserved, where data decides how many there are.

If a call needs more rows, which the numbers after its outputs tell, its results are dropped, the room is enlarged, and
the program is called again. Rooms never shrink, so that later calls of the same kind need no repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.manifest import Manifest
from tilewright.support.errors import CallError

FIRST = 8
"""The initial rows of each room; it is small because the memory of a tensor may be the product of several rooms."""


class Rooms:
    """The present sizes of a program's rooms. A room is an input without elements, whose extent is the number of rows
    for which memory is reserved, where data decides how many rows there are."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._sizes = {room.input: FIRST for room in manifest.rooms}
        self._most = {s.name: s.hi for s in manifest.symbols}

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def filled(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The inputs of a call, with an array for each room added at its position."""
        supplied = len(self._manifest.arguments)
        if not self._sizes or len(inputs) != supplied:
            return inputs
        rest = iter(inputs)
        sizes = self._sizes
        return [np.empty((sizes[i.name], 0), np.int8) if i.name in sizes else next(rest) for i in self._manifest.inputs]

    def suffice(self, values: dict[str, int]) -> bool:
        """Whether the rooms were large enough for a call whose extents are `values`, by name. If not, the first one
        that was too small is enlarged; other extents may be wrong, as they may depend on rows that it cut off.

        Raises CallError for a number of rows that is negative or too large.
        """
        for room in self._manifest.rooms:
            wanted, size = values[room.extent], self._sizes[room.input]
            if wanted <= size and wanted >= 0:
                continue
            most = self._largest(room.input)
            if not 0 <= wanted <= most:
                where = f"program {self._manifest.name!r}"
                raise CallError(room.reason, where=where, expected=f"0 to {most}", got=wanted)
            step = max(FIRST, 1 << max(0, wanted.bit_length() - 3))
            self._sizes[room.input] = max(self._sizes[room.input], min(-(-wanted // step) * step, most))
            return False
        return True

    def _largest(self, name: str) -> int:
        rows = next(i.shape[0] for i in self._manifest.inputs if i.name == name)
        return self._most[str(rows)]


__all__ = ["Rooms"]
