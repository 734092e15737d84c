"""The steps of a compression: arrays in, arrays out. None of them knows a model.

pruning        Han et al., "Learning both Weights and Connections", 2015: the elements of least magnitude become 0;
               by movement other ones (Sanh et al., 2020, arXiv 2005.07683)
shared values  Han et al., "Deep Compression", 2016: k-means of a weight's elements, from evenly spaced centres
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ROUNDS = 30
"""The largest number of rounds of k-means."""


def pruning_mask(weight: Array, share: float, block: tuple[int, int]) -> Array:
    """The mask of a pruned weight, f32 of its shape: 0 for the share `share` of its blocks that have the least sums of
    magnitudes, and 1 for the other blocks. The weight counts as a matrix, its first dimension by all others; `block` is
    (rows, columns), and blocks at the edges may be smaller."""
    return mask_of(np.abs(weight), share, block)


def mask_of(scores: Array, share: float, block: tuple[int, int]) -> Array:
    """The mask of a weight as of `pruning_mask`: 0 for the share `share` of blocks of size `block` with the least sums
    of `scores` (of the weight's shape, in place of the elements' magnitudes)."""
    rows = scores.shape[0]
    matrix = scores.reshape(rows, -1).astype(np.float64)
    down, across = block
    padded = np.pad(matrix, ((0, -rows % down), (0, -matrix.shape[1] % across)))
    sums = padded.reshape(padded.shape[0] // down, down, -1, across).sum((1, 3))
    keep = _most(sums.reshape(-1), round(share * sums.size))
    whole = np.repeat(np.repeat(keep.reshape(sums.shape), down, 0), across, 1)
    return np.ascontiguousarray(whole[:rows, : matrix.shape[1]]).reshape(scores.shape)


def _most(scores: Array, dropped: int) -> Array:
    """An f32 array with 0 for the `dropped` least scores (of equal ones the first) and 1 for the others."""
    keep = np.ones(scores.size, np.float32)
    if dropped:
        last = np.partition(scores, dropped - 1)[dropped - 1]
        below = scores < last
        keep[below] = 0
        keep[np.flatnonzero(scores == last)[: dropped - np.count_nonzero(below)]] = 0
    return keep


def share_values(weight: Array, values: int) -> Array:
    """The weight with at most `values` distinct values besides 0; zeros stay 0."""
    flat = weight.reshape(-1)
    retained = np.sort(flat[flat != 0])
    if not retained.size:
        return weight.copy()
    centres = np.linspace(float(retained[0]), float(retained[-1]), values)
    sums = np.concatenate(([0.0], np.cumsum(retained, dtype=np.float64)))
    for _ in range(ROUNDS):
        edges = np.searchsorted(retained, (centres[1:] + centres[:-1]) / 2)
        bounds = np.concatenate(([0], edges, [retained.size]))
        counts = np.diff(bounds)
        moved = np.where(counts > 0, np.diff(sums[bounds]) / np.maximum(counts, 1), centres)
        if np.array_equal(moved, centres):
            break
        centres = np.sort(moved)
    nearest = np.searchsorted((centres[1:] + centres[:-1]) / 2, flat)
    shared = np.where(flat == 0, 0, centres[nearest]).astype(weight.dtype)
    return shared.reshape(weight.shape)
