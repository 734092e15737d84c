"""Operations on the bits of integers."""

from __future__ import annotations

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.rules.pointwise import shape_of
from tilewright.frontend.stablehlo.scope import Item
from tilewright.ir.dtype import DType, dtype
from tilewright.ir.graph import Value


def _unsigned(t: DType) -> DType:
    return dtype(f"u{t.bits}")


def _as(call: Call, x: Value, t: DType) -> Value:
    return x if x.dtype is t else call.emit("cast", x, dtype=t)


@rule("shift_left", "shift_right_logical", "shift_right_arithmetic")
def shift(call: Call) -> Item:
    """A shift; by the width or more the result is 0, or all copies of the sign bit."""
    shape = shape_of(call)
    x, by = call.unbroadcast(0), call.unbroadcast(1)
    t = x.dtype
    name = call.op.name.rpartition(".")[2]
    unsigned = _unsigned(t)
    count = _as(call, by, unsigned)
    small = call.emit("lt", count, call.like(t.bits, count))
    if name == "shift_right_arithmetic":
        signed = dtype(f"i{t.bits}")
        retained = call.emit("select", small, count, call.like(t.bits - 1, count))
        y = call.emit("shr", _as(call, x, signed), _as(call, retained, signed))
        return call.lazy(_as(call, y, t), shape)
    supplied = _as(call, x, unsigned)
    retained = call.emit("select", small, count, call.like(0, count))
    moved = call.emit("shl" if name == "shift_left" else "shr", supplied, retained)
    y = moved if _is_small(call, t) else call.emit("select", small, moved, call.like(0, supplied))
    return call.lazy(_as(call, y, t), shape)


def _is_small(call: Call, t: DType) -> bool:
    number = call.item(1).number
    return number is not None and 0 <= int(number) < t.bits


@rule("popcnt")
def population(call: Call) -> Item:
    x = call.unbroadcast(0)
    y = _ones(call, _as(call, x, _unsigned(x.dtype)))
    return call.lazy(_as(call, y, x.dtype), call.item(0).shape)


def _ones(call: Call, x: Value) -> Value:
    """The number of bits that are set: sums of pairs of bits, then of groups of four, eight, ..."""
    bits, width = x.dtype.bits, 1
    while width < bits:
        mask = call.like(sum(((1 << width) - 1) << k for k in range(0, bits, 2 * width)), x)
        high = call.emit("bitand", call.emit("shr", x, call.like(width, x)), mask)
        x = call.emit("add", call.emit("bitand", x, mask), high)
        width *= 2
    return x


@rule("count_leading_zeros")
def leading_zeros(call: Call) -> Item:
    """`count_leading_zeros`: bits below the highest set bit are set as well, and the number of set bits is subtracted
    from the width."""
    operand = call.unbroadcast(0)
    x = _as(call, operand, _unsigned(operand.dtype))
    width = 1
    while width < x.dtype.bits:
        x = call.emit("bitor", x, call.emit("shr", x, call.like(width, x)))
        width *= 2
    y = call.emit("sub", call.like(x.dtype.bits, x), _ones(call, x))
    return call.lazy(_as(call, y, operand.dtype), call.item(0).shape)
