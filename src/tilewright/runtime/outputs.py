"""New arrays for the outputs of a call: where in memory they begin."""

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
"""Bytes from which on the microsecond that aligning takes is nothing beside writing them."""
HUGE = 16 << 20
"""Bytes that do not stay in the caches."""


def uninitialised(
    outputs: Sequence[OutputSpec], shapes: Sequence[tuple[int, ...]], inputs: Sequence[Array]
) -> list[Array]:
    """New arrays for outputs of a call on these inputs. CallError where memory does not suffice."""
    place = _place(inputs)
    try:
        return [_empty(shape, BY_NAME[o.dtype].numpy, place) for o, shape in zip(outputs, shapes, strict=True)]
    except (MemoryError, OverflowError, ValueError) as error:  # NumPy has other errors for more than can be addressed
        raise CallError("not enough memory for the outputs", got=str(error) or None) from None


def _empty(shape: tuple[int, ...], dtype: Any, place: int) -> Array:
    """A new array; a large one starts with a line of cache: NumPy's start 16 bytes after a page, so that each vector
    that is stored there lies in two lines. One that is mostly written past the caches starts at a `place` of its
    page."""
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
    """Where in a page an output should start that is written past the caches while these inputs are read: with a line,
    just before the huge ones.

    A core compares the last twelve bits of addresses first: what it loads there, while a store to such an address has
    not left, it takes for what it has just stored, and waits. Stores past the caches leave slowly, so there are up to
    half a page of them after where the output is written; loads from somewhat further on in the page meet none."""
    starts = [a.ctypes.data % PAGE for a in inputs if a.nbytes >= HUGE]
    return min((s - s % ALIGNMENT for s in starts), key=lambda p: max((s - p) % PAGE for s in starts), default=0)
