"""Quotients of floats that are rounded to minus infinity, and their remainders, computed by the same steps as NumPy."""

from __future__ import annotations

from tilewright.ir.dtype import f32
from tilewright.ir.expr import Expr, Op, binary, call, cast, const, equal, not_equal, select


def floored(name: str, a: Expr, b: Expr) -> Expr:
    """`a // b` ("floordiv") or `a % b` ("mod") of floats; for operands of different or other types, the ordinary
    operator, which reports errors."""
    if b.dtype is not a.dtype:
        return binary(name, a, b)
    if name == "mod":
        return _remainder(a, b)
    if a.dtype.bits < 32:
        return cast(_quotient(cast(a, f32), cast(b, f32)), a.dtype)
    return _quotient(a, b)


def _quotient(a: Expr, b: Expr) -> Expr:
    """`(a - a % b) / b` as a whole number: `a / b` where b is 0, and zeros with the sign of `a / b` (`floor_divide` of
    NumPy 2, npymath)."""
    rest, zero, one = Op("fmod", (a, b)), const(0.0, a.dtype), const(1.0, a.dtype)
    below = not_equal(rest, zero) & ((rest < zero) ^ (b < zero))
    divided = (a - rest) / b
    divided = select(below, divided - one, divided)
    whole = call("floor", divided)
    whole = select(divided - whole > const(0.5, a.dtype), whole + one, whole)
    return select(equal(b, zero), a / b, select(equal(divided, zero), a / b * zero, whole))


def _remainder(a: Expr, b: Expr) -> Expr:
    """C's fmod, plus b if the signs differ, so that the result, even a zero, has the sign of b."""
    rest, zero = Op("fmod", (a, b)), const(0.0, a.dtype)
    signed = select(b < zero, const(-0.0, a.dtype), zero)
    return select(equal(rest, zero), signed, select((rest < zero) ^ (b < zero), rest + b, rest))
