"""Arrays whose memory ends where no page is: native code that reads or writes after one faults at once."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)
_NO_ACCESS = 0
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def guarded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy whose last byte is the last one before a page that cannot be touched."""
    page = mmap.PAGESIZE
    room = max(1, -(-array.nbytes // page)) * page
    memory = mmap.mmap(-1, room + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _LIBC.mprotect(start + room, page, _NO_ACCESS):
        raise OSError(ctypes.get_errno(), "mprotect")
    copy = np.frombuffer(memory, array.dtype, array.size, room - array.nbytes).reshape(array.shape)
    copy[...] = array
    return copy
