"""Operations of one element each: arithmetic, comparisons, functions, conversions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.scope import Item, full_array
from tilewright.ir.dtype import DType, boolean, dtype, f32
from tilewright.ir.expr import Expr
from tilewright.ir.functions import by_name_in
from tilewright.ir.graph import Value
from tilewright.ops.dims import broadcast_shapes
from tilewright.support.errors import ModelError


def shape_of(call: Call) -> tuple[Expr, ...]:
    """The shape of an elementwise result: the shape of all operands that are not scalars, which must agree."""
    shapes = [i.shape for i in call.items]
    if call.lifted:
        return broadcast_shapes(*shapes)
    whole = max(shapes, key=len)
    for shape in shapes:
        if shape and shape is not whole:
            call.dimensions.equal_shapes(whole, shape)
    return whole


def element(call: Call, op: str, *values: Value, **attrs: Any) -> Item:
    """Emit `op` on `values`, or on the operands as they are stored, which may be smaller than their shapes; the result
    is broadcast lazily."""
    shape = shape_of(call)
    return call.lazy(call.emit(op, *(values or [call.unbroadcast(k) for k in range(len(call.items))]), **attrs), shape)


_SAME = by_name_in("stablehlo") | {
    "negate": "neg",
    "atan2": "atan2",
    "subtract": "sub",
    "chlo.tan": "tan",
}

for _name, _op in _SAME.items():
    rule(_name)(lambda call, op=_op: element(call, op))

for _name, _op, _logic in (
    ("multiply", "mul", "and"),
    ("minimum", "min", "min"),
    ("and", "bitand", "and"),
    ("or", "bitor", "or"),
    ("xor", "bitxor", "bitxor"),
    ("not", "bitnot", "not"),
):
    rule(_name)(lambda call, op=_op, logic=_logic: element(call, logic if call.item(0).dtype is boolean else op))


@rule("add")
def add(call: Call) -> Item:
    """`add`. If one operand is a start that each call computes and the other one known sizes, the sum is the end of a
    slice, and both are recorded with it, as `real_dynamic_slice` needs the size."""
    result = element(call, "or" if call.item(0).dtype is boolean else "add")
    for a, b in ((0, 1), (1, 0)):
        start, sizes = call.item(a), full_array(call.item(b))
        if start.known is None and sizes is not None and len(result.shape) == 1 and not result.dtype.is_float:
            result.beyond = start, sizes
    return result


@rule("maximum")
def maximum(call: Call) -> Item:
    """The larger operand; with 0 it is ReLU."""
    for k in (0, 1):
        zero, x = call.item(k), call.item(1 - k)
        if zero.number is not None and zero.number == 0 and x.known is None and x.dtype.kind in ("float", "int"):
            return element(call, "relu", call.unbroadcast(1 - k))
    return element(call, "max")


@rule("abs")
def absolute(call: Call) -> Item:
    return element(call, "identity" if call.item(0).dtype.kind == "uint" else "abs")


@rule("sign")
def sign(call: Call) -> Item:
    """The sign; NaN for NaN, and a zero of the same sign for a zero."""
    x = call.unbroadcast(0)
    y = call.emit("sign", x)
    if x.dtype.is_float:
        y = call.emit("select", call.emit("or", call.emit("isnan", x), call.emit("eq", x, call.like(0, x))), x, y)
    return call.lazy(y, call.item(0).shape)


@rule("divide")
def divide(call: Call) -> Item:
    """A quotient. Integers are truncated; a division by 0 sets all bits of the quotient."""
    shape_of(call)  # sizes that must be equal are found before anything is emitted
    a, b = call.unbroadcast(0), call.unbroadcast(1)
    if a.dtype.is_float:
        return _mean_pool(call) or element(call, "div")
    return _guarded(call, call.emit("truncdiv", a, b), call.like(-1 if a.dtype.kind == "int" else a.dtype.max, a))


def _mean_pool(call: Call) -> Item | None:
    """A mean over windows, if the division is a sum over windows, which `window.py` emits as mean times count, by that
    count; else None."""
    total, count = call.item(0), call.item(1).number
    node = None if total.value is None else call.producer(total.value, "mul")
    if count is None or node is None:
        return None
    mean, times = node.inputs
    if mean is None or times not in call.constants or not _is_pool(call, mean):
        return None
    return Item(total.type, mean) if float(call.constants[times].reshape(-1)[0]) == float(count) else None


def _is_pool(call: Call, x: Value) -> bool:
    """Whether `x` is computed by average pooling, perhaps with a transposition after it."""
    transposed = call.producer(x, "transpose")
    source = x if transposed is None else transposed.inputs[0]
    return source is not None and call.producer(source, "avg_pool") is not None


@rule("remainder")
def remainder(call: Call) -> Item:
    shape_of(call)
    a = call.unbroadcast(0)
    if a.dtype.is_float:
        return element(call, "fmod")
    return _guarded(call, call.emit("truncmod", a, call.unbroadcast(1)), a)


def _guarded(call: Call, quotient: Value, instead: Value) -> Item:
    """`quotient`, an integer division of the operands, with `instead` where the divisor is 0."""
    b = call.item(1)
    if b.number is None or b.number == 0:
        zero = call.emit("eq", call.unbroadcast(1), call.like(0, quotient))
        quotient = call.emit("select", zero, instead, quotient)
    return call.lazy(quotient, shape_of(call))


@rule("power")
def power(call: Call) -> Item:
    shape_of(call)
    a, b = call.unbroadcast(0), call.unbroadcast(1)
    if a.dtype.is_float:
        return element(call, "pow")
    # By squaring. A negative exponent gives 0, but of 1 and -1, whose odd powers are themselves.
    one, zero = call.like(1, a), call.like(0, a)
    result, square, rest = one, a, b
    if call.item(1).number is not None:
        steps = max(int(call.item(1).number), 0).bit_length()
    else:
        steps = a.dtype.bits - (a.dtype.kind == "int")
    for k in range(steps):
        odd = call.emit("ne", call.emit("bitand", rest, one), zero)
        result = call.emit("select", odd, call.emit("mul", result, square), result)
        if k + 1 < steps:
            square, rest = call.emit("mul", square, square), call.emit("shr", rest, one)
    if a.dtype.kind == "int":
        odd = call.emit("ne", call.emit("bitand", b, one), zero)
        minus = call.emit("select", call.emit("eq", a, call.like(-1, a)), call.emit("select", odd, a, one), zero)
        inverse = call.emit("select", call.emit("eq", a, one), one, minus)
        result = call.emit("select", call.emit("lt", b, zero), inverse, result)
    return call.lazy(result, shape_of(call))


@rule("select")
def select(call: Call) -> Item:
    condition = call.item(0).number
    if condition is not None:
        return call.item(1) if condition else call.item(2)
    return element(call, "select")


@rule("clamp")
def clamp(call: Call) -> Item:
    """`clamp(min, x, max)`, where min and max may be scalars."""
    low, high = call.item(0).number, call.item(2).number
    x = call.unbroadcast(1)
    shape = shape_of(call)
    if low is not None and high is not None and x.dtype.is_float:
        return call.lazy(call.emit("clip", x, min=float(low), max=float(high)), shape)
    return call.lazy(call.emit("min", call.emit("max", call.unbroadcast(0), x), call.unbroadcast(2)), shape)


@rule("compare", "chlo.broadcast_compare")
def compare(call: Call) -> Item:
    direction = str(call.op.attributes.get("comparison_direction", "")).lower()
    if direction not in ("eq", "ne", "lt", "le", "gt", "ge"):
        raise ModelError("there is no such comparison", got=direction)
    if call.op.attributes.get("compare_type") == "TOTALORDER" and call.item(0).dtype.is_float:
        a, b = (total_order(call, call.unbroadcast(k)) for k in (0, 1))
        return element(call, direction, a, b)
    return element(call, direction)


def total_order(call: Call, x: Value) -> Value:
    """Floats mapped to integers of the same order, -NaN < -inf < ... < -0 < 0 < ... < inf < NaN."""
    t = dtype(f"i{x.dtype.bits}")
    bits = call.emit("cast", x, dtype=t, bits=True)
    mirrored = call.emit("bitxor", bits, call.like(t.max, bits))
    return call.emit("select", call.emit("lt", bits, call.like(0, bits)), mirrored, bits)


@rule("is_finite")
def is_finite(call: Call) -> Item:
    x = call.unbroadcast(0)
    return call.lazy(call.emit("lt", call.emit("abs", x), call.like(math.inf, x)), call.item(0).shape)


@rule("chlo.is_inf")
def is_inf(call: Call) -> Item:
    return element(call, "isinf")


@rule("round_nearest_afz")
def round_away(call: Call) -> Item:
    """Round to the nearest integer, halves away from zero."""
    x = call.unbroadcast(0)
    whole = call.emit("trunc", x)
    half = call.emit("ge", call.emit("abs", call.emit("sub", x, whole)), call.like(0.5, x))
    return call.lazy(
        call.emit("select", half, call.emit("add", whole, call.emit("sign", x)), whole), call.item(0).shape
    )


@rule("cbrt")
def cube_root(call: Call) -> Item:
    """The cube root: a power, followed by one step of Newton's method."""
    x = call.unbroadcast(0)
    wide = call.cast(x, f32) if x.dtype.bits < 32 else x
    size = call.emit("abs", wide)
    y = call.emit("pow", size, call.like(1 / 3, wide))
    square = call.emit("mul", y, y)
    error = call.emit("sub", call.emit("mul", square, y), size)
    better = call.emit("sub", y, call.emit("div", error, call.emit("mul", call.like(3, y), square)))
    ordinary = call.emit("or", call.emit("eq", size, call.like(0, y)), call.emit("isinf", size))
    signed = call.emit("select", call.emit("lt", wide, call.like(0, y)), call.emit("neg", better), better)
    y = call.emit("select", ordinary, wide, signed)  # -0.0 stays
    return call.lazy(call.cast(y, x.dtype), call.item(0).shape)


@rule("chlo.erfc")
def erfc(call: Call) -> Item:
    """1 - erf(x) where it is part of a GELU, whose other factor makes the cancellation harmless; else CHLO's
    expansion."""
    x = call.unbroadcast(0)
    node = call.producer(x, "mul") or call.producer(x, "div")
    if node is not None and x.dtype is f32:
        for v in node.inputs:
            if v in call.constants and _is_root_half(call.constants[v]):
                return call.lazy(call.emit("sub", call.like(1, x), call.emit("erf", x)), call.item(0).shape)
    return expand(call)


def _is_root_half(array: Any) -> bool:
    if array.size != 1:
        return False
    return any(math.isclose(abs(float(array.reshape(-1)[0])), c, rel_tol=1e-6) for c in (math.sqrt(0.5), math.sqrt(2)))


@rule("chlo.square")
def square(call: Call) -> Item:
    x = call.unbroadcast(0)
    return element(call, "mul", x, x)


def expand(call: Call) -> Item:
    (item,) = call.expand(call.op, call.items)
    return item


@rule("convert")
def convert(call: Call) -> Item:
    """A conversion. Floats become integers by truncation and saturation; a boolean is whether the number is not 0."""
    x, t = call.unbroadcast(0), call.dtype
    if x.dtype is t:
        return call.item(0)
    if t is boolean:
        return element(call, "ne", x, call.like(0, x))
    beyond = {"saturate": False} if t.is_minifloat else {}  # too large a number becomes infinity or NaN (jaxlib 0.10)
    return call.lazy(call.emit("cast", x, dtype=t, **beyond), call.item(0).shape)


@rule("bitcast_convert")
def bitcast(call: Call) -> Item:
    """The bits of an element as another type; between widths, the last dimension holds the parts."""
    x, t = call.unbroadcast(0), call.dtype
    if boolean in (x.dtype, t):
        if x.dtype is t:
            return call.item(0)
        raise call.unsupported("with i1")
    if x.dtype.bits != t.bits:
        return _parts(call, x.dtype, t)
    return call.item(0) if x.dtype is t else element(call, "cast", x, dtype=t, bits=True)


def _parts(call: Call, source: DType, t: DType) -> Item:
    """Bits reinterpreted between widths: a wide element becomes several narrow ones along a new last dimension, or the
    reverse; the lowest bits come first."""
    x = call.value(0)
    small, large = sorted((source.bits, t.bits))
    if small < 8:
        raise call.unsupported(f"from {source} to {t}")
    bits, part = dtype(f"u{large}"), dtype(f"u{small}")
    count = large // small
    if source.bits == large:
        whole = call.emit("cast", x, dtype=bits, bits=True) if source is not bits else x
        whole = call.reshape(whole, (*whole.shape, 1))
        shifts = call.constant(np.arange(count) * small, bits)
        pieces = call.cast(call.emit("shr", whole, shifts), part)
        y = pieces if part is t else call.emit("cast", pieces, dtype=t, bits=True)
        return Item(y.type, y)
    pieces = call.cast(call.emit("cast", x, dtype=part, bits=True) if source is not part else x, bits)
    shifts = call.constant(np.arange(count) * small, bits)
    moved = call.emit("shl", pieces, shifts)
    y = call.emit("reduce_sum", moved, axes=(moved.type.rank - 1,), keepdims=False)
    y = y if bits is t else call.emit("cast", y, dtype=t, bits=True)
    return Item(y.type, y)


@rule("reduce_precision")
def reduce_precision(call: Call) -> Item:
    """Round to a floating-point format of fewer exponent and mantissa bits, and convert back."""
    x = call.unbroadcast(0)
    exponent, mantissa = call.integer("exponent_bits"), call.integer("mantissa_bits")
    own = {"f32": (8, 23), "f64": (11, 52), "bf16": (8, 7), "f16": (5, 10)}
    if own.get(x.dtype.name) == (exponent, mantissa):
        return call.item(0)
    for name, format in own.items():
        if format == (exponent, mantissa) and dtype(name).bits < x.dtype.bits:
            y = call.cast(call.cast(x, dtype(name)), x.dtype)
            return call.lazy(y, call.item(0).shape)
    return call.lazy(_rounded_bits(call, x, exponent, mantissa), call.item(0).shape)


def _rounded_bits(call: Call, x: Value, exponent: int, mantissa: int) -> Value:
    """`x` rounded to a format of any exponent and mantissa width, by integer operations on its bits, as XLA does."""
    own = {"f32": (8, 23), "f64": (11, 52), "bf16": (8, 7), "f16": (5, 10)}[x.dtype.name]
    t = dtype(f"u{x.dtype.bits}")
    bits = call.emit("cast", x, dtype=t, bits=True)
    if mantissa < own[1]:
        last = 1 << (own[1] - mantissa)
        half = call.like((last >> 1) - 1, bits)
        odd = call.emit("bitand", call.emit("shr", bits, call.like(own[1] - mantissa, bits)), call.like(1, bits))
        bits = call.emit("add", bits, call.emit("add", odd, half))
        bits = call.emit("bitand", bits, call.like(t.max - (last - 1), bits))
    if exponent < own[0]:
        sign_mask = 1 << (t.bits - 1)
        bias, small_bias = (1 << (own[0] - 1)) - 1, (1 << (exponent - 1)) - 1
        sign = call.emit("bitand", bits, call.like(sign_mask, bits))
        held = call.emit("bitand", bits, call.like(((1 << own[0]) - 1) << own[1], bits))
        over = call.emit("gt", held, call.like((bias + small_bias) << own[1], bits))
        under = call.emit("le", held, call.like((bias - small_bias) << own[1], bits))
        infinite = call.emit("bitor", sign, call.like(((1 << own[0]) - 1) << own[1], bits))
        bits = call.emit("select", over, infinite, bits)
        bits = call.emit("select", under, sign, bits)
    y = call.emit("cast", bits, dtype=x.dtype, bits=True)
    return call.emit("select", call.emit("isnan", x), x, y)


@rule("optimization_barrier", "sdy.sharding_constraint")
def barrier(call: Call) -> list[Item]:
    """`optimization_barrier` and the like: the operands, as a graph has no order to preserve and runs on one device."""
    return list(call.items)
