"""Arithmetic for special functions, with which one formula serves both expressions and NumPy arrays.

`special` registers a pointwise operator that computes in f64, whatever its operands' floating-point type, and rounds
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import f64
from tilewright.ir.expr import Expr, call, cast, const
from tilewright.ir.expr import select as select_expr
from tilewright.ir.scalar_ops import OPS
from tilewright.ops.pointwise import pointwise, same

Number = Any
"""An operand or a result of a special function's formula: an expression or an array, of f64."""


FORMULAS: dict[str, Callable[..., Number]] = {}
"""For each special function, by operator, its formula."""


def special(name: str, arity: int, formula: Callable[..., Number]) -> None:
    """Register the special function `name` of `arity` real numbers. Its reference is the same formula, evaluated by
    NumPy."""

    def reference(*arrays: Any) -> Any:
        with np.errstate(all="ignore"):
            return formula(*(np.asarray(a).astype(np.float64) for a in arrays))

    FORMULAS[name] = formula
    pointwise(name, arity, lambda x, _: formula(*(cast(e, f64) for e in x)), reference, same("float"))


def function(name: str, *args: Number) -> Number:
    """Apply the scalar operator `name` of `ir.scalar_ops`."""
    if any(isinstance(a, Expr) for a in args):
        return call(name, *(a if isinstance(a, Expr) else const(float(a), f64) for a in args))
    return OPS[name].numpy(*args)


def where(condition: Number, a: Number, b: Number) -> Number:
    if isinstance(condition, Expr):
        return select_expr(condition, *(v if isinstance(v, Expr) else const(float(v), f64) for v in (a, b)))
    return np.where(condition, a, b)


def equal(a: Number, b: Number) -> Number:
    return function("eq", a, b)


def polynomial(x: Number, coefficients: Sequence[float]) -> Number:
    """A polynomial by Horner's rule; the coefficient of the highest power comes first."""
    total: Number = coefficients[0]
    for c in coefficients[1:]:
        total = total * x + c
    return total


def chebyshev(x: Number, coefficients: Sequence[float]) -> Number:
    """A series in Chebyshev polynomials of x / 2, the highest degree's coefficient first, the lowest one halved
    (Clenshaw's recurrence)."""
    before, last = x * 0.0, x * 0.0 + coefficients[0]
    older = before
    for c in coefficients[1:]:
        older, before = before, last
        last = x * before - older + c
    return (last - older) * 0.5


__all__ = ["FORMULAS", "chebyshev", "equal", "function", "polynomial", "special", "where"]
