"""Which loops lead to other points: fused indices that the simplifier took apart, and limits that predicates give."""

from __future__ import annotations

from itertools import product

import pytest

from tilewright.arith import simplify
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.rewrite import substitute
from tilewright.schedule.dependence import injective

F, T, R = Var("f", lo=0), Var("t", lo=0), Var("r", lo=0)


def truth(values: list[Expr], sizes: dict[Var, int], conditions: list[Expr]) -> bool:
    """By trying: no two values of the first variable give the same point."""
    seen: dict[tuple[int | None, ...], int] = {}
    names = list(sizes)
    for point in product(*(range(sizes[v]) for v in names)):
        at = {v: const(k) for v, k in zip(names, point, strict=True)}
        if all(as_int(simplify(substitute(c, at))) for c in conditions):
            key = tuple(as_int(simplify(substitute(v, at))) for v in values)
            if seen.setdefault(key, point[0]) != point[0]:
                return False
    return True


@pytest.mark.parametrize(
    ("strip", "rows", "width", "tiles", "limit", "expected"),
    [
        (12, 3, 6, 4, None, True),  # whole tiles in a strip
        (12, 4, 9, 3, None, True),  # lines that strips cross
        (10, 4, 5, 3, 10, True),  # the last tile is cut
        (10, 4, 5, 3, None, False),  # tiles reach into the next strip
        (10, 4, 5, 3, 11, False),  # so does one pixel
        (18, 6, 54, 3, None, True),  # rows divide the line
    ],
)
def test_strips_of_a_fused_index(
    strip: int, rows: int, width: int, tiles: int, limit: int | None, expected: bool
) -> None:
    sizes = {F: 7, T: tiles, R: rows}
    extents = {v: const(n) for v, n in sizes.items()}
    within = T * rows + R
    pixel = F * strip + within
    conditions = [] if limit is None else [within < limit]
    values = [simplify(pixel // width, extents), simplify(pixel % width, extents)]
    assert truth(values, sizes, conditions) == expected
    assert injective(values, F, extents, conditions) == expected


def test_loops_of_one_step_hide_nothing() -> None:
    """A group of one panel: both loops have the same stride, and the panel's has no other value than 0."""
    panel = Var("panel", lo=0)
    index = R * 16 + F * 2 + panel * 2 + T
    extents = {F: const(8), panel: const(1), T: const(2), R: const(2)}
    assert injective([index], F, extents)
    assert not injective([index], F, {**extents, panel: const(2)})
