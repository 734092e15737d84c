"""Messages between the processes of one server: each has a page of shared memory, which it alone writes.

A page has two halves. A writer fills the older one, so that its previous message survives if it is killed while
writing; a reader uses the newer half whose checksum is right.
"""

from __future__ import annotations

import json
import mmap
import struct
from typing import Any
from zlib import crc32

_HEAD = struct.Struct("<QII")
"""The head of a half: the number of the write, the length of the data in bytes, and their checksum (CRC-32)."""


class Board:
    """Pages of memory shared with forks of this process.

    Args:
        size: bytes of a half, which take memory once they are written; a value whose JSON is longer is refused.
    """

    def __init__(self, pages: int, size: int = 1 << 22) -> None:
        self._size = size
        self._memory = mmap.mmap(-1, 2 * pages * size)

    def write(self, page: int, value: Any) -> bool:
        """Replace the message of a page by `value`, as JSON; returns False, and leaves the page as it is, if that is
        too long. Only one process may write to a page."""
        data = json.dumps(value, separators=(",", ":")).encode()
        if len(data) > self._size - _HEAD.size:
            return False
        numbers = [self._number(page, half) for half in (0, 1)]
        half = numbers.index(min(numbers))
        at = self._at(page, half)
        _HEAD.pack_into(self._memory, at, 0, 0, 0)
        self._memory[at + _HEAD.size : at + _HEAD.size + len(data)] = data
        _HEAD.pack_into(self._memory, at, max(numbers) + 1, len(data), crc32(data))
        return True

    def read(self, page: int) -> Any:
        """The newest complete message of a page, parsed from JSON; None if there is none."""
        heads = [_HEAD.unpack_from(self._memory, self._at(page, half)) + (half,) for half in (0, 1)]
        for number, length, checksum, half in sorted(heads, reverse=True):
            start = self._at(page, half) + _HEAD.size
            data = self._memory[start : start + min(length, self._size - _HEAD.size)]
            if number and crc32(data) == checksum:
                return json.loads(data)
        return None

    def clear(self, page: int) -> None:
        """Delete the messages of a page, so that `read` returns None until the next `write`: for a page whose process
        has ended, before another process gets it. No process may write to it meanwhile."""
        for half in (0, 1):
            _HEAD.pack_into(self._memory, self._at(page, half), 0, 0, 0)

    def _at(self, page: int, half: int) -> int:
        return (2 * page + half) * self._size

    def _number(self, page: int, half: int) -> int:
        return int(_HEAD.unpack_from(self._memory, self._at(page, half))[0])


__all__ = ["Board"]
