"""Rules that test or set signs, bits and NaN of single elements."""

from __future__ import annotations

import math

from tilewright.frontend.torch import complexes, ties
from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.complexes import Complex
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import DType, boolean, i16, i32, i64
from tilewright.ir.graph import Value

_BITS: dict[int, DType] = {16: i16, 32: i32, 64: i64}
"""The integer type of a float's width."""
_MANTISSA = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
_BIAS = {"f16": 15, "bf16": 127, "f32": 127, "f64": 1023}


def _bits(n: Call, x: Value) -> Value:
    return n.emit("cast", x, dtype=_BITS[x.dtype.bits], bits=True)


def _float(n: Call, bits: Value, t: DType) -> Value:
    return n.emit("cast", bits, dtype=t, bits=True)


def _signed(n: Call, x: Value) -> Value:
    """Whether the sign bit of each number of `x` is set."""
    bits = _bits(n, x) if x.dtype.is_float else x
    return n.emit("lt", bits, n.like(0, bits))


@rule("signbit")
def signbit(n: Call, x: Value) -> Value:
    if x.dtype is boolean or x.dtype.kind == "uint":
        return n.filled(False, boolean, x.shape)
    return _signed(n, x)


@rule("copysign")
def copysign(n: Call, a: Operand, b: Operand) -> Value:
    """The absolute value of `a` with the sign of `b`."""
    x, y = n.operand(a, n.dtype), n.operand(b, n.dtype)
    size = n.emit("abs", x)
    return n.emit("select", _signed(n, y), n.emit("neg", size), size)


@rule("fmax", "fmin")
def known_extreme(n: Call, a: Value, b: Value) -> Value:
    """`fmax` or `fmin`: the larger or smaller of `a` and `b`, and where one is NaN, the other."""
    largest = n.name.startswith("aten.fmax")
    x, y = n.operand(a, n.dtype), n.operand(b, n.dtype)
    if n.dtype is boolean:
        return n.emit("or" if largest else "and", x, y)
    best = n.emit("max" if largest else "min", x, y)
    if not n.dtype.is_float:
        return best
    result = n.emit("select", n.emit("isnan", x), y, n.emit("select", n.emit("isnan", y), x, best))
    return n.surrogate(result, lambda: ties.known_extreme(n, x, y, largest=largest))


@rule("heaviside")
def heaviside(n: Call, x: Value, at_zero: Value) -> Value:
    if x.dtype is boolean:
        return n.emit("select", n.emit("not", x), at_zero, x)
    zero, one = n.like(0, x), n.like(1, x)
    step = n.emit("select", n.emit("gt", x, zero), one, zero)
    step = n.emit("select", n.emit("eq", x, zero), at_zero, step)
    return step


@rule("angle", single=True)
def angle(n: Call, x: Value) -> Value:
    """The angle of real numbers: pi for those below zero, else 0; NaN for NaN."""
    x = n.floats(n.cast(x, n.dtype))
    transposed = n.emit("select", n.emit("lt", x, n.like(0, x)), n.like(math.pi, x), n.like(0, x))
    return n.emit("select", n.emit("isnan", x), x, transposed)


@rule("nextafter")
def nextafter(n: Call, x: Value, y: Value) -> Value:
    """The next float from `x` towards `y`: the bits as an integer, plus or minus 1."""
    x, y = n.cast(x, n.dtype), n.cast(y, n.dtype)
    bits, zero = _bits(n, x), n.like(0, x)
    one = n.like(1, bits)
    away = n.emit("xor", n.emit("lt", x, y), n.emit("lt", x, zero))
    moved = _float(n, n.emit("select", away, n.emit("add", bits, one), n.emit("sub", bits, one)), x.dtype)
    least = _float(n, one, x.dtype)
    first = n.emit("select", n.emit("lt", y, zero), n.emit("neg", least), least)
    moved = n.emit("select", n.emit("eq", x, zero), first, moved)
    moved = n.emit("select", n.emit("eq", x, y), y, moved)
    unknown = n.emit("or", n.emit("isnan", x), n.emit("isnan", y))
    return n.emit("select", unknown, n.emit("add", x, y), moved)


@rule("frexp")
def frexp(n: Call, x: Value) -> list[Value]:
    """Mantissa, with absolute value from 1/2 to below 1, and exponent; 0, infinities and NaN are their own mantissa,
    with exponent 0."""
    name = x.dtype.name
    width, bias = _MANTISSA[name], _BIAS[name]
    tiny = n.emit("lt", n.emit("abs", x), n.like(2.0 ** (1 - bias), x))
    lifted = n.emit("select", tiny, n.emit("mul", x, n.like(2.0 ** (width + 1), x)), x)
    bits = _bits(n, lifted)
    shifted = n.emit("shr", bits, n.like(width, bits))
    exponent = n.emit("bitand", shifted, n.like((1 << (x.dtype.bits - 1 - width)) - 1, bits))
    exponent = n.emit("sub", n.cast(exponent, i32), n.constant(bias - 1, i32))
    lowered = n.emit("sub", exponent, n.constant(width + 1, i32))
    exponent = n.emit("select", tiny, lowered, exponent)
    sign = n.emit("bitand", bits, n.like(-(1 << (x.dtype.bits - 1)) | ((1 << width) - 1), bits))
    mantissa = _float(n, n.emit("bitor", sign, n.like((bias - 1) << width, bits)), x.dtype)
    ordinary = n.emit("or", n.emit("eq", x, n.like(0, x)), n.emit("or", n.emit("isnan", x), n.emit("detect_inf", x)))
    return [n.emit("select", ordinary, x, mantissa), n.emit("select", ordinary, n.constant(0, i32), exponent)]


@rule("ldexp")
def ldexp(n: Call, x: Value, exponent: Value) -> Value:
    """x 2^exponent, as PyTorch computes it: the power first."""
    power = n.emit("pow", n.constant(2.0, n.dtype), n.cast(exponent, n.dtype))
    return n.emit("mul", n.cast(x, n.dtype), power)


@rule("hypot", single=True)
def hypot(n: Call, a: Value, b: Value) -> Value:
    """sqrt(a^2 + b^2), with the larger factored out so that no square overflows."""
    x, y = (n.emit("abs", n.operand(v, n.dtype)) for v in (a, b))
    high, low = n.emit("max", x, y), n.emit("min", x, y)
    zero = n.like(0, high)
    ratio = n.emit("select", n.emit("eq", low, zero), zero, n.emit("div", low, high))
    root = n.emit("sqrt", n.emit("add", n.like(1, ratio), n.emit("mul", ratio, ratio)))
    result = n.emit("mul", high, root)
    endless = n.emit("or", n.emit("detect_inf", x), n.emit("detect_inf", y))
    return n.emit("select", endless, n.like(math.inf, result), result)


@complexes.rule("abs")
def magnitude(n: Call, x: Complex) -> Value:
    """The absolute value of a complex tensor, infinite if a part is."""
    return hypot(n, x.re, x.im)


@complexes.rule("angle")
def complex_angle(n: Call, x: Complex) -> Value:
    """The angle of a complex tensor, in radians from -pi to pi."""
    return n.emit("atan2", x.im, x.re)
