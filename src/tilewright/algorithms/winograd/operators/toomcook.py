"""Matrices of fast correlation (Toom-Cook; Winograd 1980, "Arithmetic Complexity of Computations"), in fractions.

    y = A^T ((G g) * (B^T d))        y[i] = sum over k of d[i + k] g[k],   0 <= i < m,  0 <= k < r

F(m, r) takes m + r - 1 products. The polynomials of filter and output are evaluated at m + r - 2 points and at
infinity; `B^T` has the coefficients of the polynomials that vanish at all points but one.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

Rational = Fraction | int
Matrix = tuple[tuple[Fraction, ...], ...]

_POINTS: dict[int, tuple[Fraction, ...]] = {
    4: tuple(map(Fraction, ("0", "3/4", "-3/4", "3/2"))),
    5: tuple(map(Fraction, ("0", "5/8", "-5/8", "3/2", "-3/2"))),
    6: tuple(map(Fraction, ("0", "1/2", "-1/2", "9/8", "-9/8", "5/2"))),
}
_GENERAL = tuple(map(Fraction, "0 1 -1 2 -2 1/2 -1/2 3/2 -3/2 2/3 -2/3".split()))


def default_points(m: int, r: int) -> tuple[Fraction, ...]:
    """The finite points of F(m, r): 0 and pairs of opposite signs, so that rows share their even and odd parts.

    Five points are 0, +-5/8, +-3/2, with a third of the error in f32 of 0, +-1, +-2; four are similar. Raises
    ValueError for more than 11 points, which are not listed.
    """
    count = m + r - 2
    if m < 1 or r < 1 or count > len(_GENERAL):
        raise ValueError(f"no points for F({m}, {r})")
    return _POINTS.get(count, _GENERAL[:count])


def winograd_matrices(m: int, r: int, points: Sequence[Rational] | None = None) -> tuple[Matrix, Matrix, Matrix]:
    """`(A^T, G, B^T)` of F(m, r), of shapes [m, n], [n, r], [n, n] with n = m + r - 1, exactly.

    `points` are n - 1 different numbers (see `default_points`); infinity comes last. Rows of `B^T` are scaled to end in
    1, and `G` has the inverse factors: the transforms of input and output, which run at every call, then have as many
    coefficients of 1 and as many exact binary fractions as the points allow.

    Raises ValueError when the points are too few, too many or not different.
    """
    chosen = default_points(m, r) if points is None else tuple(Fraction(p) for p in points)
    if len(chosen) != m + r - 2 or len(set(chosen)) != len(chosen):
        raise ValueError(f"F({m}, {r}) takes {m + r - 2} different points, got {', '.join(map(str, chosen))}")
    return _matrices(m, r, chosen)


@lru_cache(maxsize=64)
def _matrices(m: int, r: int, points: tuple[Fraction, ...]) -> tuple[Matrix, Matrix, Matrix]:
    n = m + r - 1
    at = tuple((*(p**i for p in points), Fraction(i == m - 1)) for i in range(m))
    g: list[tuple[Fraction, ...]] = []
    bt: list[tuple[Fraction, ...]] = []
    for p in points:
        others = [q for q in points if q != p]
        scale = Fraction(1)
        for q in others:
            scale /= p - q
        g.append(tuple(scale * p**k for k in range(r)))
        bt.append((*_vanishing(others), Fraction(0)))
    g.append(tuple(Fraction(k == r - 1) for k in range(r)))
    bt.append(_vanishing(points))
    assert len(g) == len(bt) == n
    return at, tuple(g), tuple(bt)


def _vanishing(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients, lowest power first, of the monic polynomial with these roots."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        coefficients = [a - root * b for a, b in zip(shifted, [*coefficients, Fraction(0)], strict=True)]
    return tuple(coefficients)
