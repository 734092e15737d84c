"""Operations that move elements: broadcasts, reshapes, transpositions, concatenations, pads, reversals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.arith import prove
from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.scope import Item, known_item
from tilewright.ir.expr import Expr, as_expr, as_int, is_const, maximum, product
from tilewright.ir.graph import TensorType, Value
from tilewright.ops.dims import dim, dims, same_dim, same_shape
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError


def result_shape(call: Call) -> tuple[Expr, ...]:
    """The shape that the module states for the first result, which must have no unknown dimension."""
    stated = call.stated(0)
    if any(d is None for d in stated):
        raise UnsupportedError("the size of a dimension is not known", got=call.op.types[0])
    return tuple(as_expr(d) for d in stated if d is not None)


def placed(call: Call, x: Item, places: Sequence[int], shape: Sequence[Any]) -> Item:
    """`x` broadcast to `shape`, in which dimension k of `x` is dimension places[k]."""
    target = dims(shape)
    if len(places) != len(x.shape) or len(set(places)) != len(places) or any(not 0 <= p < len(target) for p in places):
        raise ModelError("the dimensions of a broadcast do not fit", got=f"{list(places)} for {x.type}")
    for d, p in zip(x.shape, places, strict=True):
        if not is_const(d, 1):
            call.dimensions.equal(d, target[p])
    if x.value is None and x.known.size == 1:
        return known_item(x.known.reshape(()), x.dtype, target)
    unbroadcast = call.unbroadcast(x)
    sizes = (*[1] * (len(places) - unbroadcast.type.rank), *unbroadcast.shape)
    order = sorted(range(len(places)), key=lambda k: places[k])
    if order != list(range(len(places))):
        unbroadcast = call.transpose(call.full_rank(x), order)
    at = dict(zip(places, sizes, strict=True))
    return call.lazy(call.unbroadcast_as(unbroadcast, [at.get(k, 1) for k in range(len(target))]), target)


@rule("broadcast_in_dim")
def broadcast_in_dim(call: Call) -> Item:
    return placed(call, call.item(0), call.ints("broadcast_dimensions"), result_shape(call))


@rule("broadcast")
def broadcast(call: Call) -> Item:
    x = call.item(0)
    lead = len(call.ints("broadcast_sizes"))
    return placed(call, x, [lead + k for k in range(len(x.shape))], result_shape(call))


@rule("iota")
def iota(call: Call) -> Item:
    return counting(call, result_shape(call), call.integer("iota_dimension"))


def counting(call: Call, shape: Sequence[Expr], axis: int) -> Item:
    """A tensor of `shape` whose elements are their indices along `axis`."""
    if not 0 <= axis < len(shape):
        raise ModelError("the axis of an iota is outside of its result", got=axis)
    size = as_int(shape[axis])
    t = call.dtype
    column = [size if k == axis else 1 for k in range(axis, len(shape))]
    if size is not None and size <= 4096:
        import numpy as np

        item = known_item(np.arange(size).astype(t.numpy).reshape(column), t, shape)
    else:
        line = call.emit("range", start=0, step=1, size=shape[axis], dtype=t)
        item = call.lazy(call.reshape(line, [shape[axis], *[1] * (len(shape) - axis - 1)]), shape)
    item.iota = axis
    return item


@rule("reshape")
def reshape(call: Call) -> Item:
    return reshaped(call, call.item(0), result_shape(call))


def reshaped(call: Call, x: Item, shape: Sequence[Any]) -> Item:
    target = dims(shape)
    if same_shape(x.shape, target):
        return x
    if x.value is None and x.known.size == 1:
        return known_item(x.known.reshape(()), x.dtype, target)
    retained = [d for d in target if not is_const(d, 1)]
    if same_shape([d for d in x.shape if not is_const(d, 1)], retained):  # only dimensions of one element come or go
        unbroadcast = call.unbroadcast(x)
        whole = (*[1] * (len(x.shape) - unbroadcast.type.rank), *unbroadcast.shape)
        sizes = iter([n for n, d in zip(whole, x.shape, strict=True) if not is_const(d, 1)])
        return call.lazy(
            call.unbroadcast_as(unbroadcast, [1 if is_const(d, 1) else next(sizes) for d in target]), target
        )
    left, right = _only_in_one(x.shape, target)
    empty = any(is_const(d, 0) for d in (*x.shape, *target))  # then the other extents need not agree
    if not empty and not all(map(is_const, (*left, *right))):  # the number of elements stays
        call.dimensions.equal(product(left), product(right))
    y = call.reshape(call.value(x), target)
    return Item(y.type, y)


def _only_in_one(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
    """(extents of shape `a` without an equal one in `b`, extents of `b` without one in `a`)."""
    left, right = [], list(b)
    for d in a:
        same = next((k for k, other in enumerate(right) if same_dim(d, other)), None)
        if same is None:
            left.append(d)
        else:
            del right[same]
    return left, right


@rule("transpose")
def transpose(call: Call) -> Item:
    x, perm = call.item(0), call.ints("permutation")
    if sorted(perm) != list(range(len(x.shape))):
        raise ModelError("the permutation does not fit", got=f"{perm} for {x.type}")
    shape = [x.shape[p] for p in perm]
    if x.value is None and x.known.size == 1:
        return known_item(x.known.reshape(()), x.dtype, shape)
    transposed = call.transpose(call.full_rank(x), perm)
    return call.lazy(call.unbroadcast_as(transposed, transposed.shape), shape)


@rule("concatenate")
def concatenate(call: Call) -> Value:
    axis = call.integer("dimension")
    first = call.item(0)
    for other in call.items[1:]:
        for k, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)):
            if k != axis:
                call.dimensions.equal(a, b)
    parts = [call.value(i) for i in call.items if as_int(i.type.size) != 0] or [call.value(0)]
    return parts[0] if len(parts) == 1 else call.emit("concat", *parts, axis=axis)


@rule("slice")
def slices(call: Call) -> Item | Value:
    x = call.item(0)
    begin, end, step = (call.ints(n) for n in ("start_indices", "limit_indices", "strides"))
    if not len(begin) == len(end) == len(step) == len(x.shape) or min(step, default=1) < 1:
        raise ModelError("the bounds of a slice do not fit", got=f"{begin}, {end}, {step} for {x.type}")
    for b, e, d in zip(begin, end, x.shape, strict=True):
        size = as_int(d)
        if not 0 <= b <= e or (size is not None and e > size):
            raise ShapeError("a slice is outside of the tensor", expected=x.type, got=f"{b} to {e}")
    sizes = [max(0, -(-(e - b) // s)) for b, e, s in zip(begin, end, step, strict=True)]
    return sliced(call, x, begin, sizes, step)


def sliced(call: Call, x: Item, begin: Sequence[Any], sizes: Sequence[Any], step: Sequence[int]) -> Item:
    """The slice of `x` that has, along each dimension, `sizes` elements at steps `step` from `begin` on; along
    dimensions in which `x` is stored with extent 1 no slice is emitted."""
    if x.value is None and x.known.size == 1:
        return known_item(x.known.reshape(()), x.dtype, sizes)
    target = dims(sizes)
    unbroadcast = call.full_rank(x)
    repeated = [is_const(n, 1) and not is_const(d, 1) for n, d in zip(unbroadcast.shape, x.shape, strict=True)]
    b = [0 if r else v for r, v in zip(repeated, begin, strict=True)]
    s = [1 if r else v for r, v in zip(repeated, target, strict=True)]
    steps = [1 if r or is_const(dim(v), 1) else int(t) for r, t, v in zip(repeated, step, target, strict=True)]
    if same_shape(dims(s), unbroadcast.shape) and all(t == 1 for t in steps):
        return call.lazy(call.unbroadcast(x), target)
    y = call.emit("slice", unbroadcast, begin=dims(b), size=dims(s), step=tuple(steps))
    return call.lazy(call.unbroadcast_as(y, y.shape) if any(repeated) else y, target)


@rule("reverse")
def reverse(call: Call) -> Value:
    return reversed_along(call, call.value(0), call.ints("dimensions"))


def reversed_along(call: Call, x: Value, axes: Sequence[int]) -> Value:
    axes = [a for a in axes if not is_const(x.shape[a], 1)]
    if not axes or as_int(x.type.size) == 0:
        return x
    begin = [dim(d - 1) if k in axes else 0 for k, d in enumerate(x.shape)]
    step = [-1 if k in axes else 1 for k in range(x.type.rank)]
    return call.emit("slice", x, begin=dims(begin), size=x.shape, step=tuple(step))


@rule("pad")
def pad(call: Call) -> Item:
    x = call.item(0)
    low, high, inner = (call.ints(f"{n}") for n in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    if not len(low) == len(high) == len(inner) == len(x.shape) or min(inner, default=0) < 0:
        raise ModelError("the padding does not fit", got=f"{low}, {high}, {inner} for {x.type}")
    y = padded(call, call.value(0), call.item(1), low, high, inner)
    return Item(y.type, y)


def padded(call: Call, x: Value, fill: Item, low: Sequence[Any], high: Sequence[Any], inner: Sequence[int]) -> Value:
    """`x` with elements `fill` added before (`low`) and after (`high`) each dimension and between its elements
    (`inner`); negative numbers at the ends remove elements."""
    x = _spread(call, x, fill, inner)
    for k in range(x.type.rank):
        x, low, high = _open_cut(call, x, fill, low, high, k)
    grown = [[v if (n := as_int(dim(v))) is None or n > 0 else 0 for v in side] for side in (low, high)]
    for k in range(x.type.rank):
        cut_low, cut_high = (max(0, -(as_int(dim(v[k])) or 0)) for v in (low, high))
        if not (cut_low or cut_high):
            continue
        number = as_int(x.shape[k])
        if number is not None and max(cut_low, cut_high) > number:
            # What is cut away reaches into the padding of the other side, which is there first.
            alone = [[v if j == k else 0 for j, v in enumerate(side)] for side in grown]
            x = _surrounded(call, x, fill, dims(alone[0]), dims(alone[1]))
            grown[0][k] = grown[1][k] = 0
        x = call.slice(x, k, cut_low, dim(x.shape[k] - cut_low - cut_high))
    if all(is_const(dim(v), 0) for side in grown for v in side):
        return x
    return _surrounded(call, x, fill, dims(grown[0]), dims(grown[1]))


def _open_cut(
    call: Call, x: Value, fill: Item, low: Sequence[Any], high: Sequence[Any], k: int
) -> tuple[Value, Sequence[Any], Sequence[Any]]:
    """(`x` padded and cropped along dimension `k`, whose symbolic `low` or `high` padding may be negative; remaining
    padding before; remaining padding after). All are unchanged if the signs are known."""
    sides = [dim(low[k]), dim(high[k])]
    if all(as_int(v) is not None or prove(v >= 0) for v in sides):
        return x, low, high
    zeros = [dim(0)] * x.type.rank
    most = [dim(maximum(v, 0)) for v in sides]
    size, alone = x.shape[k], [[m if j == k else z for j, z in enumerate(zeros)] for m in most]
    x = _surrounded(call, x, fill, dims(alone[0]), dims(alone[1]))
    x = call.slice(x, k, dim(maximum(-sides[0], 0)), dim(size + sides[0] + sides[1]))
    rest = ([0 if j == k else v for j, v in enumerate(side)] for side in (low, high))
    return x, next(rest), next(rest)


def _surrounded(call: Call, x: Value, fill: Item, low: Sequence[Expr], high: Sequence[Expr]) -> Value:
    number = fill.number
    if number is not None and x.dtype.kind != "bool" and not (x.dtype.is_int and x.dtype.bits < 8):
        value = float(number) if x.dtype.is_float else int(number)
        return call.emit("pad", x, before=low, after=high, mode="constant", value=value)
    filler = call.reshape(call.unbroadcast(fill), ())
    for k in range(x.type.rank):
        parts = []
        for size in (low[k], None, high[k]):
            if size is None:
                parts.append(x)
            elif not is_const(size, 0):
                parts.append(call.broadcast(filler, [size if j == k else d for j, d in enumerate(x.shape)]))
        x = parts[0] if len(parts) == 1 else call.emit("concat", *parts, axis=k)
    return x


def _spread(call: Call, x: Value, fill: Item, inner: Sequence[int]) -> Value:
    """`x` with inner[k] elements `fill` between neighbours along each dimension k: that many are added after each
    element, and the last ones cut off."""
    for k, count in enumerate(inner):
        size = as_int(x.shape[k])
        if not count or (size is not None and size < 2):
            continue
        separate = call.reshape(x, (*x.shape[: k + 1], 1, *x.shape[k + 1 :]))
        zeros = [dim(0)] * separate.type.rank
        after = [dim(count) if j == k + 1 else z for j, z in enumerate(zeros)]
        separate = _surrounded(call, separate, fill, zeros, after)
        joined = dim(x.shape[k] * (count + 1))
        x = call.reshape(separate, [joined if j == k else d for j, d in enumerate(x.shape)])
        x = call.slice(x, k, 0, dim(joined - count))
    return x


def as_item(x: Value) -> Item:
    return Item(TensorType(x.dtype, x.shape), x)
