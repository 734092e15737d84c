"""The numbers in which a convolution by transforms is computed: floats, or integers of 16 bits and sums modulo 2^32.

Codes of 8 bits are transformed exactly. With the points 0, +-1, 2, -1/2 and infinity, and every matrix scaled to
integers, what a transform makes of any tile of codes, and of any filter of i8, holds in 16 bits:

    V = B^T d B     |V| <= 98 * 255        the positive entries of a row of B^T sum up to 7, as the negative ones do
    U = G g G^T     |U| <= 225 * 128

The rest is linear, so sums may wrap: modulo 2^32 they are 30 * 30 = 900 times the convolution. The odd factor 225 has
an inverse modulo 2^32, and a shift divides by the factor 4. So a result is exact if it is less than 2^29 in magnitude:
for up to `MAX_CHANNELS` channels. The points 0, +-1, +-2 would leave 2^25.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import lcm

from tilewright.algorithms.winograd.operators.correlation import transforms
from tilewright.algorithms.winograd.operators.toomcook import Matrix, winograd_matrices
from tilewright.ir.dtype import DType, i16, i32
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError

POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-1/2")))

CODES_TILE, CODES_WINDOW = 4, 3
"""The outputs of a tile and the taps of a window, per side, for which codes are transformed."""

PAIR = 2
"""The number of channels that an instruction multiplies at once."""

MAX_CHANNELS = (1 << 29) // (CODES_WINDOW**2 * 255 * 128)
"""The largest number of channels whose sums are exact."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The element types of transformed tiles, filters and sums, the number of channels that one instruction multiplies,
    and the three matrices of the transform. A result is a sum times `inverse`, shifted right by `shift` bits."""

    tiles: DType
    sums: DType
    group: int
    matrices: tuple[Matrix, Matrix, Matrix]
    inverse: int = 1
    shift: int = 0


def numbers(x: DType, m: int, window: int, stride: int) -> Numbers:
    """The element types and matrices of the transform to tiles of `m` outputs, for maps of type `x` and a `window` with
    `stride`. Raises ShapeError for codes for which the method is not exact."""
    if x.is_float:
        return Numbers(x, x, 1, transforms(m, window, stride))
    if (m, window, stride) != (CODES_TILE, CODES_WINDOW, 1):
        raise ShapeError(
            "codes have no such transform",
            expected=f"F({CODES_TILE}, {CODES_WINDOW}) of stride 1",
            got=f"F({m}, {window}) of stride {stride}",
        )
    matrices, scale = whole_matrices()
    shift = (scale & -scale).bit_length() - 1
    inverse = pow(scale >> shift, -2, 1 << 32)
    return Numbers(i16, i32, PAIR, matrices, inverse - ((inverse >> 31) << 32), 2 * shift)


@lru_cache(maxsize=1)
def whole_matrices() -> tuple[tuple[Matrix, Matrix, Matrix], int]:
    """(`(A^T, G, B^T)` of integers, the factor by which their result exceeds the convolution in one dimension)."""
    at, g, bt = winograd_matrices(CODES_TILE, CODES_WINDOW, POINTS)
    into = [lcm(*(x.denominator for x in row)) for row in bt]
    back = [lcm(*(row[k].denominator for row in at)) for k in range(len(bt))]
    rest = [[x / (a * b) for x in row] for row, a, b in zip(g, into, back, strict=True)]
    scale = lcm(*(x.denominator for row in rest for x in row))
    return (
        tuple(tuple(x * a for x, a in zip(row, back, strict=True)) for row in at),
        tuple(tuple(x * scale for x in row) for row in rest),
        tuple(tuple(x * b for x in row) for row, b in zip(bt, into, strict=True)),
    ), scale
