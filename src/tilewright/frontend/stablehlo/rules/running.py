"""Reductions over windows that reach from each element to an end of its dimension, as in cumulative sums, or that are
the whole dimension: windows along a symbolic dimension can be as long as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.rules.reduce import OPERATORS, apply_body, combine, is_identity
from tilewright.frontend.stablehlo.rules.shape import as_item, reversed_along
from tilewright.frontend.stablehlo.scope import Item
from tilewright.ir.dtype import boolean, i64
from tilewright.ir.expr import Expr, as_int, is_const
from tilewright.ir.graph import TensorType, Value
from tilewright.ops.dims import dim, same_dim
from tilewright.support.errors import UnsupportedError

if TYPE_CHECKING:
    from tilewright.frontend.stablehlo.rules.window import Window


def running(call: Call, w: Window, kind: str | None, count: int) -> list[Value | Item] | None:
    """The `count` results of a reduction over windows that reach from each element to an end of a dimension (cumulative
    sums and others), or that are a whole symbolic dimension. `kind` is the operator of the reduction, None for any
    other body. None for other windows, and for windows of known size unless they compute sums or products."""
    axes = [k for k in range(len(w.size)) if not w.is_trivial(k)]
    symbolic = any(isinstance(w.size[k], Expr) for k in axes)
    if not axes or not all(_is_whole(call, w, k) for k in axes):
        return None
    if symbolic and all(is_const(dim(v[k]), 0) for k in axes for v in (w.low, w.high)):
        return _reduced(call, kind, count, axes)
    (axis, *more) = axes
    rest = dim(w.size[axis] - 1)
    backwards = is_const(dim(w.low[axis]), 0)
    padding = w.high[axis] if backwards else w.low[axis]
    other = w.low[axis] if backwards else w.high[axis]
    if more or not same_dim(dim(padding), rest) or not is_const(dim(other), 0):
        return None
    arguments = [call.value(k) for k in range(count)]
    if kind in ("add", "mul") and arguments[0].dtype is not boolean:
        attrs = {"axis": axis, "exclusive": False, "reverse": backwards}
        return _started(call, kind, call.emit("cumsum" if kind == "add" else "cumprod", arguments[0], **attrs))
    if not symbolic:
        return None
    if kind in ("max", "min") and arguments[0].dtype is not boolean:
        x = reversed_along(call, arguments[0], [axis]) if backwards else arguments[0]
        y, _ = call.emit_all("running_extreme", x, axis=axis, largest=kind == "max")
        return _started(call, kind, reversed_along(call, y, [axis]) if backwards else y)
    return _applied(call, _doubled(call, arguments, axis, backwards), count)


def _is_whole(call: Call, w: Window, k: int) -> bool:
    """Whether windows along dimension `k` have its size, without strides and dilations."""
    size = call.item(0).shape[k]
    known = as_int(size)
    same = same_dim(dim(w.size[k]), size) if known is None else as_int(dim(w.size[k])) == known
    return same and w.strides[k] == w.spread[k] == w.dilations[k] == 1


def _started(call: Call, kind: str, y: Value) -> list[Value | Item]:
    return [y if is_identity(kind, call.item(1)) else combine(call, kind, y, call.unbroadcast(1))]


def _applied(call: Call, totals: Sequence[Value], count: int) -> list[Value | Item]:
    """`totals`, the reductions of all windows, combined with the initial values by the operation's body."""
    starts = [call.item(count + k) for k in range(count)]
    return list(apply_body(call, call.op.regions[0], starts, [as_item(v) for v in totals]))


def _reduced(call: Call, kind: str | None, count: int, axes: Sequence[int]) -> list[Value | Item]:
    """The first `count` operands reduced over `axes` by the operation `kind`, a key of `OPERATORS`, or else by the
    body; each axis is one window, so that it gets extent 1."""
    results = [call.value(k) for k in range(count)]
    if kind in OPERATORS:
        return _started(call, kind, call.emit(OPERATORS[kind], results[0], axes=tuple(axes), keepdims=True))
    for axis in axes:
        results = [call.slice(v, axis, dim(v.shape[axis] - 1), 1) for v in _doubled(call, results, axis, False)]
    return _applied(call, results, count)


def _doubled(call: Call, arguments: Sequence[Value], axis: int, backwards: bool) -> list[Value]:
    """Running reductions of `arguments` along `axis` by the operator's body, which must be associative: each element is
    combined with all before it, or with `backwards` after it, in a loop whose iterations combine windows of 1, 2, 4 ...
    elements (Hillis and Steele, "Data parallel algorithms", 1986)."""
    outside, size = call, arguments[0].shape[axis]
    rank = arguments[0].type.rank

    def iteration(carried: list[Item]) -> list[Item]:
        call = outside.renewed()
        shift, items = call.value(carried[1]), [call.value(c) for c in carried[2:]]
        place = call.iota(size, i64)
        other = call.emit("add" if backwards else "sub", place, shift)
        end = call.size_like(dim(size - 1), other)
        inside = call.emit("le", other, end) if backwards else call.emit("ge", other, call.like(0, other))
        inside = call.reshape(inside, [size if k == axis else 1 for k in range(rank)])
        at = call.clamped(other, 0, dim(size - 1))
        moved = [as_item(call.emit("gather", v, at, axis=axis)) for v in items]
        sides = [as_item(v) for v in items]
        both = (sides, moved) if backwards else (moved, sides)
        joined = apply_body(call, call.op.regions[0], *both)
        wider = call.emit("add", shift, shift)
        alive = call.emit("lt", wider, call.size_like(size, wider))
        retained = [call.emit("select", inside, j, v) for j, v in zip(joined, items, strict=True)]
        return [as_item(v) for v in (alive, wider, *retained)]

    like = [Item(TensorType(i64, ())), Item(TensorType(i64, ())), *map(as_item, arguments)]
    graph, captured = call.body("body", like, iteration)
    if [v.type for v in graph.outputs[2:]] != [v.type for v in arguments]:
        raise UnsupportedError("windows whose body gives another type are not supported")
    one = call.constant(1, i64)
    start = call.emit("lt", one, call.size_like(size, one))
    attrs = {"body": graph, "carried": 1 + len(arguments), "conditional": True}
    return list(call.emit_all("loop", None, start, one, *arguments, *captured, **attrs)[1:])


__all__ = ["running"]
