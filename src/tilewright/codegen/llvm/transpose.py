"""A column of a square tile that is held in registers, row by row: shuffles instead of scalar moves.

    tile: f32[8, 8], rows stored as vectors; `tile[lane, 3]` over 8 lanes is a column

Rows are combined in pairs, fours and so on, each step with one shuffle of two vectors; the first steps of neighbouring
columns are the same, so that all columns of an n x n tile take n * log2(n) shuffles if `shuffle` makes each once.
Elements of one and two bytes make tiles whose rows are 128 bits, the length of x86's unpack.

LLVM's selection of instructions tries to combine each shuffle with all that lead to it, which is half of what a tile of
16 rows takes to compile and changes none of its instructions. `fence` stands where it shall stop.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.dtype import DType, f32
from tilewright.native.text import Writer
from tilewright.targets.target import Target

Shuffle = Callable[[str, str, tuple[int, ...]], str]
"""A function that takes two vectors and the numbers of elements, counted through both, and returns the vector of these
elements."""

Fence = Callable[[str], str]
"""A function that returns its vector through a barrier for LLVM's optimisations."""

SIZES = {1: (16,), 2: (8,), 4: (4, 8, 16)}
"""The numbers n of rows for which an n x n tile can be transposed in registers, by the bytes of an element."""


def column(rows: list[str], j: int, shuffle: Shuffle, itemsize: int = 4, fence: Fence = str) -> str:
    """Column `j` of a square tile, from its rows as vectors; `SIZES` has the numbers of rows for elements of `itemsize`
    bytes."""
    return _short_column(rows, j, shuffle) if itemsize < 4 else _long_column(rows, j, shuffle, fence)


def fenced(out: Writer, target: Target, t: DType, n: int) -> Fence:
    """A function that puts a fence around vectors of `n` elements. It does nothing for types other than f32, as LLVM
    has fences for floats, or where it is not known to cost no instruction."""
    if t is not f32 or not target.has("avx2"):
        return str
    type_ = f"<{n} x float>"
    return lambda vector: out.intrinsic(f"llvm.arithmetic.fence.v{n}f32", type_, [(type_, vector)])


def _short_column(rows: list[str], j: int, shuffle: Shuffle) -> str:
    """Column `j` of a tile of elements of one or two bytes.

    Each step interleaves the lower or upper halves of two rows at a distance of half the tile, which moves one bit of
    an element's row number into its place within a row.
    """
    n = len(rows)

    def create(step: int, k: int) -> str:
        if step == 0:
            return rows[k]
        first, upper = k // 2, k % 2 * (n // 2)
        a, b = create(step - 1, first), create(step - 1, first + n // 2)
        return shuffle(a, b, tuple(v + upper + i for i in range(n // 2) for v in (0, n)))

    return create(n.bit_length() - 1, j)


def _long_column(rows: list[str], j: int, shuffle: Shuffle, fence: Fence) -> str:
    n = len(rows)
    part, quarter = j % 4, j // 4  # within a 128-bit part, and which of them

    def combined(vectors: list[str], picks: list[int]) -> list[str]:
        """Vectors joined in pairs by shuffles; `picks` are the elements taken, numbered on from the first vector to the
        second."""
        return [shuffle(vectors[m], vectors[m + 1], tuple(picks)) for m in range(0, len(vectors), 2)]

    # [a0 b0 a1 b1 | a4 b4 a5 b5 | ...] or the upper halves: x86's unpack.
    first = part // 2 * 2
    pairs = combined(rows, [v + q + first + k for q in range(0, n, 4) for k in (0, 1) for v in (0, n)])
    first = part % 2 * 2
    columns = combined(pairs, [v + q + first + k for q in range(0, n, 4) for v in (0, n) for k in (0, 1)])
    if n == 8:
        columns = combined(list(map(fence, columns)), [v + quarter * 4 + k for v in (0, n) for k in range(4)])
    if n == 16:
        for q in (quarter % 2, quarter // 2):
            columns = combined(
                list(map(fence, columns)),
                [v + (q + outer) * 4 + k for v in (0, n) for outer in (0, 2) for k in range(4)],
            )
    (result,) = columns
    return result
