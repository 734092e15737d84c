"""`Rooms`: how many rows there is memory for where only data says how many there are.

A program with rooms is called again where its data asks for more rows than there was memory for, which it says by the
numbers after its outputs. What the first call wrote is dropped. Rooms never shrink, so that this ends, and calls like
those before have memory enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.manifest import Manifest
from tilewright.support.errors import CallError

FIRST = 8
"""Rows that each room has at first: few, for the memory of a tensor is the product of its rooms."""


class Rooms:
    """The rooms of one program."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._sizes = {room.input: FIRST for room in manifest.rooms}
        self._most = {s.name: s.hi for s in manifest.symbols}

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def filled(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The inputs of a call, rooms among them."""
        supplied = len(self._manifest.arguments)
        if not self._sizes or len(inputs) != supplied:
            return inputs
        rest = iter(inputs)
        sizes = self._sizes
        return [np.empty((sizes[i.name], 0), np.int8) if i.name in sizes else next(rest) for i in self._manifest.inputs]

    def suffice(self, values: dict[str, int]) -> bool:
        """Whether rooms were large enough for the extents that a call has had, by name. If not, the first that was too
        small is made larger: what others ask for may depend on what it cut off.

        Raises CallError for a number of rows that is negative or more than there can be.
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
