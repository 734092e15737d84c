"""The remainder of a division of floats, exactly."""

from __future__ import annotations

from tilewright.ir.dtype import f32
from tilewright.ir.expr import Expr, Op, call, const, select
from tilewright.transform.math.parts import fma, with_sign


def fmod(x: Expr, y: Expr) -> Expr:
    """C's fmod, bit for bit: x - q y, where q is the quotient rounded to zero. One multiply-add computes it if q is
    exact, that is below 2^23 (f64: 2^52); for larger or infinite q the C library's function is called, if any lane
    needs it.

    The computed quotient of magnitudes is q, or q + 1 if it was rounded up; then y is added again. Both remainders are
    multiples of the smaller unit in the last place and less than y, so that neither the multiply-add nor the sum is
    rounded. If q is 0, the remainder is x, whatever y is (infinity times zero would be NaN).
    """
    size, divisor = call("abs", x), call("abs", y)
    ratio, zero = size / divisor, const(0.0, x.dtype)
    quotient = call("trunc", ratio)
    rest = fma(-quotient, divisor, size)
    rest = select(rest < zero, rest + divisor, rest)
    rest = select(ratio < const(1.0, x.dtype), size, rest)
    exact = const(2.0 ** (23 if x.dtype is f32 else 52), x.dtype)
    return select(call("not", ratio >= exact), with_sign(rest, x), Op("fmod", (x, y)))
