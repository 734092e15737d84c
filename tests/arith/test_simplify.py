"""Results that the simplifier, the bounds and the prover must find: one line an example."""

from __future__ import annotations

import gc
import itertools

import pytest

from tests.arith.evaluate import evaluate
from tilewright import arith
from tilewright.arith import Analyzer, bounds, exact_quotient, linear, prove, prove_equal, simplify, symbolic_bounds
from tilewright.arith.forms import order
from tilewright.ir.dtype import boolean, f16, f32, f64, i8, i32, i64, u32
from tilewright.ir.expr import Buffer, Expr, Op, Var, call, cast, const, equal, maximum, minimum, not_equal, select
from tilewright.ir.rewrite import walk_expr

i, j, k, x, y = (Var(name) for name in "ijkxy")
io, ii, f = Var("io"), Var("ii"), Var("f")
n, m, b = Var("n", lo=1), Var("m", lo=1, multiple=8), Var("b", lo=1, hi=64)
w = Var("w", lo=1, multiple=16)
u, v = Var("u", f32), Var("v", f32)
p = Var("p", boolean)
c = const

narrow = Var("s", i32, lo=0, hi=9)
place = Buffer("I", i64, (c(16),))[i]
other = Buffer("I", i64, (c(16),))[j]
inside = minimum(maximum(place, 0), 15)

SPLIT = {io: c(4), ii: c(8)}

SIMPLIFIED: list[tuple[Expr, dict[Var, Expr], str]] = [
    # Sums and products of data wrap: they are compared and divided as they are written, unless something bounds them.
    (place - other < n, {}, "I[i] - I[j] < n"),
    (place - other > 0, {}, "0 < I[i] - I[j]"),
    (place + 5 <= n, {}, "I[i] + 5 <= n"),
    (n - place < x, {}, "n - I[i] < x"),
    (place < x - n, {}, "I[i] < x - n"),
    (place - x < 0, {}, "I[i] - x < 0"),
    (x - place < 0, {}, "x - I[i] < 0"),
    (inside - x < 0, {}, "min(max(I[i], 0), 15) < x"),
    (place < x, {}, "I[i] < x"),
    (place * 12345 % 10, {}, "I[i] * 12345 % 10"),
    (place * 12345 // 10, {}, "I[i] * 12345 // 10"),
    (cast(Buffer("J", i32, (c(16),))[i], i64) * 12345 % 10, {}, "i64(J[i]) % 2 * 5"),
    ((place * 4 + ii) // 4, {ii: c(4)}, "(I[i] * 4 + ii) // 4"),
    ((place * 4 + ii) % 4, {ii: c(4)}, "ii"),
    ((inside * 4 + ii) // 4, {ii: c(4)}, "min(max(I[i], 0), 15)"),  # an address of rows
    ((place + 10) % 10, {}, "(I[i] + 10) % 10"),
    (place + 1 > place, {}, "I[i] < I[i] + 1"),
    (place + 1 <= place + 1, {}, "true"),
    (place * 3 == 1, {}, "I[i] * 3 == 1"),
    (place * 2 == 1, {}, "false"),
    (maximum(place + 1, place), {}, "max(I[i], I[i] + 1)"),
    (place <= (1 << 63) - 1, {}, "I[i] <= 9223372036854775807"),
    (place % -(1 << 63), {}, "I[i] % -9223372036854775808"),
    ((io * 8 + ii) // 8, SPLIT, "io"),
    ((io * 8 + ii) % 8, SPLIT, "ii"),
    ((io * 8 + ii) // 16, SPLIT, "io // 2"),
    ((io * 8 + ii) % 16, SPLIT, "io % 2 * 8 + ii"),
    ((x * 6 + 3) // 4, {}, "(x + 1) // 2 + x"),
    ((x * 6) // 4, {}, "x // 2 + x"),
    (x // 4 // 3, {}, "x // 12"),
    (x % 12 // 4, {}, "x // 4 % 3"),
    (x % 12 % 4, {}, "x % 4"),
    (x // 4 * 4 + x % 4, {}, "x"),
    (x // 12 * 12 + x // 4 % 3 * 4 + x % 4, {}, "x"),
    ((x * 3 + y) // 3 * 3 + (x * 3 + y) % 3, {}, "x * 3 + y"),
    ((x * 8 + y) % 5 + (x * 8 + y) // 5 % 2 * 5, {}, "(x * 8 + y) % 10"),
    ((x * 8 + y) % 5 + (x * 8 + y) // 5 % 2 * 5 + (x * 8 + y) // 10 * 10, {}, "x * 8 + y"),
    (((x * 7 + y) % 4 + (x * 7 + y) // 4 % 3 * 4) * 6, {}, "(x * 7 + y) % 12 * 6"),
    (x - x // 8 * 8, {}, "x % 8"),
    ((x + 3) // 4 - (x + 3) // 52 * 13, {}, "(x + 3) // 4 % 13"),
    ((x // 4 - x // 12 * 3) * 5 + y, {}, "x // 4 % 3 * 5 + y"),
    ((x - 3) // 2 - (x - 3) // 26 * 13, {}, "((x + 1) // 2 + 11) % 13"),
    (x // 4 - x // 12 * 4, {}, "x // 4 - x // 12 * 4"),
    ((n + 3) // 52 * 13 + ii < (n + 3) // 4, {ii: c(8)}, "ii < (n + 3) // 4 % 13"),
    ((x - 1) // 2, {}, "(x + 1) // 2 - 1"),
    (-x // -4, {}, "x // 4"),
    (x // 0 + x % 0, {}, "0"),
    (m // 8 * 8, {}, "m"),
    ((m + 7) // 8, {}, "m // 8"),
    (m % 4, {}, "0"),
    (m // 2 // 2, {}, "m // 4"),
    (m // 8 * 6, {}, "m // 4 * 3"),
    (m // 2 * (w // 8), {}, "m // 8 * (w // 2)"),
    (m * w // 64, {}, "m // 8 * (w // 8)"),
    (m // 8 * (w // 8) * 64 - w // 4 * m * 4, {}, "0"),
    ((i * n + j) // n, {j: n}, "i"),
    ((i * n + j) % n, {j: n}, "j"),
    ((i * (n + 2) + j) // (n + 2), {j: n + 2}, "i"),
    ((i * n * 3 + j * 3 + k) // 3 % n, {j: n, k: c(3)}, "j"),
    (x // n * n + x % n, {}, "x"),
    (y - x % (n + 2) * 3 - x // (n + 2) * (n + 2) * 3, {}, "y - x * 3"),
    ((x + 1) // ((n + 5) // 6) * ((n + 5) // 6) + (x + 1) % ((n + 5) // 6) + 2, {}, "x + 3"),
    ((n * y + x) // n * n + x % n, {}, "n * y + x"),
    (x // y * y + x % y, {}, "x // y * y + x % y"),
    (x // n * n + x % n * 2, {}, "x // n * n + x % n * 2"),
    (x + y - x, {}, "y"),
    ((x + 1) * (x - 1) - x * x, {}, "-1"),
    (minimum(i, 7), {i: c(8)}, "i"),
    (maximum(minimum(x, 9), 0), {}, "max(min(x, 9), 0)"),
    (minimum(x + 1, x + 3), {}, "x + 1"),
    (minimum(n - io * 8, 8), {io: n // 8}, "8"),
    (select(i < 8, x, y), {i: c(8)}, "x"),
    (select(~(x < y), i, j), {}, "select(y <= x, i, j)"),
    (select(i < 8, 3, x) + 1, {i: c(8)}, "4"),
    (narrow < 10, {}, "true"),
    (narrow < 9, {}, "s < 9:i32"),
    (equal(narrow, 10), {}, "false"),
    (x * 2 < 9, {}, "x < 5"),
    (io * 8 + ii < 24, SPLIT, "io < 3"),
    (n // 8 * 8 + ii < n, {ii: c(8)}, "ii < n % 8"),
    (1 + x <= y, {}, "x < y"),
    (c(1) <= x, {}, "1 <= x"),
    (equal(x * 2, 5), {}, "false"),
    (equal(x + 3, y), {}, "x + 3 == y"),
    (equal(x, y + 3), {}, "x == y + 3"),
    (not_equal(x * 2 + 6, y * 2), {}, "x + 3 != y"),
    (equal(x + y, -3), {}, "x + y == -3"),
    (equal(-x - y, 5), {}, "x + y == -5"),
    (equal(c(3) - x, 0), {}, "x == 3"),
    (not_equal(x - y, 0), {}, "x != y"),
    (equal(i * 2 + j, 0), {i: c(3), j: c(2)}, "i * 2 + j == 0"),
    (p & ~p, {}, "false"),
    (u * 1.0, {}, "u"),
    (u + 0.0, {}, "u + 0.0"),
    (u * 0.0, {}, "u * 0.0"),
    ((u + v) - v, {}, "u + v - v"),
    (cast(cast(Var("a", i8), i32), i8), {}, "a"),
    (cast(cast(x, i32), i64), {}, "i64(i32(x))"),
    (cast(cast(x, i32), u32), {}, "u32(x)"),
    (cast(cast(Var("h", f16), f32), f64), {}, "f64(h)"),
    (cast(cast(Var("d", f64), f32), f16), {}, "f16(f32(d))"),
    (cast(cast(Var("a", i8), i32), f32), {}, "f32(a)"),
    (cast(cast(x, i8), f32), {}, "f32(i8(x))"),
    (cast(cast(p, f32), i64), {}, "i64(p)"),
    (cast(cast(narrow, boolean), i32), {}, "i32(bool(s))"),
    (i * 64 + j, {i: c(1)}, "j"),
    (c(7) - i, {}, "7 - i"),
    (c(7) - i * 2, {}, "7 - i * 2"),
    (c(7) + i * 2 - j, {}, "i * 2 - j + 7"),
    (x * m // 4, {}, "m // 4 * x"),
    (minimum(m, 16) // 8 * 8, {}, "min(m, 16)"),
    (maximum(m * 3, 28) // 4 * 4, {}, "max(m * 3, 28)"),
    (select(p, m, 12) // 4 * 4, {}, "select(p, m, 12)"),
    ((x * 8) % 12 // 4 * 4, {}, "x * 2 % 3 * 4"),
    (place * 2 + x - place, {}, "I[i] + x"),
    (place // 4 * 4 + place % 4, {}, "I[i]"),
    (place - place // 8 * 8 + x * n, {}, "n * x + I[i] % 8"),
    (inside * 4 // 4 + inside * n // n, {}, "min(max(I[i], 0), 15) * 2"),
]


@pytest.mark.parametrize("e, extents, text", SIMPLIFIED, ids=[t for _, _, t in SIMPLIFIED])
def test_simplify(e: Expr, extents: dict[Var, Expr], text: str) -> None:
    assert str(simplify(e, extents)) == text


PROVEN: list[tuple[Expr, dict[Var, Expr]]] = [
    (i < n, {i: n}),
    (c(0) <= i * n + j, {i: n, j: n}),
    (i * n + j < n * n, {i: n, j: n}),
    (io * 8 + ii < m, {io: m // 8, ii: c(8)}),
    (io * 8 + ii < m, {io: (m + 7) // 8, ii: c(8)}),
    (io * 8 < n, {io: (n + 7) // 8}),
    (io * 8 + ii < n, {io: n // 8, ii: c(8)}),
    (io * 8 + ii < n, {io: (n + 7) // 8, ii: minimum(c(8), n - io * 8)}),
    (n // 8 <= (n + 7) // 8, {}),
    ((n + 7) // 8 - n // 8 <= 1, {}),
    (f // n < 4, {f: n * 4}),
    (f % n < n, {f: n * 4}),
    (b <= 64, {}),
    (minimum(x, 3) <= 3, {}),
]


@pytest.mark.parametrize("e, extents", PROVEN, ids=[str(e) for e, _ in PROVEN])
def test_prove(e: Expr, extents: dict[Var, Expr]) -> None:
    assert prove(e, extents)
    assert not prove(~e, extents)


UNPROVEN: list[tuple[Expr, dict[Var, Expr]]] = [
    (io * 8 + ii < n, {io: (n + 7) // 8, ii: c(8)}),
    (i + 1 < n, {i: n}),
    (n < 1000, {}),
    (x * y <= x * y * n, {}),
    (call("truncdiv", x, n) < n, {}),
    (call("bitor", x, n) < n, {}),
    (x << n < n, {}),
    (call("abs", x) < n, {}),
    (u < u + 1.0, {}),
    (equal(u, u), {}),
]


@pytest.mark.parametrize("e, extents", UNPROVEN, ids=[str(e) for e, _ in UNPROVEN])
def test_not_provable(e: Expr, extents: dict[Var, Expr]) -> None:
    assert not prove(e, extents)


BOUNDS: list[tuple[Expr, dict[Var, Expr], tuple[int | None, int | None]]] = [
    (io * 8 + ii, SPLIT, (0, 31)),
    (c(7) - i, {i: c(8)}, (0, 7)),
    (n * 2, {}, (2, None)),
    (m, {}, (8, None)),
    (x % 8, {}, (0, 7)),
    (x % -8, {}, (-7, 0)),
    (b // 10, {}, (0, 6)),
    (minimum(x, 3), {}, (None, 3)),
    (cast(Var("a", i8), i64) + 1, {}, (-127, 128)),
    (select(p, i, 20), {i: c(8)}, (0, 20)),
    (Op("abs", (narrow - 5,)), {}, (0, 5)),
    (-narrow, {}, (-9, 0)),
    (cast(narrow, i64) * 2, {}, (0, 18)),
    (cast(narrow - 5, boolean), {}, (0, 1)),
    (narrow + 2**31 - 5, {}, (-(2**31), 2**31 - 1)),
    (narrow + cast(Var("a", i8), i32), {}, (-128, 136)),
    (Op("bitand", (narrow, cast(Var("a", i8), i32))), {}, (0, 9)),
    (Op("bitand", (Var("w", i32), Var("w", i32) - 1)), {}, (-(2**31), 2**31 - 1)),
    (select(p, u, v), {}, (None, None)),
    (Op("lookup", (x, c(3), c(-2), c(5))), {}, (-2, 5)),
    (b << 1, {}, (None, None)),
]


@pytest.mark.parametrize("e, extents, ends", BOUNDS, ids=[str(e) for e, _, _ in BOUNDS])
def test_bounds(e: Expr, extents: dict[Var, Expr], ends: tuple[int | None, int | None]) -> None:
    assert tuple(bounds(e, extents)) == ends


SYMBOLIC: list[tuple[Expr, dict[Var, Expr], tuple[str, str] | None]] = [
    (io * 8 + ii + 1, {ii: c(8)}, ("io * 8 + 1", "io * 8 + 8")),
    (x - ii * 2, {ii: c(4)}, ("x - 6", "x")),
    ((io * 8 + ii) // 4, {ii: c(8)}, ("io * 2", "io * 2 + 1")),
    ((io * 2 + ii) % 16, {ii: c(2)}, ("io % 8 * 2", "io % 8 * 2 + 1")),
    (i * n + j, {i: c(4), j: n}, ("0", "n * 4 - 1")),
    (minimum(io * 8 + ii, n - 1), {ii: c(8)}, ("min(io * 8, n - 1)", "min(io * 8 + 7, n - 1)")),
    (i * x, {i: c(4)}, ("min(x * 3, 0)", "max(x * 3, 0)")),
    (ii + j, {ii: c(8), j: minimum(c(4), n - ii)}, ("0", "min(n, 4) + 6")),
    (cast(ii, i8) + cast(1, i8), {ii: c(8)}, ("1", "8")),
    (select(p, x + ii, y - ii), {ii: c(8)}, ("min(y - 7, x)", "max(x + 7, y)")),
    (select(p, x + i, x - i * i), {i: c(4)}, None),
    (select(p, x - i * i, x + i), {i: c(4)}, None),
    (u + 1.0, {}, None),
    (x - k, {j: (n + 3) // 4, k: minimum(c(4), n - j * 4)}, ("x - min(n, 4) + 1", "x")),
    (x + k, {j: (n + 3) // 4, k: minimum(c(4), n - j * 4)}, ("x", "min(n, 4) + x - 1")),
    (x + i * n, {i: m}, ("x", "m * n + x - n")),
    (x - i * n, {i: m}, ("n - m * n + x", "x")),
    (x - i * i, {i: c(4)}, None),
    (i * i * j, {i: j, j: c(3)}, None),
]


@pytest.mark.parametrize("e, extents, ends", SYMBOLIC, ids=[str(e) for e, _, _ in SYMBOLIC])
def test_symbolic_bounds(e: Expr, extents: dict[Var, Expr], ends: tuple[str, str] | None) -> None:
    result = symbolic_bounds(e, extents)
    if ends is None:
        assert result is None
    else:
        assert result is not None
        assert (str(result[0]), str(result[1])) == ends


@pytest.mark.parametrize(
    ("e", "divisor"),
    [
        (m, 8),
        (m * x, 8),
        (m * m, 64),
        (m * 2 + 4, 4),
        (minimum(m, x), 1),
        (maximum(m, x * 6), 2),
        (minimum(x * 6, m), 2),
        (select(p, m, x * 4), 4),
        (select(p, x * 4, m), 4),
        (select(p, x, m), 1),
        (m % 12, 4),
        (x % 6, 1),
        (m // 4, 2),
        (m // 3, 1),
        (m // x, 1),
        (m % n, 1),
        (-m, 8),
        (c(-6), 6),
        (c(0), 0),
    ],
    ids=str,
)
def test_divisors(e: Expr, divisor: int) -> None:
    """The largest that is known; an extent's variable is any number, whatever the symbol's multiple was."""
    an = Analyzer()
    assert an.form_divisor(an.form(e)) == divisor
    loop = Analyzer({m: c(9)})
    assert loop.form_divisor(loop.form(m)) == 1


def test_linear() -> None:
    form = linear((i + 1) * 8 + j - n * 2)
    assert dict(form.terms) == {i: 8, j: 1, n: -2}
    assert form.constant == 8
    assert form.coefficient(j) == 1
    assert form.coefficient(k) == 0


def test_prove_equal() -> None:
    assert prove_equal((n + 1) * (n - 1), n * n - 1)
    assert prove_equal((m + 7) // 8 * 8, m)
    assert not prove_equal(n, m)


def test_facts() -> None:
    an = Analyzer({io: (n + 7) // 8, ii: c(8)}, [io < n // 8])
    assert an.prove(io * 8 + ii < n)
    assert not an.prove(io * 8 + ii + 1 < n)


def test_long_products_are_not_multiplied_out() -> None:
    """Two sums of five terms would become thirty-six: the product stays whole, as one factor of what it is part of."""
    a, b = (sum((Var(f"{s}{t}") * (t + 1) for t in range(5)), const(1)) for s in "ab")
    an = Analyzer()
    assert dict(an.form(a * b)[0]) == {Op("mul", (an.simplify(a), an.simplify(b))): 1}
    assert an.prove(equal(a * b - b * a, 0))
    assert len(an.form((x + 1) * (y + i + 2))[0]) == 5
    several = sum((Var(f"a{t}") * 3 for t in range(12)), const(3))
    assert an.form_divisor(an.form(m * 2 * several)) == 8 * 2 * 3


@pytest.mark.parametrize("term", [0, 1], ids=["powers", "sums"])
def test_data_squared_repeatedly_stays_a_product(term: int) -> None:
    """`x` squared 60 times has 2**60 factors and, with a sum in between, as many terms: neither is written out."""
    value = place
    for _ in range(60):
        value = value * value + term
    simple = Analyzer().simplify(value)
    assert sum(1 for _ in walk_expr(simple)) < 200
    short = place
    for _ in range(3):
        short = short * short + term
    simple = Analyzer().simplify(short)
    for start in (-3, 2, 12345678901):
        assert evaluate(simple, {place: start}) == evaluate(short, {place: start})


def test_analyzers_are_forgotten_when_they_remember_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers stay."""
    before = arith._analyzer({})
    assert arith._analyzer({}) is before
    monkeypatch.setattr(arith, "_MEMO_LIMIT", before.remembered + 20)
    for _ in range(2):
        for k in range(9):
            assert str(simplify((x + k) * 2 // 4)) == str(Analyzer().simplify((x + k) * 2 // 4))
    assert arith._analyzer({}) is not before


def test_order_of_long_expressions() -> None:
    """Texts of long expressions are cut: the beginning, then a digest of the whole."""
    short, long = x, [y + k for k in range(2)]
    for _ in range(9):
        long = [maximum(minimum(e, 3) * e, x) for e in long]
    assert order(short) == "x" and order(minimum(x, 3)) == "min(x,3)"
    one, other = map(order, long)
    assert one != other and max(len(one), len(other)) <= 200 and one.startswith("max(")


def rounded_up(n: Expr, d: int) -> Expr:
    """The next multiple of d, as code that pads to whole windows writes it."""
    return n + (d - n % d) % d


H, W, B = (Var(name, lo=1) for name in "hwb")
P, Q = rounded_up(H, 4), rounded_up(W, 4)


@pytest.mark.parametrize(
    ("e", "simple"),
    [
        (P % 4, const(0)),
        (P // 4 * 4, P),
        (P // (P // 4), const(4)),
        (P * 3 // (P // 4), const(12)),
        (P * 3 % (P // 4), const(0)),
        (B * (P // 4) * 4 * (Q // 4) * 4 * 8, B * P * Q * 8),
        (B * (P // 4) * (P // 4) * 16, B * P * P),
        (B * (P // 4) * (Q // 4) * 128 // ((P // 4) * (Q // 4) * 128), B),
        (rounded_up(H, 6) // 6 * 6 + W, rounded_up(H, 6) + W),
        (minimum(P // 4, 1), const(1)),
    ],
    ids=str,
)
def test_dimensions_rounded_up_to_whole_windows(e: Expr, simple: Expr) -> None:
    assert simplify(e) is simplify(simple)
    for h, w in itertools.product(range(1, 14), range(1, 10)):
        values = {H: h, W: w, B: 3}
        assert evaluate(simplify(e), values) == evaluate(e, values) == evaluate(simple, values), (h, w)


def test_parts_of_what_may_be_zero_stay() -> None:
    """`x // (x // 4)` is 0 where x is: the quotient by 0."""
    n = Var("n", lo=0)
    whole = rounded_up(n, 4)
    e = whole // (whole // 4)
    for k in range(9):
        assert evaluate(simplify(e), {n: k}) == evaluate(e, {n: k}) == (4 if k else 0)


def test_exact_quotients() -> None:
    """Polynomials of sizes, that may be 0 as well: what they are divided by is one of their factors."""
    b, h, w = (Var(name) for name in "bhw")
    p, q = (d // 4 + (d // 4 * -1) % 4 for d in (h, w))
    for whole, part, quotient in (
        (b * (p // 4) * 4 * (q // 4) * 4 * 8, p * q * 8, b),
        (b * b + b * h * 2 + h * h, b + h, b + h),
        (b * b - h * h, h - b, b * -1 - h),
        (b * h * w * 6, h * 2, b * w * 3),
        (b * 6 + 4, const(2), b * 3 + 2),
    ):
        assert exact_quotient(whole, part) is simplify(quotient), (whole, part)
    for whole, part in ((b * b + h, b + h), (b * 6 + 4, const(4)), (b, const(0)), (b * 3, b * 2), (const(6), b)):
        assert exact_quotient(whole, part) is None, (whole, part)


def test_released_analyzers_are_gone() -> None:
    def count() -> int:
        gc.collect()
        return sum(type(o) is Analyzer for o in gc.get_objects())

    arith.release()
    before, v = count(), Var("v")
    for extent in range(5, 15):
        simplify((v * 8 + 3) // 4, {v: const(extent)})
    assert count() == before + 10
    arith.release()
    assert count() == before
