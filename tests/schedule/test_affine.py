"""Solving index maps for their variables: right at every point, and where it cannot be done nothing is claimed."""

from __future__ import annotations

from itertools import product

import pytest

from tilewright.arith import simplify
from tilewright.ir.expr import Expr, Op, Var, as_int, const, maximum, minimum
from tilewright.ir.rewrite import substitute
from tilewright.schedule import affine

I, J, K, N = Var("i"), Var("j"), Var("k"), Var("n", lo=1)
X = Var("x", lo=0)
SIZES = {I: 6, J: 4, K: 3}
EXTENTS: dict[Var, Expr] = {v: const(n) for v, n in SIZES.items()}


def at(e: Expr, point: dict[Var, int]) -> int:
    value = as_int(simplify(substitute(e, {v: const(k) for v, k in point.items()})))
    assert value is not None
    return value


def points() -> list[dict[Var, int]]:
    return [dict(zip(SIZES, values, strict=True)) for values in product(*map(range, SIZES.values()))]


@pytest.mark.parametrize(
    ("e", "parts"),
    [
        (X // 4, "x // 4"),
        (X % 4, "x // 1 % 4"),
        (X // 4 % 3, "x // 4 % 3"),
        (Op("floordiv", (X % 12, const(4))), "x // 4 % 3"),
        (Op("floordiv", (X % 12, const(5))), "x % 12 // 5"),
        (Op("floordiv", (X % 12, const(12))), "x // 12 % 1"),
        (Op("floordiv", (X % N, const(4))), "x % n // 4"),
        (Op("floordiv", (X % 12, N)), "x % 12 // n"),
        (Op("floordiv", (X + 12, const(4))), "x + 12 // 4"),
        (Op("floordiv", (X * 12, const(4))), "x * 12 // 4"),
        (Op("mod", (X + 12, const(4))), "x + 12 // 1 % 4"),
    ],
)
def test_quotient(e: Op, parts: str) -> None:
    base, divisor, modulus = affine.quotient(e)
    assert f"{base} // {divisor}" + (f" % {modulus}" if modulus is not None else "") == parts
    for x in range(30):
        value = at(base, {X: x, N: 5}) // at(divisor, {N: 5})
        assert (value % at(modulus, {N: 5}) if modulus is not None else value) == at(e, {X: x, N: 5})


@pytest.mark.parametrize(
    ("indices", "solved"),
    [
        ((I, J, K), "ijk"),
        ((I // 4, I % 4, K), "ik"),
        ((I % 4, J, I // 4), "ij"),
        ((I // 4, I // 2 % 2, I % 2), "i"),
        ((I // 2 % 2, I % 2), ""),  # 4 and 5 look like 0 and 1
        ((J // 2 % 2, J % 2), "j"),
        ((I // 4, I % 2), ""),
        ((I % 6,), "i"),
        ((I % 4,), ""),
        ((I * 4 + J,), "ij"),
        ((I * 12 + J * 3 + K + 5,), "ijk"),
        ((I * 5 + J,), "ij"),
        ((I * 3 + J,), ""),  # they overlap
        ((I * 7 + J * 2,), ""),  # seven is not a multiple of two
        ((J - I * 4,), ""),
        ((I * 4 + (J - 1),), "ij"),
        (((I * 4 + J) // 8, (I * 4 + J) % 8), "ij"),
        ((I + J,), ""),
        ((I, I + J), "i"),
        ((minimum(I, 2), J), "j"),
        ((const(3), I), "i"),
    ],
)
def test_solve(indices: tuple[Expr, ...], solved: str) -> None:
    values = [Var(f"at{k}") for k in range(len(indices))]
    result = affine.solve(indices, values, EXTENTS)
    assert {v.name for v in result} == set(solved)
    for point in points():
        reached = {v: at(e, point) for v, e in zip(values, indices, strict=True)}
        for v, e in result.items():
            assert at(e, reached) == point[v]


def test_terms_without_an_end_are_no_digits() -> None:
    """`n` iterations of j may reach into the next i; what nothing follows may be of any size."""
    value = Var("at")
    assert affine.solve([I * 8 + J], [value], {I: const(6), J: N}) == {}
    assert set(affine.solve([I * 4 + J], [value], {I: N, J: const(4)})) == {I, J}
    assert affine.solve([I * 4 + X - 9], [value], {I: N, X: const(4)}).keys() == {I, X}
    assert affine.solve([I], [value], {}) == {}
    assert affine.solve([I * 4 + Var("free")], [value], {I: N}) == {}


@pytest.mark.parametrize(
    ("indices", "boxes", "wanted"),
    [
        ((I, J), ((1, 4), (2, 2)), {I: (1, 4), J: (2, 2)}),
        ((I, I + 1), ((1, 4), (1, 3)), {I: (1, 2)}),
        ((I * 2 + 1,), ((2, 6),), {I: (1, 2)}),
        ((I * 2 + 1,), ((3, 7),), {I: (1, 3)}),
        ((I // 2,), ((1, 2),), {I: (2, 5)}),
        ((I // 2, I), ((1, 2), (3, 9)), {I: (3, 5)}),
        ((I % 2,), ((1, 1),), {}),
        ((I + J,), ((1, 1),), {}),
        ((I, J), (None, (0, 1)), {J: (0, 1)}),
        ((-I,), ((-3, -1),), {}),
        ((X,), ((0, 1),), {}),
    ],
)
def test_solve_ranges(indices: tuple[Expr, ...], boxes: tuple, wanted: dict[Var, tuple[int, int]]) -> None:
    arguments = [None if b is None else (const(b[0]), const(b[1])) for b in boxes]
    result = {v: (as_int(lo), as_int(hi)) for v, (lo, hi) in affine.solve_ranges(indices, arguments, EXTENTS).items()}
    assert result == wanted
    for point in points() if X not in indices else []:
        fits = [b is None or b[0] <= at(e, point) <= b[1] for e, b in zip(indices, boxes, strict=True)]
        assert not all(fits) or all(lo <= point[v] <= hi for v, (lo, hi) in wanted.items())


def test_ends_of_ranges() -> None:
    assert affine.lesser(N, N + 1) is N and affine.greater(N, N + 1) is simplify(N + 1)
    assert affine.lesser(N + 1, N) is N and affine.greater(N + 1, N) is simplify(N + 1)
    assert affine.lesser(N, N) is N and affine.greater(N, N) is N
    assert affine.lesser(const(1), N) == const(1) and affine.greater(N, const(1)) is N
    assert affine.lesser(N, X) is minimum(N, X) and affine.greater(N, X) is maximum(N, X)
    short = Var("few", lo=0, hi=3)
    assert affine.greater(short, const(3)) == const(3) and affine.greater(const(3), short) == const(3)
    assert affine.lesser(short, const(3)) is short and affine.lesser(const(3), short) is short
    assert affine.lesser(short, const(2)) is minimum(short, 2) and affine.greater(short, const(2)) is maximum(short, 2)
    one, other = (const(1), const(5)), (const(3), const(8))
    assert affine.union(one, other) == (const(1), const(8)) and affine.intersect(one, other) == (const(3), const(5))


def test_conditions_of_an_index() -> None:
    """The conditions of an index are those that are not known to hold."""
    names = [[str(c) for c in affine.outside(e, const(6), EXTENTS)] for e in (I, I + 1, I - 1, N)]
    assert [len(n) for n in names] == [0, 1, 1, 1]
    assert affine.inside([I, J], [const(6), const(4)], EXTENTS)
    assert not affine.inside([I, J], [const(6), const(3)], EXTENTS)
