"""Cover transfers between rows of a buffer and of DRAM by as few LOAD or STORE instructions as possible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError

Array = np.ndarray[Any, Any]

_MAX_PAD = 15
_MAX_SIZE = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class Picture:
    """The fields of one LOAD or STORE instruction, which moves a two-dimensional picture of rows."""

    sram_base: int
    dram_base: int
    y_size: int
    x_size: int
    x_stride: int
    y_pad_0: int = 0
    y_pad_1: int = 0
    x_pad_0: int = 0
    x_pad_1: int = 0


def pictures(sram: Array, dram: Array, inside: Array, valid: int = 0) -> Iterator[Picture]:
    """Yield the transfers between the buffer rows `sram` and the DRAM rows `dram`, two arrays of one shape. Where
    `inside` is false, the buffer row becomes zeros; `valid` is any existing row of DRAM.

    Raises CompileError where the rows of the buffer are not filled one after the other.
    """
    if not sram.size:
        return
    if inside.all():
        yield from _dense(sram, dram)
        return
    width = sram.shape[-1]
    lines = sram.reshape(-1, width)
    if not np.array_equal(lines, lines[:, :1] + np.arange(width)):
        raise CompileError("zeros are written between rows that do not follow each other")
    yield from _padded(lines[:, 0], dram.reshape(-1, width), inside.reshape(-1, width), valid)


def _dense(sram: Array, dram: Array) -> Iterator[Picture]:
    """Yield transfers between the buffer rows `sram` and the DRAM rows `dram`, none of which is padding. A line is a
    run of rows that are consecutive on both sides; a transfer moves as many lines as have one size and one stride in
    DRAM."""
    flat, other = sram.ravel(), dram.ravel()
    order = np.argsort(flat, kind="stable")
    flat, other = flat[order], other[order]
    breaks = np.flatnonzero((np.diff(flat) != 1) | (np.diff(other) != 1)) + 1
    starts = np.concatenate([[0], breaks])
    sizes = np.diff(np.concatenate([starts, [len(flat)]]))
    k = 0
    while k < len(starts):
        # Lines of one size that follow each other in the buffer, and by one stride in DRAM.
        end, stride = k + 1, int(sizes[k])
        if end < len(starts):
            stride = int(other[starts[end]] - other[starts[k]])
        while (
            0 <= stride <= _MAX_SIZE
            and end < len(starts)
            and sizes[end] == sizes[k]
            and flat[starts[end]] == flat[starts[end - 1]] + sizes[k]
            and other[starts[end]] - other[starts[end - 1]] == stride
        ):
            end += 1
        y = end - k
        yield Picture(int(flat[starts[k]]), int(other[starts[k]]), y, int(sizes[k]), stride if y > 1 else int(sizes[k]))
        k = end


def _padded(starts: Array, dram: Array, inside: Array, valid: int) -> Iterator[Picture]:
    """Yield the transfers of lines from DRAM rows `dram` [line, row] to the buffer rows that begin at `starts`. Where
    `inside` [line, row] is false, a row is padding and becomes zeros: at the beginning and end of a line, or throughout
    the line. `valid` is a DRAM row that can be read where nothing is."""
    width = inside.shape[1]
    first, count = inside.argmax(1), inside.sum(1)
    run = [inside[n, first[n] : first[n] + count[n]].all() for n in range(len(starts))]
    even = [count[n] < 2 or (np.diff(dram[n, first[n] : first[n] + count[n]]) == 1).all() for n in range(len(starts))]
    if not (all(run) and all(even)):
        yield from _single(starts, dram, inside, valid)
        return
    n = 0
    while n < len(starts):
        begin = n
        while n < len(starts) and not count[n] and n - begin < _MAX_PAD and _follows(starts, begin, n, width):
            n += 1
        above, top = n - begin, n
        stride = 0
        while n < len(starts) and count[n] and _follows(starts, begin, n, width):
            same = count[n] == count[top] and first[n] == first[top]
            if n == top + 1:
                stride = int(dram[n, first[n]] - dram[top, first[top]])
            if n > top and not (same and dram[n, first[n]] - dram[n - 1, first[n - 1]] == stride >= 0):
                break
            n += 1
        y, bottom = n - top, n
        while n < len(starts) and not count[n] and n - bottom < _MAX_PAD and _follows(starts, begin, n, width):
            n += 1
        if not y:
            yield Picture(int(starts[begin]), valid, 0, width, width, above, n - bottom)
            continue
        pads = int(first[top]), int(width - first[top] - count[top])
        if max(pads) > _MAX_PAD:
            raise CompileError("more zeros beside a line than an instruction writes", expected=_MAX_PAD, got=max(pads))
        size = int(count[top])
        at = int(dram[top, first[top]])
        yield Picture(int(starts[begin]), at, y, size, stride if y > 1 else size, above, n - bottom, *pads)


def _follows(starts: Array, begin: int, n: int, width: int) -> bool:
    return bool(starts[n] == starts[begin] + (n - begin) * width)


def _single(starts: Array, dram: Array, inside: Array, valid: int) -> Iterator[Picture]:
    """Yield one transfer for each row, for lines whose rows from DRAM are not consecutive there, or lie between
    padding. `starts` are the lines' first buffer rows; `dram` and `inside` [line, row] are as in `pictures`."""
    rows = (starts[:, None] + np.arange(inside.shape[1])).ravel()
    yield from _padded(rows, dram.reshape(-1, 1), inside.reshape(-1, 1), valid)
