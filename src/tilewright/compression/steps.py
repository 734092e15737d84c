"""The steps of a compression: arrays in, arrays out. None of them knows a model.

pruning        Han et al., "Learning both Weights and Connections", 2015: the elements of least magnitude become 0
shared values  Han et al., "Deep Compression", 2016: k-means of a weight's elements, from evenly spaced centres
low rank       the truncated singular value decomposition, which has the least squared error (Eckart and Young, 1936)
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ROUNDS = 30
"""Rounds of k-means at most."""


def pruning_mask(weight: Array, share: float, block: tuple[int, int]) -> Array:
    """1 for elements that stay and 0 for others, f32 of the weight's shape. Blocks lie in the weight as a matrix: its
    first dimension by all others; those at its end may be smaller."""
    rows = weight.shape[0]
    matrix = np.abs(weight.reshape(rows, -1)).astype(np.float64)
    down, across = block
    padded = np.pad(matrix, ((0, -rows % down), (0, -matrix.shape[1] % across)))
    sums = padded.reshape(padded.shape[0] // down, down, -1, across).sum((1, 3))
    dropped = round(share * sums.size)
    keep = np.ones(sums.size, np.float32)
    keep[np.argsort(sums, axis=None, kind="stable")[:dropped]] = 0
    whole = np.repeat(np.repeat(keep.reshape(sums.shape), down, 0), across, 1)
    return np.ascontiguousarray(whole[:rows, : matrix.shape[1]]).reshape(weight.shape)


def share_values(weight: Array, values: int) -> Array:
    """The weight with at most so many distinct values beside 0, which stays 0."""
    flat = weight.reshape(-1)
    kept = np.sort(flat[flat != 0])
    if not kept.size:
        return weight.copy()
    centres = np.linspace(float(kept[0]), float(kept[-1]), values)
    sums = np.concatenate(([0.0], np.cumsum(kept, dtype=np.float64)))
    for _ in range(ROUNDS):
        edges = np.searchsorted(kept, (centres[1:] + centres[:-1]) / 2)
        bounds = np.concatenate(([0], edges, [kept.size]))
        counts = np.diff(bounds)
        moved = np.where(counts > 0, np.diff(sums[bounds]) / np.maximum(counts, 1), centres)
        if np.array_equal(moved, centres):
            break
        centres = np.sort(moved)
    nearest = np.searchsorted((centres[1:] + centres[:-1]) / 2, flat)
    shared = np.where(flat == 0, 0, centres[nearest]).astype(weight.dtype)
    return shared.reshape(weight.shape)


def low_rank(weight: Array, energy: float) -> tuple[Array, Array] | None:
    """Factors u[m, r], v[r, n] of a matrix with this share of its squared singular values; None where they are no
    smaller than 0.7 of it, or where it holds numbers that are not finite."""
    m, n = weight.shape
    if not np.isfinite(weight).all():
        return None
    left, sizes, right = np.linalg.svd(weight.astype(np.float64), full_matrices=False)
    total = np.cumsum(sizes**2)
    rank = int(np.searchsorted(total, energy * total[-1])) + 1 if total[-1] > 0 else 1
    rank = min(rank, len(sizes))
    if rank * (m + n) >= 0.7 * m * n:
        return None
    root = np.sqrt(sizes[:rank])
    return (left[:, :rank] * root).astype(weight.dtype), (root[:, None] * right[:rank]).astype(weight.dtype)
