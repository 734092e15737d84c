"""Operators along an axis where one element depends on those before: cumulative sums and products, top k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.attributes import Attrs, Dim
from tilewright.ir.dtype import i32, i64
from tilewright.ir.expr import Expr, as_int, call, cast, const, maximum, select
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import accumulator, at_least, axis_of, check_kind, dim, number, present, scalar, wide
from tilewright.ops.loopnest import Nest, buffers
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.errors import ShapeError

Out = tuple[TensorType, ...]


def _at(point: Sequence[Expr], axis: int, index: Expr) -> tuple[Expr, ...]:
    """The point of all other dimensions with `index` on the axis."""
    return (*point[:axis], index, *point[axis:])


# --- cumulative -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CumulativeAttrs(Attrs):
    """`exclusive` leaves out the element itself, `reverse` goes from the end."""

    axis: int
    exclusive: bool = False
    reverse: bool = False


def _cumulative_infer(types: Types, attrs: CumulativeAttrs) -> Out:
    """`axis`, `exclusive` (without the element itself), `reverse` (from the end)."""
    t = present(types[0])
    check_kind(t.dtype, ("float", "int", "uint"))
    axis_of(attrs.axis, t.rank)
    return (t,)


STRIP = 64
"""Columns that are summed side by side where the axis is not the last."""


def _cumulative(name: str, combine: Callable[[Expr, Expr], Expr], start: int, numpy: Callable[..., Any]) -> None:
    def loops(types: Types, attrs: CumulativeAttrs, out: Out) -> PrimFunc:
        (x,), (y,) = buffers(types, out)
        assert x is not None
        axis = attrs.axis % len(x.shape)
        rest = [d for k, d in enumerate(x.shape) if k != axis]
        extent, acc = x.shape[axis], accumulator(x.dtype)
        nest = Nest(name, [x, y])
        columns = axis < len(x.shape) - 1
        strip = STRIP if columns else 1
        outer = [*rest[:-1], (rest[-1] + (strip - 1)) // strip] if columns else rest
        with nest.loops("i", outer, parallel=True) as point, nest.allocate("total", acc, (strip,)) as total:
            with nest.loop("j", strip, kind="vectorized") as j:
                nest.store(total, (j,), scalar(start, acc))
            with nest.loop("k", extent) as k, nest.loop("j", strip, kind="vectorized") as j:
                inner = (*point[:-1], point[-1] * strip + j) if columns else point
                at = _at(inner, axis, extent - 1 - k if attrs.reverse else k)
                with nest.when(inner[-1] < rest[-1] if columns else const(True)):
                    if attrs.exclusive:
                        nest.store(y, at, cast(total[j], x.dtype))
                    nest.store(total, (j,), combine(total[j], cast(x[at], acc)))
                    if not attrs.exclusive:
                        nest.store(y, at, cast(total[j], x.dtype))
        return nest.finish()

    def reference(arrays: Sequence[Any], attrs: CumulativeAttrs) -> tuple[Any, ...]:
        given = np.asarray(arrays[0])
        x, axis = wide(given), attrs.axis
        if attrs.reverse:
            x = np.flip(x, axis)
        y = numpy(x, axis=axis, dtype=x.dtype)
        if attrs.exclusive:
            first = np.full_like(np.take(y, [0], axis=axis), start)
            y = np.concatenate([first, np.take(y, range(x.shape[axis] - 1), axis=axis)], axis=axis)
        return ((np.flip(y, axis) if attrs.reverse else y).astype(given.dtype),)

    register(OpDef(name, "opaque", CumulativeAttrs, _cumulative_infer, reference, loops=loops))


_cumulative("cumsum", lambda a, b: a + b, 0, np.cumsum)
_cumulative("cumprod", lambda a, b: a * b, 1, np.cumprod)


# --- top k ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopkAttrs(Attrs):
    """The first `k` in order of size, largest or smallest first."""

    axis: int
    k: Dim
    largest: bool


def _topk_infer(types: Types, attrs: TopkAttrs) -> Out:
    """The `k` first along `axis` in order (`largest` or smallest), NaN counting as the largest; equal ones by index.
    Gives values and indices."""
    t = present(types[0])
    axis = axis_of(attrs.axis, t.rank)
    k, extent = as_int(dim(attrs.k)), as_int(t.shape[axis])
    if k is not None and extent is not None and not 0 <= k <= extent:
        raise ShapeError("k is outside the dimension", expected=f"0 to {extent}", got=k)
    if extent is None or k is None:
        at_least(t.shape[axis], dim(attrs.k), "k may be outside the dimension")
    shape = (*t.shape[:axis], dim(attrs.k), *t.shape[axis + 1 :])
    return TensorType(t.dtype, shape), TensorType(i64, shape)


def _better(a: Expr, b: Expr, largest: bool) -> Expr:
    """Whether value `a` comes before value `b`."""
    a, b = (cast(e, accumulator(e.dtype)) for e in (a, b))
    if not a.dtype.is_float:
        return a > b if largest else a < b
    nan_a, nan_b = call("isnan", a), call("isnan", b)
    return (nan_a & ~nan_b) | (a > b) if largest else (nan_b & ~nan_a) | (a < b)


def _before(a: Expr, ia: Expr, b: Expr, ib: Expr, largest: bool) -> Expr:
    """Whether element `a` at `ia` comes before `b` at `ib`."""
    tie = call("eq", a, b)
    if a.dtype.is_float:
        tie = tie | (call("isnan", a) & call("isnan", b))
    return _better(a, b, largest) | (tie & (ia < ib))


CHUNK = 16
"""Elements that are compared with the worst of the best so far at once; most chunks have nothing to offer."""


def _topk_loops(types: Types, attrs: TopkAttrs, out: Out) -> PrimFunc:
    """Insertion into the sorted list of the best so far, which stands in the outputs: the first `k` elements fill it,
    of the others whole chunks are skipped that have nothing better than its end."""
    (x,), (values, indices) = buffers(types, out)
    assert x is not None
    axis, largest = attrs.axis % len(x.shape), attrs.largest
    rest = [d for k, d in enumerate(x.shape) if k != axis]
    extent, count = x.shape[axis], out[0].shape[axis]
    nest = Nest("topk", [x, values, indices])
    with nest.loops("i", rest, parallel=True) as point:

        def insert(index: Expr, ranks: Expr) -> None:
            """Put element `index` where it belongs among the first `ranks`; the last one of a full list falls out."""
            with nest.let("value", x[_at(point, axis, index)]) as value, nest.local("place", i64) as place:
                place.set(ranks - 1)
                with nest.loop("up", ranks - 1) as up:
                    to = ranks - 1 - up
                    above, below = _at(point, axis, to - 1), _at(point, axis, to)
                    with nest.when(_before(value, index, values[above], indices[above], largest)):
                        nest.store(values, below, values[above])
                        nest.store(indices, below, indices[above])
                        place.set(to - 1)
                nest.store(values, _at(point, axis, place.value), value)
                nest.store(indices, _at(point, axis, place.value), index)

        with nest.loop("first", count) as first:
            insert(first, first + 1)
        with nest.when(count > 0), nest.loop("chunk", (extent - count + (CHUNK - 1)) // CHUNK) as chunk:
            start = count + chunk * CHUNK
            with nest.local("some", i32) as some:
                some.set(0)
                worst = values[_at(point, axis, count - 1)]
                with nest.loop("lane", CHUNK, kind="vectorized") as lane:
                    with nest.when(start + lane < extent):
                        better = _better(x[_at(point, axis, start + lane)], worst, largest)
                        some.set(maximum(some.value, select(better, const(1, i32), const(0, i32))))
                with nest.when(some.value > 0), nest.loop("j", CHUNK) as j:
                    with nest.when(start + j < extent):
                        with nest.when(_better(x[_at(point, axis, start + j)], worst, largest)):
                            insert(start + j, count)
    return nest.finish()


def _topk_numpy(arrays: Sequence[Any], attrs: TopkAttrs) -> tuple[Any, ...]:
    x = np.asarray(arrays[0])
    axis = attrs.axis
    keys = wide(x)
    if attrs.largest:
        # A stable ascending sort of the flipped array, flipped back, is a stable descending one.
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(keys, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(keys, axis=axis, kind="stable")
    order = np.take(order, range(number(attrs.k)), axis=axis).astype(np.int64)
    return np.take_along_axis(x, order, axis=axis), order


register(OpDef("topk", "opaque", TopkAttrs, _topk_infer, _topk_numpy, loops=_topk_loops))
