"""Sizes in 64 bits: what is computed exactly, what is refused, and that nothing wraps unseen."""

from __future__ import annotations

import random

import pytest

from tests.arith.evaluate import evaluate
from tilewright import te
from tilewright.arith import simplify
from tilewright.arith.forms import literal
from tilewright.arith.overflow import at_smallest, check_bytes, guarded, held
from tilewright.ir.expr import Expr, Op, Var, as_int, const, maximum, minimum, select
from tilewright.support.errors import ShapeError

N, M = Var("n", lo=0), Var("m", lo=5, multiple=4)
WHOLE = 1 << 64


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 1 << 64, (1 << 200) + 12345, -(1 << 130) + 7])
def test_numbers_that_no_i64_has_stay_what_they_are(value: int) -> None:
    number = literal(value)
    assert as_int(number) is None
    assert at_smallest(number) == value
    assert at_smallest(simplify(N * 0 + number)) == value
    assert (int(evaluate(number, {})) - value) % WHOLE == 0


def test_what_would_wrap_is_not_folded() -> None:
    assert as_int(const(1 << 62) * 4) is None
    assert as_int(const(1 << 62) + (1 << 62)) is None
    assert as_int(const((1 << 63) - 1) - (-1)) is None
    assert as_int(const(1 << 31) * (1 << 31)) == 1 << 62
    # What is computed at run time is what i64 gives.
    for e in (const(1 << 62) * 4, simplify((N + (1 << 62)) * 4), simplify(N * (1 << 62) * 12 + (1 << 62))):
        for n in (0, 1, 3):
            exact = at_smallest(_put(e, n))
            assert exact is not None
            assert (int(evaluate(e, {N: n})) - exact) % WHOLE == 0


def _put(e: Expr, n: int) -> Expr:
    """An expression in which N has a value, with nothing folded."""
    if e is N:
        return const(n)
    return Op(e.name, tuple(_put(a, n) for a in e.args)) if isinstance(e, Op) else e


def test_smallest_sizes() -> None:
    assert at_smallest(N * M + 3) == 11
    assert at_smallest(maximum(N, M) // 3) == 2
    assert at_smallest(select(N < 3, M, N)) == 8
    assert at_smallest(minimum(N, 0) - M % 3) == -2
    assert at_smallest(M // (N - 1)) is None
    assert at_smallest(te.placeholder((4,), "i64", name="A")[0] + 1) is None


def test_what_is_refused() -> None:
    for size in (
        const(1 << 47),
        const(-1),
        const(1 << 62) * 4,
        N * (1 << 46) * 4,
        (N + (1 << 62)) * 4,
        M * M * (1 << 43),
    ):
        with pytest.raises(ShapeError, match="more memory than there can be"):
            check_bytes(size, "x")
    for size in (const(0), const(1 << 46), N * M * (1 << 40), N - 5):
        assert check_bytes(size, "x") is size


def test_guards_of_calls() -> None:
    rng = random.Random(0)
    sizes = (N * N * N * 4, (N - M) * N, N * M // 3 * N, maximum(N * N, 7) * (M * M), select(N < M, N, N * N) * N * N)
    for e in sizes:
        checked, fits = guarded(e), held(e >= 0)
        for _ in range(50):
            n, m = (rng.choice((0, 1, 3, 1 << 20, 1 << 31, (1 << 40) - 4)) for _ in range(2))
            exact = _exact(e, n, m)
            got = int(evaluate(checked, {N: n, M: m}))
            assert got in (exact, -1), (e, n, m)
            assert got == exact or max(n, m) > 3
            assert not evaluate(fits, {N: n, M: m}) or exact >= 0


def _exact(e: Expr, n: int, m: int) -> int:
    put = {N: n, M: m}

    def value(x: Expr) -> Expr:
        return (
            const(put[x]) if isinstance(x, Var) else Op(x.name, tuple(map(value, x.args))) if isinstance(x, Op) else x
        )

    result = at_smallest(value(e))
    assert result is not None
    return result


def test_other_sizes_are_refused() -> None:
    with pytest.raises(ShapeError, match="no bound"):
        guarded(te.placeholder((4,), "i64", name="A")[0] + 1)
