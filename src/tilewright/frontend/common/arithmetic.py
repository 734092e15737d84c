"""Arithmetic that every model format has but no single operator of Tilewright computes: Python's float remainder, and
powers with small exponents."""

from __future__ import annotations

from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.graph import Value


def floored_remainder(n: Emitter, x: Value, y: Value) -> Value:
    """The remainder of floats with the sign of the divisor, as Python's `%`."""
    rest = n.emit("fmod", x, y)
    zero = n.like(0.0, rest)
    crossed = n.emit("xor", n.emit("lt", rest, zero), n.emit("lt", y, zero))
    moved = n.emit("and", crossed, n.emit("ne", rest, zero))
    return n.emit("select", moved, n.emit("add", rest, y), rest)


def small_power(n: Emitter, x: Value, exponent: float) -> Value | None:
    """`x ** exponent` as products, a root or a reciprocal (`x` itself for 1); None for exponents that need a general
    power."""
    if exponent == 1:
        return x
    if exponent in (2, 3, 4):
        square = n.emit("mul", x, x)
        return square if exponent == 2 else n.emit("mul", square, x if exponent == 3 else square)
    if x.dtype.is_float and exponent in (0.5, -1):
        return n.emit("sqrt" if exponent > 0 else "reciprocal", x)
    return None
