"""A reader of flatbuffers: tables whose fields are found through tables of offsets.

Format: https://flatbuffers.dev/internals. A file is read from outside: every offset and length is checked against the
file's size, by the one function that takes bytes.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError

MAX_ENTRIES = 1 << 20
"""The most tables or strings in one list."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table at an offset of a file. Fields are identified by their numbers in the schema; absent ones have
    defaults."""

    data: memoryview
    at: int

    @classmethod
    def root(cls, data: memoryview) -> Table:
        """The root table of a flatbuffer, to which its first four bytes point."""
        return cls(data, _number(data, 0, "<I"))

    def _field(self, number: int) -> int:
        """The offset in the file of field number `number` of the table; 0 if it is absent."""
        offsets = self.at - _number(self.data, self.at, "<i")
        size = _number(self.data, offsets, "<H")
        if 4 + 2 * number + 2 > size:
            return 0
        offset = _number(self.data, offsets + 4 + 2 * number, "<H")
        return self.at + offset if offset else 0

    def number(self, field: int, code: str, default: Any = 0) -> Any:
        """A scalar field, whose type is a format code of `struct`."""
        at = self._field(field)
        return _number(self.data, at, "<" + code) if at else default

    def table(self, field: int) -> Table | None:
        at = self._field(field)
        return Table(self.data, _followed(self.data, at)) if at else None

    def tables(self, field: int) -> list[Table]:
        start, count = self._list(field, 4)
        return [Table(self.data, _followed(self.data, start + 4 * k)) for k in range(count)]

    def text(self, field: int) -> str:
        start, count = self._list(field, 1)
        return bytes(_section(self.data, start, count)).decode("utf-8", "replace")

    def numbers(self, field: int, dtype: str) -> Any:
        """The list of numbers in field `field`, as a view of the file; empty if absent."""
        t = np.dtype(dtype)
        start, count = self._list(field, t.itemsize, least=False)
        return np.frombuffer(_section(self.data, start, count * t.itemsize), t)

    def _list(self, field: int, size: int, least: bool = True) -> tuple[int, int]:
        """(offset of the first entry, number of entries) of the list in a field, whose entries have `size` bytes; (0,
        0) if it is absent. Raises ModelError if it is longer than the file or, if `least`, than MAX_ENTRIES."""
        at = self._field(field)
        if not at:
            return 0, 0
        start = _followed(self.data, at)
        count = _number(self.data, start, "<I")
        if least and count > MAX_ENTRIES:
            raise ModelError("the file has a list that is too long", expected=f"at most {MAX_ENTRIES}", got=count)
        _section(self.data, start + 4, count * size)
        return start + 4, count


def _followed(data: memoryview, at: int) -> int:
    """The position that the offset stored at `at` points to."""
    return at + int(_number(data, at, "<I"))


def _number(data: memoryview, at: int, code: str) -> Any:
    return struct.unpack(code, _section(data, at, struct.calcsize(code)))[0]


def _section(data: memoryview, at: int, count: int) -> memoryview:
    if at < 0 or count < 0 or at + count > len(data):
        raise ModelError("the file ends early, or is damaged", expected=f"{count} bytes at {at}", got=len(data))
    return data[at : at + count]
