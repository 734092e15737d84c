"""Numbers that a model is given may be anything: what is computed of them wraps as NumPy's does, whatever the
simplifier makes of the expression. Sizes and loop variables stay far from the ends of their type."""

from __future__ import annotations

from random import Random

import pytest

from tests.arith.evaluate import evaluate
from tilewright.arith import Analyzer, bounds, simplify
from tilewright.ir.dtype import DType, i8, i16, i32, i64, u8, u16, u32, u64
from tilewright.ir.expr import Buffer, Const, Expr, Op, Var, cast, const, select

I, N = Var("i"), Var("n", lo=1, hi=1 << 31)
EXTENTS: dict[Var, Expr] = {I: const(5)}
TYPES = (i8, i16, i32, i64, u8, u16, u32, u64)
LOADS: dict[DType, list[Expr]] = {t: [Buffer(f"{name}_{t.name}", t, (const(8),))[I] for name in "AB"] for t in TYPES}
BINARY = ("add", "sub", "mul", "floordiv", "mod", "truncdiv", "truncmod", "min", "max", "bitand", "bitor", "bitxor")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def edges(t: DType) -> list[int]:
    """Numbers at the ends of a type, about 0 and where products leave the type."""
    lo, hi = int(t.min), int(t.max)
    numbers = (lo, lo + 1, lo + 7, hi, hi - 1, hi - 9, hi // 2, hi // 2 + 1, lo // 2, hi // 10 * 10, 0, 1, 2, 3, 10, -1)
    return sorted({v for v in numbers if lo <= v <= hi})


def leaf(r: Random, t: DType) -> Expr:
    """A number of the data, of this type or another, a loop variable or a size where the type is theirs, a literal."""
    kind = r.random()
    if kind < 0.65:
        return r.choice(LOADS[t]) if kind < 0.5 else cast(r.choice(LOADS[r.choice(TYPES)]), t)
    if kind < 0.75 and t is i64:
        return r.choice((I, N))
    return const(r.choice((*range(13), *edges(t))), t)


def number(r: Random, t: DType, depth: int) -> Expr:
    kind = r.random()
    if depth == 0 or kind < 0.2:
        return leaf(r, t)
    a = number(r, t, depth - 1)
    if type(a) is Const:  # what is computed of literals alone was folded when it was written
        return a
    if kind < 0.75:
        pair = (a, number(r, t, depth - 1))
        return Op(r.choice(BINARY), pair if r.random() < 0.5 else pair[::-1])
    if kind < 0.82:
        return Op(r.choice(("neg", "abs", "bitnot")), (a,))
    return cast(cast(a, r.choice(TYPES)), t) if kind < 0.9 else select(condition(r, t, depth - 1), a, leaf(r, t))


def condition(r: Random, t: DType, depth: int) -> Expr:
    return Op(r.choice(COMPARISONS), (number(r, t, depth), number(r, t, depth)))


def point(r: Random) -> dict[Expr, int]:
    values: dict[Expr, int] = {I: r.randrange(5), N: r.choice((1, 2, 7, 1 << 31))}
    return values | {load: r.choice(edges(t)) for t, loads in LOADS.items() for load in loads}


@pytest.mark.daily(3)
@pytest.mark.parametrize("t", TYPES, ids=lambda t: t.name)
def test_numbers_of_data_wrap(t: DType) -> None:
    r = Random(t.name)
    for _ in range(800 if t is i64 else 150):
        depth = r.choice((1, 2, 2, 3))
        e = number(r, t, depth) if r.random() < 0.5 else condition(r, t, depth)
        if type(e) is Const:
            continue
        simple, interval, an = simplify(e, EXTENTS), bounds(e, EXTENTS), Analyzer(EXTENTS)
        divisor = an.form_divisor(an.form(e)) if e.dtype is i64 else 1
        for _ in range(6):
            values = point(r)
            want = int(evaluate(e, values))
            assert int(evaluate(simple, values)) == want, (str(e), str(simple), values)
            assert interval.contains(want), (str(e), interval, values)
            assert want % divisor == 0 if divisor else want == 0, (str(e), divisor)
