"""Scalar operators on a value for each thread: by NumPy where it means the same as `scalars`, else element by element.

A value is either one for all threads, as `scalars` has it, or an array with one for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilewright.codegen.interpret.memory import Array
from tilewright.codegen.interpret.scalars import caster, function
from tilewright.ir.dtype import DType, bf16, f16, f32, f64
from tilewright.ir.functions import FUNCTIONS
from tilewright.ir.scalar_ops import OPS

Value = Any
"""A scalar, or an array with one for each thread."""
Operation = Callable[..., Value]

_EXACT = frozenset("add sub mul div min max larger neg abs isnan isinf bitand bitor bitxor bitnot not".split())
_COMPARE = frozenset("eq ne lt le gt ge".split())
_INTEGER = frozenset("floordiv mod truncdiv truncmod".split())
_REAL = frozenset({"fmod", "pow", "scaleb", "atan2", *FUNCTIONS})


def storage(kind: DType) -> np.dtype[Any]:
    """The NumPy type of arrays that hold values of type `kind`: bits of small floats, bytes of small integers."""
    if kind.is_minifloat:
        return np.dtype(np.uint8)
    return kind.numpy if kind.bits >= 8 or kind.kind == "bool" else np.dtype(np.int8)


@cache
def operation(name: str, kind: DType, result: DType) -> Operation:
    """The Python function of the operator `name` on operands of type `kind`, with results of type `result`; it takes
    single values and arrays with one value for each thread."""
    one, vector = function(name, kind), _vector(name, kind, result)

    def run(*args: Value) -> Value:
        return vector(*args) if any(type(a) is np.ndarray for a in args) else one(*args)

    return run


@cache
def conversion(source: DType, target: DType) -> Operation:
    """The function that casts `source` values to `target`, which takes single values and arrays with one value for each
    thread."""
    one, vector = caster(source, target), _cast(source, target)
    return lambda x: vector(x) if type(x) is np.ndarray else one(x)


def _vector(name: str, kind: DType, result: DType) -> Operation:
    ordinary = not kind.is_minifloat and kind.bits >= 8
    numpy = OPS[name].numpy
    if kind.kind == "bool" and name in (*_EXACT, *_COMPARE):
        return numpy
    if ordinary and (name in _EXACT or name in _COMPARE or (name in _INTEGER and not kind.is_float)):
        return lambda *args: numpy(*[_typed(a, kind) for a in args])
    if ordinary and name in _REAL and kind.is_float:
        return lambda *args: _rounded(numpy(*[np.asarray(a).astype(np.float64) for a in args]), kind)
    if name == "fma" and kind in (f16, bf16, f32):
        return lambda *args: _rounded(_fma_to_odd(*[np.asarray(a).astype(np.float64) for a in args]), kind)
    return lambda *args: by_element(function(name, kind), result, *args)


def _fma_to_odd(a: Array, b: Array, c: Array) -> Array:
    """`a*b + c` of numbers with 24 bits, rounded to odd: rounding the result to 24 bits then rounds only once."""
    product = a * b  # exact: 48 bits
    total: Array = np.asarray(product + c)
    back = total - product
    error = (product - (total - back)) + (c - back)
    even = (np.atleast_1d(total).view(np.int64) & 1).reshape(total.shape) == 0
    other = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(even & (error != 0) & ~np.isnan(error), other, total)


def _typed(a: Value, kind: DType) -> Value:
    return a if type(a) is np.ndarray else kind.numpy.type(a)


def _rounded(wide: Array, kind: DType) -> Array:
    """Doubles rounded to type `kind`; to 16-bit types by way of f32, as `scalars` does."""
    return wide.astype(kind.numpy) if kind in (f32, f64) else wide.astype(np.float32).astype(kind.numpy)


def by_element(f: Callable[..., Any], result: DType, *args: Value) -> Array:
    """The array of the results of the scalar function `f`, called for each element; single values among `args` are used
    for all."""
    count = next(len(a) for a in args if type(a) is np.ndarray)
    columns = [_scalars(a) if type(a) is np.ndarray else [a] * count for a in args]
    return np.array([f(*row) for row in zip(*columns, strict=True)], storage(result))


def _scalars(a: Array) -> list[Any]:
    """The elements of `a` as values that functions of `scalars` take: floats of their NumPy type, Python integers."""
    return a.tolist() if a.dtype.kind in "iub" else list(a)


def _cast(source: DType, target: DType) -> Operation:
    def slow(x: Array) -> Array:
        return by_element(caster(source, target), target, x)

    if source is target:
        return lambda x: x
    if (
        source.is_minifloat
        or target.is_minifloat
        or (
            min(source.bits, target.bits) < 8
            and "bool"
            not in (
                source.kind,
                target.kind,
            )
        )
    ):
        return slow
    if target.kind == "bool":
        return lambda x: x != 0
    if not target.is_float:
        return (
            (slow if target.bits > 32 else lambda x: _saturated(x, target))
            if source.is_float
            else (lambda x: x.astype(target.numpy))
        )
    if source.is_float:
        return slow if source is f64 and target.bits == 16 else lambda x: x.astype(target.numpy)
    return lambda x: (x if target.bits > 16 else x.astype(np.float32)).astype(target.numpy)


def _saturated(x: Array, target: DType) -> Array:
    wide = np.trunc(x.astype(np.float64))
    return np.clip(np.where(np.isnan(wide), 0, wide), int(target.min), int(target.max)).astype(target.numpy)


__all__ = ["Operation", "Value", "by_element", "conversion", "operation", "storage"]
