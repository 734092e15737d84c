"""Inverted index maps against an enumeration of the box; adjoints of scalar expressions."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping

import pytest

from tilewright.arith import simplify
from tilewright.arith.adjoint import adjoints
from tilewright.arith.inverse import invert
from tilewright.ir.dtype import f64, i64
from tilewright.ir.expr import Buffer, Expr, Load, Var, as_int, call, const, is_const, select
from tilewright.ir.rewrite import substitute


def axis(name: str) -> Var:
    return Var(name, axis=True)


AXES = [axis(n) for n in "abc"]


def value_at(e: Expr, point: Mapping[Var, int]) -> int:
    result = simplify(substitute(e, {v: const(n) for v, n in point.items()}))
    number = as_int(result)
    assert number is not None or is_const(result, True) or is_const(result, False), result
    return number if number is not None else int(is_const(result, True))


def points(extents: Mapping[Var, int]) -> list[dict[Var, int]]:
    return [dict(zip(extents, p, strict=True)) for p in itertools.product(*map(range, extents.values()))]


def random_index(rng: random.Random, depth: int = 2) -> Expr:
    total: Expr = const(rng.randrange(-2, 3))
    for v in rng.sample(AXES, rng.choice([1, 1, 2, 3])):
        total = total + v * rng.choice([1, 1, 1, 2, 3, -1, -2])
    match rng.randrange(5) if depth else 4:
        case 0:
            return random_index(rng, depth - 1) // rng.choice([2, 3])
        case 1:
            return random_index(rng, depth - 1) % rng.choice([2, 3, 4])
        case 2:
            return total + 2 * (random_index(rng, depth - 1) % 3)
    return total


@pytest.mark.daily(4)
@pytest.mark.parametrize("part", range(4))
def test_every_point_is_located_once(part: int) -> None:
    for seed in range(part, 160, 4):
        rng = random.Random(seed)
        extents = {v: rng.choice([0, 1, 2, 3, 5]) for v in AXES}
        indices = [random_index(rng) for _ in range(rng.choice([1, 2, 3]))]
        values = {axis(f"j{d}"): 7 for d in range(len(indices))}
        inverse = invert(indices, {v: const(n) for v, n in extents.items()}, {j: const(n) for j, n in values.items()})
        assert inverse is not None
        places = [(*(value_at(i, p) for i in indices), *p.values()) for p in points(extents)]
        want = Counter(p for p in places if all(0 <= j < 7 for j in p[: len(indices)]))
        free = {v: as_int(extent) or 0 for v, extent in inverse.free}
        result: Counter[tuple[int, ...]] = Counter()
        for choice in points({**values, **free}):
            if all(value_at(c, choice) for c in inverse.conditions):
                at = [value_at(inverse.point[v], choice) for v in AXES]
                result[*(choice[j] for j in values), *at] += 1
        assert result == want, (seed, [str(i) for i in indices], extents)


def test_the_longest_loop_is_solved_for() -> None:
    h, r, j = axis("h"), axis("r"), axis("j")
    inverse = invert([2 * h + r - 1], {h: const(800), r: const(3)}, {j: const(1600)})
    assert inverse is not None
    assert [str(e) for _, e in inverse.free] == ["3"]


def test_what_is_no_variable_of_the_box_is_a_number() -> None:
    """A symbol, however it stands there: at each value the points are those of the box shifted by it."""
    i, r, j, n = axis("i"), axis("r"), axis("j"), Var("n", lo=0)
    inverse = invert([2 * i + r + n * 3 - n // 2], {i: const(4), r: const(3)}, {j: const(20)})
    assert inverse is not None
    for size in range(5):
        want = Counter((2 * a + b + 3 * size - size // 2, a, b) for a in range(4) for b in range(3))
        result: Counter[tuple[int, ...]] = Counter()
        for choice in points({j: 20} | {v: as_int(extent) or 0 for v, extent in inverse.free}):
            choice[n] = size
            if all(value_at(c, choice) for c in inverse.conditions):
                result[choice[j], value_at(inverse.point[i], choice), value_at(inverse.point[r], choice)] += 1
        assert result == want


def test_what_cannot_be_inverted() -> None:
    i, j, n = axis("i"), axis("j"), Var("n")
    places = Buffer("I", i64, (const(9),))
    for index in (Load(places, (i,)), call("max", i - 1, const(0)), i // n, Load(places, (i,)) // 2):
        assert invert([index], {i: const(9)}, {j: const(9)}) is None


def test_branches_that_are_not_selected_get_zero() -> None:
    """A gradient of infinity does not become NaN by a slope of zero."""
    x, y, g = (Var(n, f64) for n in "xyg")
    result = adjoints(select(x > const(0.0, f64), x * y, y), g, [x, y])
    assert str(adjoints(y - x, g, [x])[x]) == "-g" and str(adjoints(y - x, g, [y])[y]) == "g"
    assert str(result[y]) == "select(x > 0.0:f64, 0.0:f64, g) + select(x > 0.0:f64, g, 0.0:f64) * x"
