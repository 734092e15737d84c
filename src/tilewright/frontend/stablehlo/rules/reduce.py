"""Rules for reductions. Bodies that add, multiply, or take maxima or minima become Tilewright's reductions, the pair
that computes argmax becomes `argmax`, and any other body is applied to the two halves of tensors, repeatedly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.module import Block
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.rules.shape import as_item, sliced
from tilewright.frontend.stablehlo.scope import Item
from tilewright.ir.dtype import DType, boolean
from tilewright.ir.expr import as_int, maximum
from tilewright.ir.graph import Value
from tilewright.ops.dims import known
from tilewright.support.errors import ModelError, UnsupportedError

MONOIDS = {
    "stablehlo.add": "add",
    "stablehlo.multiply": "mul",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
    "stablehlo.xor": "xor",
}
OPERATORS = {"add": "reduce_sum", "mul": "reduce_prod", "max": "reduce_max", "min": "reduce_min"}


def monoid(block: Block, t: DType) -> str | None:
    """The operation that a body combines its two arguments by: a key of `OPERATORS`, or "and", "or", "xor" for
    integers; None for other bodies."""
    if len(block.arguments) != 2 or len(block.body) != 1 or len(block.returned) != 1:
        return None
    (op,) = block.body
    if set(op.operands) != set(block.arguments) or len(op.operands) != 2 or op.results != block.returned:
        return None
    entry = MONOIDS.get(op.name)
    if t is boolean:
        return {"and": "min", "mul": "min", "min": "min", "or": "max", "add": "max", "max": "max"}.get(entry or "")
    return entry


def identity(kind: str, t: DType) -> Any:
    """The identity element of the reduction `kind` for the type `t`: 0 for "add", the least number for "max" ..."""
    return {"add": 0, "mul": 1, "max": t.min, "min": t.max}[kind]


def is_identity(kind: str, start: Item) -> bool:
    number = start.number
    return number is not None and bool(number == np.asarray(identity(kind, start.dtype), start.dtype.numpy))


def combine(call: Call, kind: str, a: Value, b: Value) -> Value:
    if kind in ("and", "or", "xor"):
        return call.emit(f"bit{kind}", a, b)
    if a.dtype is boolean:
        return call.emit({"min": "and", "max": "or"}[kind], a, b)
    return call.emit(kind, a, b)


@rule("reduce")
def reduce(call: Call) -> list[Value | Item]:
    axes = sorted(call.ints("dimensions"))
    count = len(call.items) // 2
    body = call.op.regions[0]
    rank = len(call.item(0).shape)
    if any(not 0 <= a < rank for a in axes) or len(set(axes)) != len(axes):
        raise ModelError("the axes of a reduction do not fit", got=f"{axes} of {call.item(0).type}")
    for other in call.items[1:count]:
        call.dimensions.equal_shapes(call.item(0).shape, other.shape)
    kind = monoid(body, call.item(0).dtype) if count == 1 else None
    if kind in OPERATORS:
        return [_simple(call, kind, axes)]
    result = _arg(call, axes) if count == 2 else None
    return list(result) if result is not None else list(_tree(call, body, axes, count))


def _simple(call: Call, kind: str, axes: Sequence[int]) -> Value | Item:
    start = call.item(1)
    if not axes:
        return as_item(combine(call, kind, call.value(0), call.unbroadcast(1)))
    y = call.emit(OPERATORS[kind], call.value(0), axes=tuple(axes), keepdims=False)
    return y if is_identity(kind, start) else combine(call, kind, y, call.unbroadcast(1))


def _arg(call: Call, axes: Sequence[int]) -> list[Value] | None:
    """[largest or smallest value, its index] if the reduction over `axes` is JAX's argmax or argmin: of a tensor with
    an iota, compared by value and then by index. None for others."""
    if len(axes) != 1 or call.item(1).iota != axes[0]:
        return None
    first, _, other, _ = call.op.regions[0].arguments
    compared = [
        str(op.attributes.get("comparison_direction"))
        for op in call.op.regions[0].body
        if op.name == "stablehlo.compare" and op.operands == (first, other)
    ]
    largest = next((d.startswith("G") for d in compared if d in ("GT", "GE", "LT", "LE")), None)
    start, at = call.item(2).number, call.item(3).number
    if largest is None or at is None or at != 0 or start is None or not _is_start(start, largest, call.item(2).dtype):
        return None
    x = call.value(0)
    index = call.emit("argmax" if largest else "argmin", x, axis=axes[0], keepdims=False)
    best = call.emit("reduce_max" if largest else "reduce_min", x, axes=tuple(axes), keepdims=False)
    extent = x.shape[axes[0]]
    if not known(extent >= 1):  # of no element the initial values, whose index is 0
        index = call.emit("min", index, call.symbols([maximum(extent - 1, 0)], index.dtype, ()))
    return [best, call.cast(index, call.item(1).dtype)]


def _is_start(number: Any, largest: bool, t: DType) -> bool:
    if t is boolean:
        return bool(number) is not largest
    return bool(number == np.asarray(t.min if largest else t.max, t.numpy))


def _tree(call: Call, body: Block, axes: Sequence[int], count: int) -> list[Item]:
    """The results of a reduction of `count` tensors over `axes` with any associative body, which is applied to the two
    halves of a dimension until one element is left, and then to the initial values."""
    items = [as_item(call.value(k)) for k in range(count)]
    starts = [call.item(count + k) for k in range(count)]
    for axis in reversed(axes):
        items = folded(call, body, items, starts, axis)
    return [as_item(v) for v in apply_body(call, body, starts, items)]


def folded(call: Call, body: Block, items: list[Item], starts: Sequence[Item], axis: int) -> list[Item]:
    """`items` reduced along `axis`, which is removed, by applying `body` to halves; `starts` if the dimension is
    empty."""
    size = as_int(items[0].shape[axis])
    if size is None:
        raise UnsupportedError("a reduction of this kind along a symbolic dimension is not supported")
    if size == 0:
        shape = [d for k, d in enumerate(items[0].shape) if k != axis]
        return [as_item(call.broadcast(call.unbroadcast(s), shape)) for s in starts]
    while size > 1:
        half = size // 2
        low = [_part(call, i, axis, 0, half) for i in items]
        high = [_part(call, i, axis, half, half) for i in items]
        joined = apply_body(call, body, low, high)
        if size % 2:
            rest = [call.value(_part(call, i, axis, size - 1, 1)) for i in items]
            joined = [call.emit("concat", a, b, axis=axis) for a, b in zip(joined, rest, strict=True)]
        items, size = [as_item(v) for v in joined], half + size % 2
    return [as_item(call.reshape(call.value(i), [d for k, d in enumerate(i.shape) if k != axis])) for i in items]


def _part(call: Call, item: Item, axis: int, begin: int, size: int) -> Item:
    rank = len(item.shape)
    begins = [begin if k == axis else 0 for k in range(rank)]
    sizes = [size if k == axis else d for k, d in enumerate(item.shape)]
    return sliced(call, item, begins, sizes, [1] * rank)


def apply_body(call: Call, body: Block, a: Sequence[Item], b: Sequence[Item]) -> list[Value]:
    """`body`, a region on scalars, applied to tensors `a` and `b` element by element."""
    shape = b[0].shape
    results = call.walk(body, [*a, *b], True)
    return [call.broadcast(call.unbroadcast(r), shape) for r in results]


@rule("map")
def map_elements(call: Call) -> list[Item]:
    shape = call.item(0).shape
    results = call.walk(call.op.regions[0], [as_item(v) for v in call.values()], True)
    return [call.lazy(call.unbroadcast(r), shape) for r in results]
