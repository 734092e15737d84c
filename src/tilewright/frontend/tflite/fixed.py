"""Multiplication of integers by numbers below 1, as TFLite's reference kernels round it.

A factor is `mantissa * 2^(exponent - 31)` with a mantissa of 31 bits. Products are rounded twice: to the nearest 32
bits, halves away from zero, then shifted right, halves away from zero (`MultiplyByQuantizedMultiplier` of
tensorflow/lite/kernels/internal/common.h, without TFLITE_SINGLE_ROUNDING). Sums of FULLY_CONNECTED are multiplied in
double precision and rounded once, halves away from zero: LiteRT 2.3 does so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.dtype import f64, i64
from tilewright.ir.graph import Value
from tilewright.support.errors import ModelError

LARGEST = 2.0**30
"""Factors must be less than this."""


def factors(numbers: Iterable[float]) -> tuple[Any, Any]:
    """Positive `numbers` as mantissas of 31 bits and binary exponents (i64), as TFLite's `QuantizeMultiplier` computes
    them. Raises ModelError for numbers of LARGEST or more."""
    mantissas, exponents = [], []
    for number in numbers:
        if not number < LARGEST:
            raise ModelError("scales of operands and result are too far from each other", expected="< 2^30", got=number)
        share, exponent = math.frexp(number)
        mantissa = math.floor(share * (1 << 31) + 0.5)
        if mantissa == 1 << 31:
            mantissa, exponent = mantissa // 2, exponent + 1
        if exponent < -31:
            mantissa, exponent = 0, 0
        mantissas.append(mantissa)
        exponents.append(exponent)
    return np.asarray(mantissas, np.int64), np.asarray(exponents, np.int64)


def multiplied(e: Emitter, x: Value, numbers: Iterable[float], shape: tuple[int, ...] = (), count: int = 1) -> Value:
    """`x`, i64 integers, times `numbers / count`, which broadcast in `shape`, rounded as the reference kernels do. For
    means they divide the mantissas by `count`."""
    mantissas, exponents = factors(numbers)
    shift = np.clip(31 + exponents, 0, min(count.bit_length() - 1, 32))
    mantissas, exponents = (mantissas << shift) // count, exponents - shift

    def constant(array: Any) -> Value:
        return e.constant(np.asarray(array, np.int64).reshape(shape), i64)

    left, right = np.maximum(exponents, 0), np.maximum(-exponents, 0)
    if left.any():
        x = e.emit("mul", x, constant(1 << left))
    product = e.emit("mul", x, constant(mantissas))
    zero = e.constant(0, i64)
    half = e.constant(1 << 30, i64)
    nudge = e.emit("select", e.emit("ge", product, zero), half, e.constant(1 - (1 << 30), i64))
    high = e.emit("truncdiv", e.emit("add", product, nudge), e.constant(1 << 31, i64))
    if not right.any():
        return high
    mask = (1 << right) - 1
    rest = e.emit("bitand", high, constant(mask))
    threshold = e.emit("add", constant(mask >> 1), e.emit("cast", e.emit("lt", high, zero), dtype=i64))
    up = e.emit("cast", e.emit("gt", rest, threshold), dtype=i64)
    return e.emit("add", e.emit("floordiv", high, constant(1 << right)), up)


def multiplied_once(e: Emitter, x: Value, numbers: Iterable[float], shape: tuple[int, ...] = ()) -> Value:
    """The i64 integers `x` times the f64 `numbers`, shaped to `shape`: rounded once to the nearest integer, halves away
    from zero."""
    product = e.emit("mul", e.emit("cast", x, dtype=f64), e.constant(np.asarray(list(numbers)).reshape(shape), f64))
    return e.emit("cast", nearest(e, product), dtype=i64)


def nearest(e: Emitter, x: Value) -> Value:
    """Floats rounded to the nearest whole number, halves away from zero."""
    whole = e.emit("trunc", x)
    return e.emit("add", whole, e.emit("trunc", e.emit("mul", e.emit("sub", x, whole), e.like(2, x))))
