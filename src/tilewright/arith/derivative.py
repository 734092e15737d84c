"""Derivatives of scalar expressions, one rule an operator.

    derivative(x * exp(x), x)   ->   exp(x) + x * exp(x)

At corners the derivative is that of PyTorch: a half for each argument of `min` and `max` if they are equal, zero for
`abs` at zero and for steps (`floor`, comparisons). Conditions have no derivative: that of a selection is taken from the
chosen branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.expr import Const, Expr, Load, Op, Var, call, const, is_const, select
from tilewright.ir.functions import FUNCTIONS
from tilewright.support.errors import UnsupportedError

Rule = Callable[[Sequence[Expr], Expr], Sequence[Expr]]
"""From the arguments and the result to the partial derivative by each argument."""


def derivative(e: Expr, x: Var) -> Expr:
    """The derivative of a floating point expression by a variable of its type.

    Raises UnsupportedError naming the operator that has none.
    """
    memo: dict[Expr, Expr] = {}

    def go(node: Expr) -> Expr:
        entry = memo.get(node)
        if entry is None:
            entry = memo[node] = _by_parts(node, x, go)
        return entry

    return go(e)


def _by_parts(node: Expr, x: Var, go: Callable[[Expr], Expr]) -> Expr:
    if node is x:
        return const(1, x.dtype)
    zero = const(0, node.dtype) if node.dtype.is_float else const(0, x.dtype)
    if isinstance(node, Const | Var | Load) or not isinstance(node, Op):
        return zero
    if node.name == "select":
        condition, a, b = node.args
        da, db = go(a), go(b)
        return zero if _none(da) and _none(db) else select(condition, da, db)
    if node.name == "cast":
        (a,) = node.args
        if not (a.dtype.is_float and node.dtype.is_float):
            return zero
        return Op("cast", (go(a),), node.dtype) if not _none(go(a)) else zero
    if node.dtype.is_float and node.name in STEPS:
        return zero
    parts = [go(a) for a in node.args]
    if all(_none(p) for p in parts):
        return zero
    rule = RULES.get(node.name)
    if rule is None:
        raise UnsupportedError(f"the scalar operator {node.name} has no derivative")
    total: Expr = zero
    for inner, outer in zip(parts, rule(node.args, node), strict=True):
        if not _none(inner):
            term = outer if is_const(inner, 1) else inner if is_const(outer, 1) else outer * inner
            total = term if _none(total) else total + term
    return total


def _none(e: Expr) -> bool:
    return is_const(e, 0)


def _c(value: float, like: Expr) -> Const:
    return const(value, like.dtype)


def _square(x: Expr) -> Expr:
    return x * x


def _sign(x: Expr) -> Expr:
    return select(x > _c(0, x), _c(1, x), select(x < _c(0, x), _c(-1, x), _c(0, x)))


def _extremum(a: Expr, b: Expr, first: Expr) -> Sequence[Expr]:
    """The derivatives of `min` or `max` by both arguments: 1 for the selected one (`first`: the condition that it is
    `a`), 1/2 for each if they are equal."""
    same = call("eq", a, b)
    half, one, zero = _c(0.5, a), _c(1, a), _c(0, a)
    share = select(same, half, select(first, one, zero))
    return share, one - share


def _pow(args: Sequence[Expr], result: Expr) -> Sequence[Expr]:
    """The derivatives of `pow` by base and exponent: that by the base is zero for a zero exponent, even at zero; that
    by the exponent is zero for a zero base."""
    x, y = args
    by_base = select(call("eq", y, _c(0, y)), _c(0, x), y * call("pow", x, y - _c(1, y)))
    flat = call("eq", x, _c(0, x)) & (y >= _c(0, y))
    return by_base, select(flat, _c(0, x), result * call("log", x))


def _atan2(args: Sequence[Expr], result: Expr) -> Sequence[Expr]:
    """The derivatives of `atan2`: zero at the origin, and where the squares of both arguments vanish."""
    y, x = args
    squares = _square(y) + _square(x)
    origin, zero = call("eq", squares, _c(0, y)), _c(0, y)
    return select(origin, zero, x / squares), select(origin, zero, -y / squares)


def _power_of_two(args: Sequence[Expr], result: Expr) -> Sequence[Expr]:
    x, n = args
    return call("scaleb", _c(1, x), n), _c(0, n)


def _rule(slope: Callable[[Expr, Expr, Callable[..., Expr]], Expr]) -> Rule:
    return lambda a, y: (slope(a[0], y, call),)


STEPS = frozenset(row.name for row in FUNCTIONS.values() if row.slope is None)
"""Functions that have slope zero wherever it is defined."""

RULES: dict[str, Rule] = {
    "add": lambda a, y: (_c(1, y), _c(1, y)),
    "sub": lambda a, y: (_c(1, y), _c(-1, y)),
    "mul": lambda a, y: (a[1], a[0]),
    "div": lambda a, y: (_c(1, y) / a[1], -y / a[1]),
    "fma": lambda a, y: (a[1], a[0], _c(1, y)),
    "neg": lambda a, y: (_c(-1, y),),
    "abs": lambda a, y: (_sign(a[0]),),
    "min": lambda a, y: _extremum(a[0], a[1], a[0] < a[1]),
    "max": lambda a, y: _extremum(a[0], a[1], a[0] > a[1]),
    "larger": lambda a, y: _extremum(a[0], a[1], a[0] > a[1]),
    "fmod": lambda a, y: (_c(1, y), -call("trunc", a[0] / a[1])),
    "pow": _pow,
    "atan2": _atan2,
    "scaleb": _power_of_two,
}
RULES |= {row.name: _rule(row.slope) for row in FUNCTIONS.values() if row.slope is not None}
"""The derivatives of the scalar operators."""
