"""Slices with computed starts: `dynamic_slice`, `real_dynamic_slice`, `dynamic_update_slice`."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.rules.shape import sliced
from tilewright.frontend.stablehlo.scope import Item
from tilewright.ir.dtype import i32, i64
from tilewright.ir.expr import Expr, as_expr, as_int, is_const
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, same_dim
from tilewright.support.errors import ModelError, UnsupportedError


def _starts(call: Call, items: Sequence[Item], shape: Sequence[Expr], sizes: Sequence[Expr]) -> list[Expr | Value]:
    """The start of a slice in each dimension of a tensor of `shape`, from `items`, clamped so that `sizes` elements
    fit: an expression if known, else a scalar that each call computes."""
    from tilewright.arith import prove
    from tilewright.ir.expr import maximum, minimum

    if len(items) != len(shape):
        raise ModelError("the starts of a slice do not fit", expected=len(shape), got=len(items))
    results: list[Expr | Value] = []
    for item, extent, size in zip(items, shape, sizes, strict=True):
        last = dim(extent - size)
        if is_const(last, 0):
            results.append(as_expr(0))
        elif item.known is not None:
            start = item.known.reshape(-1)[0]
            e = start if isinstance(start, Expr) else as_expr(int(start))
            e = e if prove(e <= last) else dim(minimum(e, last))
            results.append(e if prove(e >= 0) else dim(maximum(e, 0)))
        else:
            x = call.unbroadcast(item)
            x = call.cast(x, i64 if x.dtype.bits == 64 or x.dtype.name == "u32" else i32)
            results.append(call.clamped(x, 0, last))
    return results


@rule("dynamic_slice")
def dynamic_slice(call: Call) -> Item | Value:
    return _sliced_at(call, call.items[1:], [as_expr(s) for s in call.ints("slice_sizes")])


@rule("real_dynamic_slice")
def real_dynamic_slice(call: Call) -> Item | Value:
    """A slice from a start to an end. Starts may depend on data if each end is a start plus a size, as for
    `dynamic_slice` with symbolic sizes."""
    x, start, end, step = call.item(0), call.item(1), call.item(2), call.sizes(3)
    if not all(isinstance(s, int) and s > 0 for s in step):
        raise UnsupportedError("the step of a slice must be a number")
    steps = [int(s) for s in step if isinstance(s, int)]
    if end.beyond is None or end.beyond[0] is not start or set(steps) != {1}:
        begin = call.sizes(1)
        ends = zip(begin, call.sizes(2), steps, strict=True)
        return sliced(call, x, begin, [dim((as_expr(e) - as_expr(b) + (s - 1)) // s) for b, e, s in ends], steps)
    line = call.value(start)
    places = [call.reshape(call.slice(line, 0, k, 1), ()) for k in range(len(steps))]
    return _sliced_at(call, [Item(v.type, v) for v in places], [as_expr(s) for s in end.beyond[1].tolist()])


def _sliced_at(call: Call, places: Sequence[Item], sizes: Sequence[Expr]) -> Item | Value:
    """A slice of `sizes` elements at the starts `places`, of which each call computes some; they are clamped."""
    x = call.item(0)
    starts = _starts(call, places, x.shape, sizes)
    known = [s if isinstance(s, Expr) else as_expr(0) for s in starts]
    part = [d if isinstance(s, Value) else n for s, d, n in zip(starts, x.shape, sizes, strict=True)]
    item = sliced(call, x, known, part, [1] * len(sizes))
    if not any(isinstance(s, Value) for s in starts):
        return item
    y = call.value(item)
    for axis, start in enumerate(starts):
        if isinstance(start, Value):
            at = call.reshape(start, ())
            if not is_const(sizes[axis], 1):
                at = call.emit("add", at, call.iota(sizes[axis], start.dtype))
            else:
                at = call.reshape(at, (1,))
            y = call.emit("gather", y, at, axis=axis)
    return y


@rule("dynamic_update_slice")
def dynamic_update_slice(call: Call) -> Value:
    x, update = call.value(0), call.value(1)
    starts = _starts(call, call.items[2:], x.shape, update.shape)
    if not starts:
        return update
    if any(as_int(d) == 0 for d in update.shape):
        return x
    axes = [k for k, (d, u) in enumerate(zip(x.shape, update.shape, strict=True)) if not same_dim(d, u)]
    if not axes:
        return update
    if len(axes) == 1 and isinstance(starts[axes[0]], Expr):
        return _joined(call, x, update, axes[0], as_expr(starts[axes[0]]))
    return _masked(call, x, update, starts, axes)


def _joined(call: Call, x: Value, update: Value, axis: int, start: Expr) -> Value:
    """`x` with the elements of `update` from `start` on along `axis`, as a concatenation of what precedes, the update,
    and what follows."""
    end = dim(start + update.shape[axis])
    parts = [call.slice(x, axis, 0, start), update, call.slice(x, axis, end, dim(x.shape[axis] - end))]
    parts = [p for p in parts if as_int(p.shape[axis]) != 0]
    return parts[0] if len(parts) == 1 else call.emit("concat", *parts, axis=axis)


def _masked(call: Call, x: Value, update: Value, starts: Sequence[Expr | Value], axes: Sequence[int]) -> Value:
    """`x` with its window at `starts` replaced by `update`, by a select between the shifted update and `x`. `axes` are
    those along which the update is smaller than `x`; starts may be known or computed by the call."""
    rank = x.type.rank
    mask: Value | None = None
    for axis in axes:
        start = starts[axis]
        base = call.reshape(start, ()) if isinstance(start, Value) else call.symbols([start], i32, ())
        line = call.iota(x.shape[axis], base.dtype)
        offset = call.emit("sub", line, base)
        size = update.shape[axis]
        inside = call.emit("lt", offset, call.size_like(size, offset))
        inside = call.emit("and", call.emit("ge", offset, call.like(0, offset)), inside)
        inside = call.reshape(inside, [x.shape[axis] if k == axis else 1 for k in range(rank)])
        mask = inside if mask is None else call.emit("and", mask, inside)
        at = call.clamped(offset, 0, dim(size - 1))
        update = call.emit("gather", update, at, axis=axis)
    assert mask is not None
    return call.emit("select", mask, update, x)
