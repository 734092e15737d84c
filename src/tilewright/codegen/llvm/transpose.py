"""A column of a square tile that is held in registers, row by row: shuffles instead of scalar moves.

    tile: f32[8, 8], rows stored as vectors; `tile[lane, 3]` over 8 lanes is a column

Rows are combined in pairs, fours and so on, each step with one shuffle of two vectors; the first steps of neighbouring
columns are the same, so that all columns of an n x n tile take n * log2(n) shuffles if `shuffle` makes each once.
Elements of one and two bytes make tiles whose rows are 128 bits, the length of x86's unpack.
"""

from __future__ import annotations

from collections.abc import Callable

Shuffle = Callable[[str, str, tuple[int, ...]], str]
"""(first vector, second vector, elements to take) to a vector."""

SIZES = {1: (16,), 2: (8,), 4: (4, 8, 16)}
"""Vectors of a square, and elements of each, that can be transposed in registers, by the bytes of an element."""


def column(rows: list[str], j: int, shuffle: Shuffle, itemsize: int = 4) -> str:
    """Column `j` of a square tile of as many rows as `SIZES` has for elements of so many bytes."""
    return _short_column(rows, j, shuffle) if itemsize < 4 else _long_column(rows, j, shuffle)


def _short_column(rows: list[str], j: int, shuffle: Shuffle) -> str:
    """Each step interleaves the lower or upper halves of two rows at a distance of half the tile: it moves one bit of
    an element's row into its place within a row."""
    n = len(rows)

    def create(step: int, k: int) -> str:
        if step == 0:
            return rows[k]
        first, upper = k // 2, k % 2 * (n // 2)
        a, b = create(step - 1, first), create(step - 1, first + n // 2)
        return shuffle(a, b, tuple(v + upper + i for i in range(n // 2) for v in (0, n)))

    return create(n.bit_length() - 1, j)


def _long_column(rows: list[str], j: int, shuffle: Shuffle) -> str:
    n = len(rows)
    part, quarter = j % 4, j // 4  # within a 128-bit part, and which of them

    def combined(vectors: list[str], picks: list[int]) -> list[str]:
        """Neighbours in pairs; `picks` counts on from the first vector to the second."""
        return [shuffle(vectors[m], vectors[m + 1], tuple(picks)) for m in range(0, len(vectors), 2)]

    # [a0 b0 a1 b1 | a4 b4 a5 b5 | ...] or the upper halves: x86's unpack.
    first = part // 2 * 2
    pairs = combined(rows, [v + q + first + k for q in range(0, n, 4) for k in (0, 1) for v in (0, n)])
    first = part % 2 * 2
    columns = combined(pairs, [v + q + first + k for q in range(0, n, 4) for v in (0, n) for k in (0, 1)])
    if n == 8:
        columns = combined(columns, [v + quarter * 4 + k for v in (0, n) for k in range(4)])
    if n == 16:
        for q in (quarter % 2, quarter // 2):
            columns = combined(columns, [v + (q + outer) * 4 + k for v in (0, n) for outer in (0, 2) for k in range(4)])
    (result,) = columns
    return result
