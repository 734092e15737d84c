"""What a symbolic dimension is judged by: batches of every size alike, none of them chosen because it is measured.

An estimate needs numbers. Batches are taken to be spread evenly over their logarithms, so the numbers are a geometric
sequence; rounded, they are multiples of no one tile, so that the rows that a tile leaves over count as well.
"""

from __future__ import annotations


def geometric(most: int, count: int) -> tuple[int, ...]:
    """`count` numbers from 1 to `most`, each the same multiple of the one before, rounded."""
    return tuple(round(most ** (k / (count - 1))) for k in range(count))


SYMBOLIC_ROWS = geometric(96, 6)
"""Row counts that a symbolic number of rows is judged by: 1, 2, 6, 15, 39, 96; being slow at any of them counts alike.
By the estimates, in the mean over all batches from 2 to 128, these choose tiles as near to each batch's best as 4, 30
and 64, which the benchmarks measure, or nearer, on Zen 4, AVX2, AVX-512 and Neoverse V1.
"""
MANY_ROWS = SYMBOLIC_ROWS[1:]
"""The same without the one row, for which there is a version of its own."""
SYMBOLIC_IMAGES = geometric(25, 3)
"""Batches of images: 1, 5, 25. Convolutions have much work in one already, so that a few batches tell enough."""
