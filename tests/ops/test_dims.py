"""The least size of a dimension, and the error for callers where it may be less."""

from __future__ import annotations

import pytest

from tilewright.ir.expr import Expr, Var, as_expr
from tilewright.ops.dims import at_least
from tilewright.support.errors import TooSmallError

N = Var("n", lo=3)


@pytest.mark.parametrize(("extent", "count"), [(4, 4), (4, 0), (N, 3), (N * 2, 5), (N, N), (N + 1, N - 3)], ids=str)
def test_a_dimension_that_always_has_enough_passes(extent: Expr | int, count: Expr | int) -> None:
    at_least(as_expr(extent), as_expr(count), "too few")


@pytest.mark.parametrize(
    ("extent", "count", "needs"),
    [(N, 4, ("n", 4)), (N, -1, None), (N, N + 1, None), (N + 1, 5, None), (4, 5, None), (N, N - 4, None)],
    ids=str,
)
def test_one_that_may_have_less_says_which_symbol_must_be_how_much(
    extent: Expr | int, count: Expr | int, needs: tuple[str, int] | None
) -> None:
    with pytest.raises(TooSmallError, match="too few") as error:
        at_least(as_expr(extent), as_expr(count), "too few")
    assert (error.value.needs or None) == needs
