"""Memory that processes share, as mapped files: an epoch's control page and its slots of packed weights.

Slots of 2 MB and more use huge pages if the kernel has some. An actor that shares a core with others loses its address
translations at each switch; with pages of 4 KB it would reload thousands in a call, which in a virtual machine takes
longer than reading the weights.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.interop import Array
from tilewright.runtime.layout import HUGE_PAGE
from tilewright.runtime.weights.control import MAX_READERS, SLOTS, Control, control_nbytes
from tilewright.support.errors import StoreError

_PAGE = mmap.PAGESIZE
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MADV_COLLAPSE = 25  # Linux 6.1: heeds no setting of transparent huge pages, tmpfs' included
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate
IDLE = 16
"""A slot that was not used for so many versions releases its memory."""


def open_control(path: Path, *, create: bool = False, mode: int = 0o600) -> Control:
    """Map the control page at `path`, a new file with the permissions `mode` if `create`, writable for readers too,
    since they pin versions in it. Raises StoreError if the file has another size."""
    mapped = _map(path, control_nbytes(), _PAGE, writable=True, create=create, mode=mode)
    return Control(mapped.view(np.int64), MAX_READERS)


class Segments:
    """The slots of an epoch. A publisher maps them to write; readers cannot.

    A slot's memory is allocated when it is first used, and released when it has not been used for `IDLE` versions: more
    than two are in use only while older versions are being read. Outside of `writing` the publisher's mapping is
    read-only too, so that no stray write in its process (a learner with its libraries) can change the weights.

    Args:
        nbytes: of one slot.
    """

    def __init__(self, path: Path, nbytes: int, *, create: bool = False, writable: bool = False, mode: int = 0o600):
        self.path = path
        self.nbytes = nbytes
        page = HUGE_PAGE if nbytes >= HUGE_PAGE else _PAGE
        self.stride = max(page, -(-nbytes // page) * page)
        self._reserved: set[int] = set()
        # By slot that may have memory, as an earlier publisher may have left some in any: versions since it was used.
        self._idle = dict.fromkeys(range(SLOTS), 0)
        self.order = list(range(SLOTS))
        """Slots in order of preference. Those with memory come first: usually two alternate, and others are only used
        while older versions are being read."""
        self._file = -1
        self._bytes = _map(path, SLOTS * self.stride, page, writable=writable, create=create, mode=mode)
        self.address: int = self._bytes.ctypes.data
        if writable:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self._protect(0, SLOTS * self.stride, mmap.PROT_READ)

    def slot_address(self, slot: int) -> int:
        return self.address + slot * self.stride

    def view(self, slot: int) -> Any:
        """The bytes of slot number `slot`, as an array on the mapped memory."""
        start = slot * self.stride
        return self._bytes[start : start + self.nbytes]

    @contextlib.contextmanager
    def writing(self, slot: int) -> Iterator[None]:
        """Within the context, this process may write to slot number `slot`, whose memory is allocated if needed. Raises
        StoreError if there is no memory for it."""
        self._reserve(slot)
        start = slot * self.stride
        self._protect(start, self.stride, mmap.PROT_READ | mmap.PROT_WRITE)
        try:
            yield
        finally:
            self._protect(start, self.stride, mmap.PROT_READ)

    def _reserve(self, slot: int) -> None:
        # Writing to a mapped page that tmpfs has no room for is a SIGBUS; asking for the room first is an error.
        if slot in self._reserved:
            return
        try:
            os.posix_fallocate(self._file, slot * self.stride, self.stride)
        except OSError as error:
            if is_full(error):
                raise no_room(self.path, self.stride) from None
            raise
        self._reserved.add(slot)
        self._idle[slot] = 0
        self._sort()
        if self.stride % HUGE_PAGE == 0:
            # Once for all who map it. Where it fails, pages stay small and everything else stays the same.
            _libc().madvise(self.address + slot * self.stride, self.stride, _MADV_COLLAPSE)

    def used(self, slot: int) -> list[int]:
        """Record that a version was written to `slot`. Returns the slots that were not written for `IDLE` versions,
        whose memory may be released."""
        for k in self._idle:
            self._idle[k] += 1
        self._idle[slot] = 0
        return [k for k, versions in self._idle.items() if versions >= IDLE]

    def give_back(self, slot: int) -> None:
        """Release the memory of `slot`, which no process reads before it is written again."""
        del self._idle[slot]
        if _libc().fallocate(self._file, _PUNCH_HOLE | _KEEP_SIZE, slot * self.stride, self.stride) == 0:
            self._reserved.discard(slot)
            self._sort()

    def _sort(self) -> None:
        self.order.sort(key=lambda k: (k not in self._reserved, k))

    def _protect(self, start: int, nbytes: int, protection: int) -> None:
        if _libc().mprotect(self.address + start, nbytes, protection):
            raise StoreError(f"mprotect failed: {os.strerror(ctypes.get_errno())}", where=str(self.path))

    def close_file(self) -> None:
        """Close the descriptor of the slots' file, after which nothing can be allocated or released; the mapped memory
        stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def is_full(error: OSError) -> bool:
    """Whether `error` means that the file system, a quota or the memory has no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


def no_room(path: Path, nbytes: int) -> StoreError:
    """The error for a file system without room for the `nbytes` bytes of a version at `path`."""
    free = os.statvfs(path.parent)
    hint = "make the tmpfs larger, sweep old stores (`tilewright store sweep`), or set TILEWRIGHT_STORE_DIR"
    got = f"{free.f_bavail * free.f_frsize} bytes free"
    return StoreError("there is no room for a version", where=str(path), expected=f"{nbytes} bytes", got=got, hint=hint)


def _map(path: Path, nbytes: int, align: int, *, writable: bool, create: bool, mode: int) -> Array:
    """The bytes of the file at `path`, which must have `nbytes` bytes, mapped at a multiple of `align` for as long as
    the returned array lives; `writable` says whether the array may be written. `create` makes the file, with the
    permissions `mode`. Raises StoreError for another size."""
    flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(path, flags | (os.O_CREAT | os.O_EXCL if create else 0), mode)
    try:
        if create:
            os.fchmod(file, mode)
            os.ftruncate(file, nbytes)
        result = os.fstat(file).st_size
        if result != nbytes:
            raise StoreError(
                "is damaged or not of this version", where=str(path), expected=f"{nbytes} bytes", got=result
            )
        return _mapped(file, nbytes, align, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    finally:
        os.close(file)


def _mapped(file: int, nbytes: int, align: int, protection: int) -> Array:
    """The first `nbytes` bytes of a file, mapped with `protection` (flags of mmap) at a multiple of `align`, inside of
    an address range that is reserved first, for as long as the returned array lives. Raises OSError if that fails."""
    libc, room = _libc(), nbytes + align - _PAGE
    reserved = libc.mmap(None, room, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
    if reserved == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    start = -(-reserved // align) * align
    if libc.mmap(start, nbytes, protection, mmap.MAP_SHARED | _MAP_FIXED, file, 0) != start:
        number = ctypes.get_errno()
        libc.munmap(reserved, room)
        raise OSError(number, os.strerror(number))
    end = start + -(-nbytes // _PAGE) * _PAGE
    for first, last in ((reserved, start), (end, reserved + -(-room // _PAGE) * _PAGE)):
        if last > first:
            libc.munmap(first, last - first)
    memory = (ctypes.c_uint8 * nbytes).from_address(start)
    # Not when the interpreter ends: native threads may still read it then.
    weakref.finalize(memory, libc.munmap, start, end - start).atexit = False
    return np.frombuffer(memory, np.uint8)  # type: ignore[call-overload,no-any-return]


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = pointer
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_int64]
    libc.munmap.argtypes = [pointer, size]
    libc.madvise.argtypes = libc.mprotect.argtypes = [pointer, size, number]
    libc.fallocate.argtypes = [number, number, ctypes.c_int64, ctypes.c_int64]
    return libc
