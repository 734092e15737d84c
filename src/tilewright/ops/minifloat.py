"""Conversions between floats of 4 and 8 bits, which are storage only, and f32.

A small float consists of sign, exponent and mantissa. Decoding moves exponent and mantissa to where f32 has them and
multiplies by the power of two between the biases, which is exact, for subnormal numbers too. Encoding rounds to nearest
even: on the bits where the result is normal, and by adding the number whose last place is the format's smallest step
where it is not. (OCP 8-bit Floating Point Specification 1.0, 2023; Micikevicius et al., FP8 Formats for Deep Learning,
2022; the "fnuz" types: Noune et al., 8-bit Numerical Formats for Deep Neural Networks, 2022.)
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tilewright.ir.dtype import (
    DType,
    f4e2m1,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f16,
    f32,
    i8,
    i16,
    u4,
    u8,
    u16,
    u32,
)
from tilewright.ir.expr import Expr, Op, call, cast, const, select
from tilewright.support.classes import dataclass

Rounding = Literal["nearest", "up", "down"]


@dataclass(frozen=True, slots=True)
class Format:
    """The encoding of a small float.

    bias      of the exponent
    mantissa  its bits
    greatest  the bits of the largest finite number
    infinity  the bits of infinity; None if there is none
    nan       the bits of NaN; None if there is none (NaN is encoded as minus zero)
    unsigned  whether zero and NaN have no sign: the bits of minus zero are NaN's ("fnuz")
    """

    bias: int
    mantissa: int
    greatest: int
    infinity: int | None
    nan: int | None
    unsigned: bool = False


FORMATS: dict[DType, Format] = {
    f8e4m3fn: Format(7, 3, 0x7E, None, 0x7F),
    f8e4m3fnuz: Format(8, 3, 0x7F, None, 0x80, unsigned=True),
    f8e5m2: Format(15, 2, 0x7B, 0x7C, 0x7E),
    f8e5m2fnuz: Format(16, 2, 0x7F, None, 0x80, unsigned=True),
    f4e2m1: Format(1, 1, 0x7, None, None),
}

_NAN = 0x7FC00000
_INFINITY = 0x7F800000


def _u32(value: int) -> Expr:
    return const(value, u32)


def _as_float(bits: Expr) -> Expr:
    return Op("bitcast", (bits,), f32)


def _bits_type(t: DType) -> DType:
    return u8 if t.bits == 8 else u4


def decoded(x: Expr) -> Expr:
    """A float of 8 or fewer bits converted to f32, which is exact."""
    t = x.dtype
    bits = cast(Op("bitcast", (x,), _bits_type(t)), u32)
    if t is f8e8m0:  # an exponent alone; the least one is a subnormal number of f32
        power = select(call("eq", bits, _u32(0)), _u32(0x00400000), call("shl", bits, _u32(23)))
        return _as_float(select(call("eq", bits, _u32(0xFF)), _u32(_NAN), power))
    f = FORMATS[t]
    if t is f8e5m2:  # the upper half of an f16, which machines convert
        half = call("shl", cast(Op("bitcast", (x,), u8), u16), const(8, u16))
        return cast(Op("bitcast", (half,), f16), f32)
    if t is f8e4m3fn:  # the bits of an f16 with another bias, whose greatest number is NaN
        wide = call("shl", cast(cast(Op("bitcast", (x,), i8), i16), u16), const(7, u16))
        half = Op("bitcast", (call("bitand", wide, const(0xBFFF, u16)),), f16)
        number = cast(half, f32) * const(256.0, f32)
        return select(call("gt", call("abs", number), const(448.0, f32)), _as_float(_u32(_NAN)), number)
    size = call("bitand", bits, _u32((1 << (t.bits - 1)) - 1))
    sign = call("shl", call("shr", bits, _u32(t.bits - 1)), _u32(31))
    scaled = _as_float(call("shl", size, _u32(23 - f.mantissa))) * const(2.0 ** (127 - f.bias), f32)
    result = _as_float(call("bitor", Op("bitcast", (scaled,), u32), sign))
    if f.infinity is not None:
        beyond = select(call("eq", size, _u32(f.infinity)), _u32(_INFINITY), _u32(_NAN))
        result = select(call("ge", size, _u32(f.infinity)), _as_float(call("bitor", beyond, sign)), result)
    elif f.nan is not None:
        result = select(call("eq", bits if f.unsigned else size, _u32(f.nan)), _as_float(_u32(_NAN)), result)
    return result


def encoded(e: Expr, t: DType, saturate: bool, rounding: Rounding) -> Expr:
    """An f32 rounded to a small float. A number that is too large becomes the largest one if `saturate`, else infinity
    or NaN, whichever the type has."""
    bits = Op("bitcast", (e,), u32)
    code = _exponent(bits, saturate, rounding) if t is f8e8m0 else _rounded(e, bits, t, saturate)
    return Op("bitcast", (cast(code, _bits_type(t)),), t)


def _rounded(e: Expr, bits: Expr, t: DType, saturate: bool) -> Expr:
    f = FORMATS[t]
    size, sign = call("bitand", bits, _u32(0x7FFFFFFF)), call("shr", bits, _u32(31))
    drop = 23 - f.mantissa
    even = call("bitand", call("shr", size, _u32(drop)), _u32(1))
    normal = call("shr", size + (even + _u32((1 << (drop - 1)) - 1)), _u32(drop)) - _u32((127 - f.bias) << f.mantissa)
    magic = const(2.0 ** (24 - f.bias - f.mantissa), f32)  # its last place is the smallest step
    steps = Op("bitcast", (_as_float(size) + magic,), u32) - Op("bitcast", (magic,), u32)
    least = _u32((128 - f.bias) << 23)  # the smallest normal number, as f32
    code = select(call("lt", size, least), steps, normal)
    beyond = f.greatest if saturate or (f.infinity is None and f.nan is None) else f.infinity or f.nan or 0
    code = select(call("gt", code, _u32(f.greatest)), _u32(beyond), code)
    is_nan = call("gt", size, _u32(_INFINITY))
    if f.nan is None:
        code = select(is_nan, _u32(0), code)
        sign = select(is_nan, _u32(1) - sign, sign)
    else:
        code = select(is_nan, _u32(f.nan), code)
    if f.unsigned:
        lost = call("eq", code, _u32(0)) | call("eq", code, _u32(0x80))
        sign = select(lost, _u32(0), sign)
    return call("bitor", code, call("shl", sign, _u32(t.bits - 1)))


def _exponent(bits: Expr, saturate: bool, rounding: Rounding) -> Expr:
    """The f32 exponent, from the f32 number's `bits`, in the encoding of f8e8m0, rounded by the mantissa (ties go up).
    Numbers outside of the type's range, 2^-127 to 2^127, become the nearer end if `saturate`, else NaN; zero and
    negative numbers count as below it. This follows ONNX's specification of Cast, and ONNX Runtime where that is
    silent."""
    size = call("bitand", bits, _u32(0x7FFFFFFF))
    exponent, mantissa = call("shr", size, _u32(23)), call("bitand", size, _u32(0x7FFFFF))
    least = call("eq", exponent, _u32(0))  # a subnormal number of f32 from 2^-127 on, whose first bit is the power
    rest = select(least, call("bitand", call("shl", mantissa, _u32(1)), _u32(0x7FFFFF)), mantissa)
    code = exponent
    if rounding != "down":
        threshold = _u32(0x400000 if rounding == "nearest" else 1)
        code = select(call("ge", rest, threshold), exponent + _u32(1), exponent)
    below = call("lt", size, _u32(0x400000)) | call("ne", bits, size)
    code = select(below, _u32(0 if saturate else 0xFF), code)
    above = call("gt", size, _u32(0x7F000000)) & call("eq", bits, size)
    code = select(above, _u32(0xFE if saturate else 0xFF), code)
    return select(call("gt", size, _u32(_INFINITY)), _u32(0xFF), code)


def encoded_numpy(x: Any, t: DType, saturate: bool, rounding: Rounding) -> Any:
    """An array of f32 rounded to the small float `t`, as `encoded` does; numbers beyond its range become the largest
    one if `saturate`."""
    array = np.asarray(x).astype(np.float32)
    if t is f8e8m0:
        return _exponent_numpy(array.view(np.uint32), saturate, rounding).astype(np.uint8).view(t.numpy)
    result = array.astype(t.numpy)
    f = FORMATS[t]
    if not saturate or (f.infinity is None and f.nan is None):
        return result
    limit = np.array(f.greatest, np.uint8).view(t.numpy)
    over = ~np.isnan(array) & ~(np.abs(result.astype(np.float32)) <= limit.astype(np.float32))
    return np.where(over, np.where(array < 0, -limit, limit), result)


def _exponent_numpy(bits: Any, saturate: bool, rounding: Rounding) -> Any:
    size = bits & 0x7FFFFFFF
    exponent, mantissa = size >> 23, size & 0x7FFFFF
    rest = np.where(exponent == 0, (mantissa << 1) & 0x7FFFFF, mantissa)
    threshold = {"up": 1, "nearest": 0x400000, "down": 0x800000}[rounding]
    code = exponent + (rest >= threshold)
    code = np.where((size < 0x400000) | (bits != size), 0 if saturate else 0xFF, code)
    code = np.where((size > 0x7F000000) & (bits == size), 0xFE if saturate else 0xFF, code)
    return np.where(size > _INFINITY, 0xFF, code)


__all__ = ["FORMATS", "Format", "Rounding", "decoded", "encoded", "encoded_numpy"]
