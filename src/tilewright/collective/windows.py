"""Windows of arrays: which bytes of a rank's window go where in an array of another rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.collective.reductions import Array

EMPTY = np.empty(0, np.uint8)


def bytes_of(flat: Array) -> Array:
    """A view of a flat array as bytes."""
    return flat.view(np.uint8) if flat.size else EMPTY


def elements_of(flat: Array, begin: int, window: int) -> Array:
    """The elements of `flat` that lie in the window of `window` bytes from byte `begin` on."""
    return flat[begin // flat.itemsize : (begin + window) // flat.itemsize]


def taking_rows(rows: Array) -> Callable[[int, list[Array]], None]:
    """A function (begin, windows) that copies the window of each rank, from byte `begin` of its data on, into its row
    of `rows`."""
    targets = [bytes_of(row) for row in rows]

    def take(begin: int, windows: list[Array]) -> None:
        for target, window in zip(targets, windows, strict=True):
            piece = target[begin : begin + window.size]
            piece[:] = window[: piece.size]

    return take


def take_part(target: Array, first: int, begin: int, window: Array) -> None:
    """Copy to `target` the bytes that it shares with `window`, both parts of one rank's data: they begin there at bytes
    `first` and `begin`."""
    low, high = max(begin, first), min(begin + window.size, first + target.size)
    if low < high:
        target[low - first : high - first] = window[low - begin : high - begin]
