"""Integer divisions and shifts for languages that leave some of their operands undefined.

The IR defines all of them (`ir/scalar_ops.py`): quotient and remainder of a division by zero are 0; the least number by
-1 wraps; a shift by the width or more, or by a negative number, gives 0, or the sign for a signed right shift.
StableHLO does not define these, and in MLIR's `arith` they are undefined or poison.
"""

from __future__ import annotations

from tilewright.ir.expr import Const, Expr, Op, Var, call, const

_QUOTIENTS = ("floordiv", "truncdiv")
_DIVISIONS = (*_QUOTIENTS, "mod", "truncmod")


def defined(e: Op) -> Op:
    """`e` itself, or an equal expression whose divisions and shifts have operands that every language defines: divisors
    that are neither 0 nor (of signed numbers) -1, and shifts by 0 to the width less one."""
    if e.name in _DIVISIONS and e.dtype.is_int:
        return _division(e)
    if e.name in ("shl", "shr") and e.dtype.is_int:
        return _shift(e)
    return e


def _division(e: Op) -> Op:
    a, b = e.args
    signed = b.dtype.kind == "int"
    if _is_divisor(b, signed):
        return e
    by_zero = call("eq", b, const(0, b.dtype))
    inside = Op(e.name, (a, _divisor(b, signed)))
    if e.name not in _QUOTIENTS:
        return inside  # the remainder by the 1 that stands for 0 and -1 is 0, as it should be
    if signed:
        negated = call("sub", const(0, a.dtype), a)
        inside = Op("select", (call("eq", b, const(-1, b.dtype)), negated, inside))
    return Op("select", (by_zero, const(0, e.dtype), inside))


def _divisor(b: Expr, signed: bool) -> Expr:
    special = call("eq", b, const(0, b.dtype))
    if signed:
        special = call("or", special, call("eq", b, const(-1, b.dtype)))
    return Op("select", (special, const(1, b.dtype), b))


def _is_divisor(b: Expr, signed: bool) -> bool:
    match b:
        case Const(value):
            return value != 0 and not (signed and value == -1)
        case Var():
            return b.lo is not None and b.lo > 0
        case Op("select", (_, _, inner)):
            return b is _divisor(inner, signed)
    return False


def _shift(e: Op) -> Op:
    x, n = e.args
    sign = e.name == "shr" and x.dtype.kind == "int"
    last = x.dtype.bits - 1
    if _is_amount(n, last):
        return e
    moved = Op(e.name, (x, _amount(n, last)))
    return moved if sign else Op("select", (_fits(n, last), moved, const(0, e.dtype)))


def _fits(n: Expr, last: int) -> Expr:
    small = call("le", n, const(last, n.dtype))
    return call("and", call("ge", n, const(0, n.dtype)), small) if n.dtype.kind == "int" else small


def _amount(n: Expr, last: int) -> Expr:
    return Op("select", (_fits(n, last), n, const(last, n.dtype)))


def _is_amount(n: Expr, last: int) -> bool:
    match n:
        case Const(value):
            return bool(0 <= value <= last)
        case Op("select", (_, inner, _)):
            return n is _amount(inner, last)
    return False
