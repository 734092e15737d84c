"""The meaning of every scalar operator on single values: the oracle's arithmetic.

A float is a NumPy scalar of its type (so that every operation rounds to it), an integer a Python int in its type's
range, a bool a Python bool. f16 and bf16 are computed through f32. Transcendental functions are computed in double and
rounded once; native code may differ from them by a few units in the last place, nothing else differs.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType, bf16, f32, f64
from tilewright.ir.scalar_ops import OPS

Scalar = Any
Function = Callable[..., Scalar]

_COMPARE: dict[str, Function] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


@cache
def function(name: str, operand: DType) -> Function:
    """The meaning, as a Python function, of the operator `name` on operands of type `operand`. `select`, `and`, `or`
    (lazy) and casts are not here."""
    if name in _COMPARE:
        return _COMPARE[name]
    if name == "not":
        return operator.not_
    if operand.is_float:
        return _float_function(name, operand)
    if operand.kind == "bool":
        return _bool_function(name)
    return _int_function(name, operand)


@cache
def caster(source: DType, target: DType) -> Function:
    """Conversion of a value: floats to ints truncate and saturate (NaN gives 0), ints wrap, to bool is `!= 0`."""
    if source is target:
        return lambda x: x
    if target.kind == "bool":
        return lambda x: bool(x != 0)
    if target.is_float:
        return _to_float(source, target)
    if source.is_float:
        return _saturating(target)
    return int if source.kind == "bool" else wrapper(target)


@cache
def bitcaster(source: DType, target: DType) -> Function:
    """A function that reinterprets the bits of arrays as another type of equal width."""
    if source.bits != target.bits:
        raise ValueError(f"bitcast of {source} to {target}: the widths differ")
    own = value_of(target)
    supplied, wanted = (np.dtype(np.uint8) if t.is_minifloat else t.numpy for t in (source, target))
    return lambda x: own(np.array([x], supplied).view(wanted)[0])


@cache
def value_of(dtype: DType) -> Function:
    """A function from Python or NumPy numbers (in range) to this module's form of values of `dtype`."""
    if dtype.is_float:
        to: Function = dtype.numpy.type
        return to
    return bool if dtype.kind == "bool" else int


def poison(dtype: DType) -> Scalar:
    """The value of an element that has not been written: NaN, or bits 0xA5..., which make a wild index."""
    if dtype.is_float:
        return value_of(dtype)(math.nan)
    if dtype.kind == "bool":
        return True
    return wrapper(dtype)(0xA5A5A5A5A5A5A5A5)


@cache
def wrapper(dtype: DType) -> Function:
    """A function that wraps a Python int into the range of an integer type."""
    lo, hi = int(dtype.min), int(dtype.max)
    span = 1 << dtype.bits

    def wrap(x: int) -> int:
        if lo <= x <= hi:
            return x
        x &= span - 1
        return x - span if x > hi else x

    return wrap


# Integers


def _int_function(name: str, dtype: DType) -> Function:
    wrap = wrapper(dtype)
    table: dict[str, Function] = {
        "add": lambda a, b: wrap(a + b),
        "sub": lambda a, b: wrap(a - b),
        "mul": lambda a, b: wrap(a * b),
        "floordiv": lambda a, b: wrap(a // b) if b else 0,
        "mod": lambda a, b: a % b if b else 0,
        "truncdiv": lambda a, b: wrap(_truncdiv(a, b)) if b else 0,
        "truncmod": lambda a, b: a - b * _truncdiv(a, b) if b else 0,
        "min": min,
        "max": max,
        "neg": lambda a: wrap(-a),
        "abs": lambda a: wrap(abs(a)),
        "bitand": operator.and_,
        "bitor": operator.or_,
        "bitxor": operator.xor,
        "bitnot": lambda a: wrap(~a),
        # A shift by the width or more (or by a negative number) shifts everything out.
        "shl": lambda a, b: wrap(a << b) if 0 <= b < dtype.bits else 0,
        "shr": lambda a, b: a >> b if 0 <= b < dtype.bits else (-1 if a < 0 else 0),
    }
    return table[name]


def _truncdiv(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _bool_function(name: str) -> Function:
    table: dict[str, Function] = {
        "min": lambda a, b: a and b,
        "max": lambda a, b: a or b,
        "bitxor": lambda a, b: bool(a) != bool(b),
    }
    return table[name]


# Floats


def _float_function(name: str, dtype: DType) -> Function:
    rounded = value_of(dtype)
    exact: dict[str, Function] = {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "div": operator.truediv,
        "neg": operator.neg,
        "abs": abs,
        "min": lambda a, b: a if a < b or a != a else b,
        "max": lambda a, b: a if a > b or a != a else b,
        "larger": lambda a, b: b if b > a else a,
        "isnan": lambda a: bool(a != a),
        "isinf": lambda a: bool(abs(a) == math.inf),
    }
    if name in exact:
        return exact[name]
    if name == "fma":
        return _fma(dtype)
    if OPS[name].arity == 2:
        numpy = OPS[name].numpy
        return lambda a, b: rounded(numpy(np.float64(a), np.float64(b)))
    real = _REAL.get(name) or _of_double(OPS[name].numpy)
    if dtype in (f32, f64):
        return lambda a: rounded(real(float(a)))
    return lambda a: rounded(np.float32(real(float(a))))


def _of_double(numpy: Function) -> Callable[[float], float]:
    return lambda x: float(numpy(np.float64(x)))


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _sigmoid(x: float) -> float:
    e = _exp(-abs(x))
    return 1 / (1 + e) if x >= 0 else e / (1 + e)


_REAL: dict[str, Callable[[float], float]] = {
    "exp": _exp,
    "exp_nonpositive": _exp,
    "tanh": math.tanh,
    "erf": math.erf,
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "sigmoid": _sigmoid,
    "rsqrt": lambda x: 1 / math.sqrt(x) if x > 0 else math.copysign(math.inf, x) if x == 0 else math.nan,
}


def _fma(dtype: DType) -> Function:
    rounded = value_of(dtype)
    if dtype is f64:
        return lambda a, b, c: rounded(_exact_fma(float(a), float(b), float(c)))
    if dtype is f32:
        return lambda a, b, c: rounded(_fma_to_odd(float(a), float(b), float(c)))
    return lambda a, b, c: rounded(np.float32(_fma_to_odd(float(a), float(b), float(c))))


def _fma_to_odd(a: float, b: float, c: float) -> float:
    """Compute `a*b + c` of floats with 24 bits, rounded to odd, so that rounding the result to 24 bits rounds only
    once."""
    product = a * b  # exact: 48 bits
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    if error == 0 or error != error or struct.pack("<d", total)[0] & 1:
        return total
    return math.nextafter(total, math.inf if error > 0 else -math.inf)


def _exact_fma(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return a * b + c  # for the sign of zero
    try:
        return float(total)
    except OverflowError:
        return math.copysign(math.inf, total)


# Conversions


def _to_float(source: DType, target: DType) -> Function:
    to = value_of(target)
    if source is f64 and target is bf16:
        return lambda x: to(_float_to_odd(x))
    if source.is_float:
        return lambda x: to(float(x))
    if source.bits > 32:
        # NumPy rounds once from 64 bits; a Python int would pass through double.
        wide = source.numpy.type
        middle = np.dtype(np.float64 if target is f64 else np.float32)
        return lambda x: to(wide(x).astype(middle))
    if target.bits == 16:
        return lambda x: to(np.float32(x))
    return lambda x: to(x)


def _float_to_odd(x: Any) -> Any:
    """Round the double `x` to f32, to odd, so that a second rounding (to bf16) is the only one that counts."""
    rounded = np.float32(x)
    if float(rounded) == x or x != x or np.isinf(rounded) or rounded.view(np.uint32) & 1:
        return rounded
    return np.nextafter(rounded, np.float32(math.copysign(math.inf, x - float(rounded))))


def _saturating(target: DType) -> Function:
    lo, hi = int(target.min), int(target.max)

    def convert(x: Any) -> int:
        x = float(x)  # exact; a bf16 does not compare with an int
        if x != x:
            return 0
        if x <= lo:
            return lo
        return hi if x >= hi else int(x)

    return convert
