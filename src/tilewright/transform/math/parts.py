"""Parts of the written-out functions: constants, multiply-adds, bits of floats, polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.ir.dtype import f32, f64, i32, i64
from tilewright.ir.expr import Const, Expr, Op, call, const, select


def single(x: float) -> Const:
    """A literal of f32."""
    return const(x, f32)


def double(x: float) -> Const:
    """A literal of f64."""
    return const(x, f64)


def word(x: int) -> Const:
    """A literal of i32."""
    return const(x, i32)


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """a * b + c, rounded once."""
    return call("fma", a, b, c)


def bits(x: Expr) -> Expr:
    """The bits of a float as an integer of its size."""
    return Op("bitcast", (x,), i32 if x.dtype is f32 else i64)


def as_float(x: Expr) -> Expr:
    """The float that has these bits."""
    return Op("bitcast", (x,), f32 if x.dtype is i32 else f64)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """c[0] + c[1] x + c[2] x^2 + ..., by Horner's rule; a last factor of 1 costs no multiplication."""
    result: Expr = const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        constant = const(c, x.dtype)
        result = x + constant if isinstance(result, Const) and result.value == 1.0 else fma(result, x, constant)
    return result


def zero_below(x: Expr, least: float, function: Callable[[Expr], Expr]) -> Expr:
    """function(x) for x >= `least`, zero below; there the function is evaluated at zero.

    An Intel core takes some hundred cycles for a vector with a result below the normal numbers, even if that is rounded
    to zero.
    """
    low, zero = x < const(least, x.dtype), const(0.0, x.dtype)
    return select(low, zero, function(select(low, zero, x)))


def linear_below(x: Expr, slope: float, function: Callable[[Expr], Expr]) -> Expr:
    """function(x), but x times the slope at zero for |x| < 2^-27. There the function is evaluated at zero, for the
    reason that `zero_below` states: functions of this kind square their arguments. A slope that is no power of two is
    added as one and the remainder, which loses less."""
    small = call("abs", x) < const(2.0**-27, x.dtype)
    is_exact = math.frexp(slope)[0] == 0.5
    line = x if slope == 1.0 else x * const(slope, x.dtype) if is_exact else x + x * const(slope - 1.0, x.dtype)
    return select(small, line, function(select(small, const(0.0, x.dtype), x)))


def with_sign(positive: Expr, x: Expr) -> Expr:
    """The nonnegative number `positive` with the sign of `x`."""
    sign = const(-1 << (x.dtype.bits - 1), bits(x).dtype)
    return as_float(bits(positive) | (bits(x) & sign))


def greatest(x: Expr) -> float:
    """An upper bound of a float that is not NaN."""
    match x:
        case Const(value):
            return float(value)
        case Op("min", (a, b)):
            return min(greatest(a), greatest(b))
        case Op("max", (a, b)):
            return max(greatest(a), greatest(b))
        case Op("neg", (a,)):
            return -_least(a)
    return math.inf


def _least(x: Expr) -> float:
    """A lower bound of a float that is not NaN."""
    match x:
        case Const(value):
            return float(value)
        case Op("min", (a, b)):
            return min(_least(a), _least(b))
        case Op("max", (a, b)):
            return max(_least(a), _least(b))
        case Op("neg", (a,)):
            return -greatest(a)
        case Op("abs", _):
            return 0.0
    return -math.inf
