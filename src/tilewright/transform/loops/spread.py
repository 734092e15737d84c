"""Pad a buffer so that elements accessed together do not fall into the same sets of the first-level cache.

A set-associative cache places addresses that differ by a multiple of a way's size (4096 bytes on most CPUs) in the same
set. The transforms of a Winograd tile touch an element of each of 36 planes: if a plane is 4096 bytes long, all of them
compete for the eight lines of one set. One more element in an inner dimension moves the planes to different sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from tilewright.targets.memory import USUAL, Caches

MAX_IN_USE = 64
"""The largest number of elements along outer dimensions that are assumed to be in use at the same time."""


def spread(
    shape: tuple[int, ...], itemsize: int, caches: Caches = USUAL, retained: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """`shape`, of an array with elements of `itemsize` bytes, or the least enlarged one in which neighbours along every
    outer dimension fit into the first level of cache. The last dimension, which vectors run along, and the ones in
    `retained` keep their extents."""
    if is_spread(shape, itemsize, caches):
        return shape
    same = [s for s in _enlarged(shape) if all(s[d] == shape[d] for d in retained)]
    options = [s for s in same if is_spread(s, itemsize, caches)]
    return min(options, key=prod) if options else shape


def is_spread(shape: tuple[int, ...], itemsize: int, caches: Caches) -> bool:
    """Whether, for each dimension of an array of `shape` with elements of `itemsize` bytes, the elements at all indices
    of this dimension and the dimensions outside of it fit into the first-level cache's sets."""
    for d in range(len(shape) - 1):
        count = min(prod(shape[: d + 1]), MAX_IN_USE)
        stride = prod(shape[d + 1 :]) * itemsize
        sets = caches.way // gcd(stride, caches.way) if stride >= caches.line else MAX_IN_USE
        if shape[d] > 1 and sets * caches.l1_ways < count:
            return False
    return True


def _enlarged(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    inner = range(1, len(shape) - 1)
    for d in inner:
        yield (*shape[:d], shape[d] + 1, *shape[d + 1 :])
    for d in inner:
        for e in range(d + 1, len(shape) - 1):
            yield (*shape[:d], shape[d] + 1, *shape[d + 1 : e], shape[e] + 1, *shape[e + 1 :])
