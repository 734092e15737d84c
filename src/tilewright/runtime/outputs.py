"""Allocation of the outputs of a call, at addresses that are good for the caches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.interop import Array
from tilewright.runtime.specs import ALIGNMENT, OutputSpec
from tilewright.support.errors import CallError

PAGE = 4096
LARGE = 1 << 18
"""From this many bytes on, the microsecond that alignment takes is negligible."""
HUGE = 16 << 20
"""Outputs of this many bytes do not stay in the caches."""


def uninitialised(
    outputs: Sequence[OutputSpec], shapes: Sequence[tuple[int, ...]], inputs: Sequence[Array]
) -> list[Array]:
    """New arrays of `shapes` for outputs of a call on these inputs. Raises CallError if memory does not suffice."""
    place = _place(inputs)
    try:
        return [_empty(shape, BY_NAME[o.dtype].numpy, place) for o, shape in zip(outputs, shapes, strict=True)]
    except (MemoryError, OverflowError, ValueError) as error:  # NumPy has other errors for more than can be addressed
        raise CallError("not enough memory for the outputs", got=str(error) or None) from None


def _empty(shape: tuple[int, ...], dtype: Any, place: int) -> Array:
    """A new uninitialised array of `shape` and `dtype`. A large one is aligned to a cache line (NumPy aligns to 16
    bytes, so that vector stores would touch two lines); a huge one, which is mostly written by streaming stores, begins
    at offset `place` of a page."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE:
        return np.empty(shape, dtype)
    align, place = (PAGE, place) if size >= HUGE else (ALIGNMENT, 0)
    room = np.empty(size + align, np.uint8)
    start = (place - room.ctypes.data) % align
    aligned: Array = room[start : start + size].view(dtype).reshape(shape)
    return aligned


def _place(inputs: Sequence[Array]) -> int:
    """The offset in a page at which an output should begin that is written with streaming stores while these inputs are
    read: a cache line just before the offset of the huge inputs.

    A core compares the last twelve bits of addresses first: a load whose bits match a pending store waits for it.
    Streaming stores are pending for long, up to half a page of them before the current position; loads that are
    somewhat ahead of it in the page match none.
    """
    starts = [a.ctypes.data % PAGE for a in inputs if a.nbytes >= HUGE]
    return min((s - s % ALIGNMENT for s in starts), key=lambda p: max((s - p) % PAGE for s in starts), default=0)
