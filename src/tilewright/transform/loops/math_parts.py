"""What the written-out functions are made of: constants, multiply-adds, bits of floats, polynomials."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import f32, f64, i32, i64
from tilewright.ir.expr import Const, Expr, Op, call, const


def single(x: float) -> Const:
    """An f32."""
    return const(x, f32)


def double(x: float) -> Const:
    """An f64."""
    return const(x, f64)


def word(x: int) -> Const:
    """An i32."""
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
    """c[0] + c[1] x + c[2] x^2 + ..., by Horner's rule."""
    result: Expr = const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, const(c, x.dtype))
    return result


def with_sign(positive: Expr, x: Expr) -> Expr:
    """A number that is not negative with the sign of another."""
    sign = const(-1 << (x.dtype.bits - 1), bits(x).dtype)
    return as_float(bits(positive) | (bits(x) & sign))
