"""Laws of the simplifier on random expressions: the value stays, bounds contain it, proofs are true."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.arith.evaluate import conditions, evaluate, int_exprs, narrow_exprs
from tilewright.arith import Analyzer, bounds, prove, simplify, symbolic_bounds, symbolic_limits
from tilewright.ir.dtype import DType, i8, i32, i64, u8, u32
from tilewright.ir.expr import Buffer, Expr, Op, Var, const, equal, maximum, minimum, not_equal
from tilewright.ir.rewrite import substitute

X, Y = Var("x"), Var("y", lo=-20, hi=20)
N, M = Var("n", lo=1), Var("m", lo=1, multiple=4)
I, J, K = Var("i"), Var("j"), Var("k")
# Extents of many forms: a literal, a symbol, a rounded-up quotient, one that depends on another loop.
EXTENTS: dict[Var, Expr] = {I: const(5), J: (N + 3) // 4, K: minimum(const(4), N - J * 4)}
LEAVES: list[Expr] = [X, Y, N, M, I, J, K]
EXAMPLES = max(200, settings().max_examples)
SETTINGS = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def points(draw: st.DrawFn) -> dict[Var, int]:
    """Values of all variables, inside their ranges."""
    n = draw(st.integers(1, 21))
    j = draw(st.integers(0, (n + 3) // 4 - 1))
    return {
        X: draw(st.integers(-30, 30)),
        Y: draw(st.integers(-20, 20)),
        N: n,
        M: 4 * draw(st.integers(1, 6)),
        I: draw(st.integers(0, 4)),
        J: j,
        K: draw(st.integers(0, min(4, n - j * 4) - 1)),
    }


@SETTINGS
@given(int_exprs(LEAVES, 4), st.lists(points(), min_size=4, max_size=8))
def test_simplify_keeps_the_value_and_bounds_contain_it(e: Expr, samples: list[dict[Var, int]]) -> None:
    simple = simplify(e, EXTENTS)
    result = bounds(e, EXTENTS)
    assert simplify(simple, EXTENTS) is simple
    for values in samples:
        value = int(evaluate(e, values))
        assert int(evaluate(simple, values)) == value
        assert result.contains(value), result


@SETTINGS
@given(int_exprs(LEAVES, 3), st.lists(points(), min_size=4, max_size=8))
def test_divisors_divide_the_value(e: Expr, samples: list[dict[Var, int]]) -> None:
    an = Analyzer(EXTENTS)
    divisor = an.form_divisor(an.form(e))
    for values in samples:
        value = int(evaluate(e, values))
        assert value % divisor == 0 if divisor else value == 0


@SETTINGS
@given(st.tuples(*[st.integers(1, 12)] * 4), st.integers(-3, 3), st.lists(points(), min_size=4, max_size=8))
def test_digits_of_sums_merge(sizes: tuple[int, ...], scale: int, samples: list[dict[Var, int]]) -> None:
    """Two digits of one number are one digit, whatever else each of them simplifies to by itself."""
    a, k, m, d = sizes
    number = X * a + Y
    e = (number // d % k + number // (d * k) % m * k) * scale
    simple = simplify(e)
    if d == 1:
        assert simple is simplify(number % (k * m) * scale)
    for values in samples:
        assert int(evaluate(simple, values)) == int(evaluate(e, values))


@SETTINGS
@given(st.tuples(*[st.integers(1, 12)] * 4), st.integers(-3, 3), st.lists(points(), min_size=4, max_size=8))
def test_digits_of_remainders_merge(sizes: tuple[int, ...], scale: int, samples: list[dict[Var, int]]) -> None:
    """The remainder of a number that has one itself is that of what it has it of; its quotient is not."""
    a, k, m, n = sizes
    number = X % (k * m * n) * a + Y
    e = (number // k % m + number // (k * m) * m) * scale
    simple = simplify(e)
    assert simple is simplify(number // k * scale)
    for values in samples:
        assert int(evaluate(simple, values)) == int(evaluate(e, values))


@SETTINGS
@given(st.tuples(*[st.integers(1, 12)] * 4), st.integers(-3, 3), st.lists(points(), min_size=4, max_size=8))
def test_remainders_of_quotients(sizes: tuple[int, ...], scale: int, samples: list[dict[Var, int]]) -> None:
    """The rest that tiles leave of an extent that is a quotient is a remainder, with a remainder's bounds."""
    a, k, d, shift = sizes
    number = (X * a + Y + shift) // k
    e = (number - number // d * d) * scale
    simple = simplify(e)
    result = bounds(e)
    assert scale <= 0 or (result.lo is not None and result.hi is not None and result.hi - result.lo < d * scale)
    for values in samples:
        assert int(evaluate(simple, values)) == int(evaluate(e, values))


H, W = Var("h", lo=1, multiple=24), Var("w", lo=1, multiple=32)


@SETTINGS
@given(st.data())
def test_equal_products_of_whole_quotients_are_one(data: st.DataObject) -> None:
    """However a whole division is spread over the factors of a product, the product is the same expression."""
    divisors = {H: [d for d in range(1, 25) if 24 % d == 0], W: [d for d in range(1, 33) if 32 % d == 0]}

    def product(scale: int) -> tuple[Expr, int]:
        a, b = (data.draw(st.sampled_from(divisors[v])) for v in (H, W))
        first = data.draw(st.sampled_from([d for d in divisors[H] if a % d == 0]))
        factors = [H // first // (a // first), W // b, const(scale * a * b)]
        x, y, z = data.draw(st.permutations(factors))
        return simplify(simplify(x * y) * z), a * b

    scale = data.draw(st.integers(-3, 3))
    (one, _), (other, _) = product(scale), product(scale)
    assert one is other
    divided, by = product(1)
    rest = data.draw(st.sampled_from([d for d in range(1, 769) if (768 * by) % d == 0]))
    simple = simplify(divided // rest)
    for h, w in ((24, 32), (72, 160), (120, 96)):
        values = {H: h, W: w}
        assert int(evaluate(one, values)) == scale * h * w
        assert int(evaluate(simple, values)) == h * w // rest


@SETTINGS
@given(conditions(LEAVES), st.lists(points(), min_size=4, max_size=8))
def test_conditions_keep_their_truth(e: Expr, samples: list[dict[Var, int]]) -> None:
    simple = simplify(e, EXTENTS)
    proven, refuted = prove(e, EXTENTS), prove(~e, EXTENTS)
    assert not (proven and refuted)
    for values in samples:
        truth = bool(evaluate(e, values))
        assert bool(evaluate(simple, values)) == truth
        assert not proven or truth
        assert not refuted or not truth


@SETTINGS
@given(int_exprs([X, N, M, I, J, K], 3), st.lists(points(), min_size=4, max_size=8))
def test_symbolic_bounds_contain_the_value(e: Expr, samples: list[dict[Var, int]]) -> None:
    ends = symbolic_bounds(e, {I: EXTENTS[I], K: EXTENTS[K]}, {J: EXTENTS[J]})
    if ends is None:
        return
    lo, hi = ends
    for values in samples:
        outer = {v: x for v, x in values.items() if v not in (I, K)}
        assert int(evaluate(lo, outer)) <= int(evaluate(e, values)) <= int(evaluate(hi, outer))


@SETTINGS
@given(conditions([X, N, I]), conditions([X, N, I]), st.lists(points(), min_size=6, max_size=12))
def test_facts_are_used_truthfully(fact: Expr, e: Expr, samples: list[dict[Var, int]]) -> None:
    simple = Analyzer(EXTENTS, (fact,)).simplify(e)
    for values in samples:
        if evaluate(fact, values):
            assert bool(evaluate(simple, values)) == bool(evaluate(e, values))


@SETTINGS
@given(
    int_exprs([X, N, I, J, K], 3),
    st.lists(st.integers(-6, 6), min_size=5, max_size=5),
    st.lists(points(), min_size=6, max_size=12),
)
def test_ends_under_conditions_hold_where_these_do(e: Expr, factors: list[int], samples: list[dict[Var, int]]) -> None:
    *steps, size = factors
    fact = sum((v * c for v, c in zip((X, I, J, K), steps, strict=True)), const(0)) < size
    ends = symbolic_bounds(e, {I: EXTENTS[I], K: EXTENTS[K]}, {J: EXTENTS[J]}, (fact,))
    limits = symbolic_limits(e, {I: EXTENTS[I], K: EXTENTS[K]}, {J: EXTENTS[J]}, (fact,))
    for values in samples:
        if evaluate(fact, values):
            outer = {v: x for v, x in values.items() if v not in (I, K)}
            value = int(evaluate(e, values))
            if ends is not None:
                assert int(evaluate(ends[0], outer)) <= value <= int(evaluate(ends[1], outer))
            for limit in limits:
                assert value <= int(evaluate(limit, outer))


def test_an_overhanging_tile_stays_in_its_period() -> None:
    """Tiles of 16 in panels of 24: the second one overhangs, and only the condition keeps it in its panel."""
    panel, part, lane = Var("panel"), Var("part"), Var("lane")
    outer, inner = {panel: const(32), part: const(2)}, {lane: const(16)}
    at, inside = panel * 24 + part * 16 + lane, (part * 16 + lane < 24,)
    assert symbolic_bounds(at // 24, inner, outer, inside) == (panel, panel)
    assert symbolic_bounds(at % 24, inner, outer, inside) == (part * 16, part * 16 + 15)
    assert symbolic_bounds(at % 24, inner, outer)[0] == const(0)  # Without the condition it may be the next panel's.
    assert symbolic_limits(at, inner, outer, inside) == (panel * 24 + 23,)
    both = {part: const(2), lane: const(16)}
    assert symbolic_limits(at, both, {panel: const(32)}, inside) == (panel * 24 + 23,)
    assert symbolic_limits(at, inner, outer, (panel < 7,)) == ()
    assert symbolic_limits(panel * 24, inner, outer, (lane < 7,)) == ()


@SETTINGS
@given(int_exprs([I, X], 3))
def test_substituting_a_loop_of_one_iteration(e: Expr) -> None:
    assert simplify(e, {I: const(1)}) is simplify(substitute(e, {I: const(0)}))


@settings(SETTINGS, max_examples=EXAMPLES // 4)
@given(st.data(), st.sampled_from([i8, u8, i32, u32]))
def test_narrow_integers_wrap(data: st.DataObject, dtype: DType) -> None:
    """Value and bounds of other types than i64: a result that leaves the type is any value of the type."""
    a, b = Var("a", dtype), Var("b", dtype, lo=0, hi=9)
    e = data.draw(narrow_exprs([a, b], dtype))
    simple, result = simplify(e), bounds(e)
    for _ in range(6):
        values = {
            a: data.draw(st.one_of(st.integers(int(dtype.min), int(dtype.max)), st.sampled_from([0, 1, 5]))),
            b: data.draw(st.integers(0, 9)),
        }
        value = int(evaluate(e, values))
        assert int(evaluate(simple, values)) == value
        assert result.contains(value), (result, value)


@pytest.mark.parametrize(
    "fact", [X < Y, X <= Y, X > Y, X >= Y, equal(X, Y), not_equal(X, Y), (X < Y) | (X > Y + 3)], ids=str
)
def test_what_a_comparison_says(fact: Expr) -> None:
    """Exactly what follows of it is proven, of all comparisons of the same sides."""
    cases = [(a, b) for a in range(8) for b in range(8) if evaluate(fact, {X: a, Y: b})]
    for e in (X < Y, X <= Y, X > Y, X >= Y):
        follows = all(evaluate(e, {X: a, Y: b}) for a, b in cases)
        assert Analyzer({}, (fact,)).prove(e) == follows, e


def test_ends_of_what_is_clamped() -> None:
    """A number from memory that is clamped at one side has the other operand's end."""
    place = Buffer("at", i64, (const(8),))[I]
    inner = {I: const(8)}
    assert symbolic_bounds(minimum(maximum(place, 0), N - 1), inner) == (const(0), N - 1)
    assert symbolic_bounds(maximum(I, minimum(place, 10)), inner) == (const(0), const(10))
    assert symbolic_bounds(place, inner) is None


@pytest.mark.parametrize("c", [-2, -1, 1, 2])
def test_remainders_by_a_size_stay_below_it(c: int) -> None:
    """`c * (x % n)` lies between 0 and `c * (n - 1)`: what is proven beside another symbol is that, and no more."""
    n, m = Var("n", lo=1), Var("m", lo=1)
    rest, most = X % n * c, (n - 1) * c
    low, high = (most, const(0)) if c < 0 else (const(0), most)
    for other in (n * 3, n + m, m * m):
        assert Analyzer({}).prove(rest + other >= low + other)
        assert Analyzer({}).prove(rest + other <= high + other)
        assert not Analyzer({}).prove(rest + other > low + other)
        assert not Analyzer({}).prove(rest + other < high + other)
    assert not Analyzer({}).prove(X % m * c <= most) or c < 0


def test_ends_of_what_is_no_sum() -> None:
    """Bits of a loop's number lie in a range of numbers, whatever they are added to."""
    bits = Op("bitand", (I, const(3)))
    assert symbolic_bounds(bits, {I: const(64)}) == (const(0), const(3))
    assert symbolic_bounds(bits * 4 + N, {I: const(64)}) == (N, N + 12)
    assert symbolic_bounds(Op("bitxor", (I, N)), {I: const(64)}) is None
