"""Integer bounds of values: the range of their elements, as far as their producers tell."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, isfinite

from tilewright.ir.dtype import DType, i8, u8, u16
from tilewright.ir.expr import is_const
from tilewright.ir.graph import Node, Value
from tilewright.ops.pointwise import ClipAttrs
from tilewright.ops.shape import ConstantAttrs

Bounds = tuple[int, int]
"""The least and the greatest element of an integer value."""
Producer = Callable[[Value], Node | None]

DEPTH = 8
"""The number of nodes that are followed from a value back to what it is computed from."""

MOVES = frozenset(("reshape", "transpose", "broadcast", "identity", "slice"))
"""Operators that only move elements."""


def bounds(producer: Producer, value: Value, depth: int = DEPTH) -> Bounds | None:
    """The bounds of an integer value, from at most `depth` nodes that compute it; None if these do not tell more than
    its type does."""
    node = producer(value)
    if node is None or not depth:
        return None
    inputs = [v for v in node.inputs if v is not None]
    match node.op:
        case "cast" if inputs[0].dtype.is_int:
            known = bounds(producer, inputs[0], depth - 1)
            if known is None and inputs[0].dtype.bits <= 16:
                known = int(inputs[0].dtype.min), int(inputs[0].dtype.max)
            return known if known is not None and holds(value.dtype, known) else None
        case "cast":
            inside = producer(inputs[0])
            return _clipped(inside) if inside is not None and inside.op == "clip" else None
        case "sub" | "add":
            left, right = (bounds(producer, v, depth - 1) for v in inputs)
            if left is None or right is None:
                return None
            (least, most), (low, high) = left, right
            sums = (least - high, most - low) if node.op == "sub" else (least + low, most + high)
            return sums if holds(value.dtype, sums) else None  # others wrap
        case "bitand":
            masks = [b for v in inputs if (b := bounds(producer, v, depth - 1)) is not None and b[0] >= 0]
            return (0, min(b[1] for b in masks)) if masks else None
        case "shr":
            left, right = (bounds(producer, v, depth - 1) for v in inputs)
            left = left or ((0, int(inputs[0].dtype.max)) if inputs[0].dtype in (u8, u16) else None)
            if left is None or right is None or left[0] < 0 or right[0] < 0 or right[0] != right[1]:
                return None
            return (left[0] >> right[0], left[1] >> right[0])
        case "concat":
            parts = [bounds(producer, v, depth - 1) for v in inputs]
            whole = [b for b in parts if b is not None]
            return (min(b[0] for b in whole), max(b[1] for b in whole)) if len(whole) == len(parts) > 0 else None
        case "constant":
            array = node.of(ConstantAttrs).value.array
            return (int(array.min()), int(array.max())) if array.size and array.dtype.kind in "iu" else None
        case op if op in MOVES:
            return bounds(producer, inputs[0], depth - 1)
    return None


def holds(dtype: DType, between: Bounds) -> bool:
    """Whether an integer type can represent all integers between two bounds."""
    return int(dtype.min) <= between[0] and between[1] <= int(dtype.max)


def codes_of(producer: Producer, x: Value) -> tuple[Value, Value | None] | None:
    """The codes of 8 bits and their zero point (None for 0) of `cast(codes) - zero` or `cast(codes)`; None for other
    values."""
    node, zero = producer(x), None
    if node is not None and node.op == "sub":
        source, zero = node.inputs
        if source is None or zero is None or not all(is_const(d, 1) for d in zero.shape):
            return None
        node = producer(source)
    codes = None if node is None or node.op != "cast" else node.inputs[0]
    return None if codes is None or codes.dtype not in (u8, i8) else (codes, zero)


def surrounds(producer: Producer, x: Value) -> bool:
    """Whether the zero point that is subtracted from codes lies in the range of the codes, as the padding of a map
    must."""
    codes, zero = codes_of(producer, x) or (None, None)
    between = None if zero is None else bounds(producer, zero)
    return zero is None or (codes is not None and between is not None and holds(codes.dtype, between))


def _clipped(node: Node) -> Bounds | None:
    """The bounds of integers cast from the result of a clip node; None if the node has no finite bounds."""
    attrs = node.of(ClipAttrs)
    if attrs.min is None or attrs.max is None or not (isfinite(attrs.min) and isfinite(attrs.max)):
        return None
    return floor(attrs.min), ceil(attrs.max)


def largest(between: Bounds) -> int:
    """The greatest magnitude of the integers between two bounds."""
    return max(abs(between[0]), abs(between[1]))
