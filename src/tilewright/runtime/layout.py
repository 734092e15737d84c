"""Native structs shared by Python and support code: field names to byte offsets, every field eight bytes."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.native.assembler import I64, PTR, Field

HUGE_PAGE = 2 << 20
"""Bytes of a huge page, which one address translation covers."""


class Struct:
    """Offsets by name: `Struct("head*", "tail").tail == 8`. `size` is that of the fixed part. Native code takes fields
    with a star for addresses (`p[STRUCT.head]`), others for integers."""

    def __init__(self, *fields: str, offset: int = 0) -> None:
        self._offsets = {
            name.rstrip("*"): Field(offset + 8 * i, PTR if name[-1] == "*" else I64) for i, name in enumerate(fields)
        }
        self.size = offset + 8 * len(fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields, in order."""
        return tuple(self._offsets)

    def __getattr__(self, name: str) -> int:
        try:
            return self._offsets[name]
        except KeyError:
            raise AttributeError(name) from None


class Memory:
    """Zeroed 64-byte aligned native memory that support code reads and writes, addressed by byte offset."""

    def __init__(self, nbytes: int) -> None:
        words = max(8, -(-nbytes // 8))
        self._owner = np.zeros(words + 8, np.int64)
        skip = (-self._owner.ctypes.data % 64) // 8
        self.words = self._owner[skip : skip + words]
        self.address: int = self.words.ctypes.data

    def __getitem__(self, offset: int) -> int:
        return int(self.words[offset >> 3])

    def __setitem__(self, offset: int, value: int) -> None:
        self.words[offset >> 3] = value

    def write(self, offset: int, values: Sequence[int] | np.ndarray[Any, Any]) -> None:
        """Store the integers `values` as consecutive words from byte `offset` on."""
        at = offset >> 3
        self.words[at : at + len(values)] = values


def aligned_bytes(nbytes: int) -> np.ndarray[Any, Any]:
    """Uninitialised memory, 64-byte aligned; from 2 MB on in huge pages, where the system has them.

    Memory of the C library's allocator may have been used before with small pages, which it keeps: reading weights once
    in each call would then need thousands of page table lookups.

    Raises:
        MemoryError: there is not as much.
    """
    if nbytes >= HUGE_PAGE:
        return _huge_bytes(nbytes)
    memory = np.empty(nbytes + 128, np.uint8)
    skip = -memory.ctypes.data % 64
    return memory[skip : skip + max(nbytes, 64)]


def aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A dense read-only copy in 64-byte aligned memory of its own."""
    copy: np.ndarray[Any, Any] = aligned_bytes(array.nbytes)[: array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    copy.flags.writeable = False
    return copy


def _huge_bytes(nbytes: int) -> np.ndarray[Any, Any]:
    try:
        memory = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"{nbytes} bytes") from error
    whole = np.frombuffer(memory, np.uint8)
    skip = -whole.ctypes.data % HUGE_PAGE
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # A kernel without them.
            # What does not fill the last one stays small: nothing else could use the rest.
            memory.madvise(mmap.MADV_HUGEPAGE, skip, nbytes // HUGE_PAGE * HUGE_PAGE)
    return whole[skip : skip + nbytes]


def function(address: int, result: Any, *arguments: Any) -> Any:
    """A ctypes function at an address, which releases the GIL while it runs."""
    return ctypes.CFUNCTYPE(result, *arguments)(address)
