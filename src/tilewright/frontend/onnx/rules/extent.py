"""Rules for operators whose results have a number of rows that data decides, up to a bound that shapes give."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.arith import prove
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.dtype import boolean, f32, i64, u8
from tilewright.ir.expr import Expr, as_int, call, const, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import at_least, axis_of
from tilewright.support.errors import ModelError, ShapeError


@rule("NonZero")
def nonzero(n: Call) -> Value:
    """NonZero: the coordinates of elements that are not zero, i64[rank, count]."""
    x = n.value(0)
    x = n.reshape(x, (1,)) if x.type.rank == 0 else x
    return n.transpose(places(n, x), [1, 0])


def places(n: Call, x: Value) -> Value:
    """The coordinates of the elements of `x` that are not zero, i64[count, rank]."""
    rows, count = n.emit_all("nonzero", x)
    return n.head(rows, count)


def places_between(n: Call, start: Any, end: Any, step: int, extent: Expr) -> Value:
    """The indices that the slice `start:end:step` reads in a dimension of `extent` elements, clamped as in
    `slice_range`, where bounds are numbers or i64 scalars: at most as many as the dimension has."""
    if step == 0:
        raise ShapeError("the step of a slice is 0")
    number, zero = n.symbols([extent], i64, ()), n.constant(0, i64)
    last = n.emit("sub", number, n.constant(1, i64))
    low, high = (zero, number) if step > 0 else (n.constant(-1, i64), last)

    def clamped(bound: Any, least: Value) -> Value:
        b = bound if isinstance(bound, Value) else n.symbols([bound], i64, ())
        b = n.emit("select", n.emit("lt", b, zero), n.emit("add", b, number), b)
        return n.emit("max", n.emit("min", b, high), least)

    first, stop = clamped(start, n.emit("min", zero, high)), clamped(end, low)
    span = n.emit("sub", stop, first) if step > 0 else n.emit("sub", first, stop)
    stride = min(abs(step), LONGEST)
    longer = n.emit("add", n.emit("max", span, zero), n.constant(stride - 1, i64))
    count = n.emit("truncdiv", longer, n.constant(stride, i64))
    along = n.emit("range", start=0, step=stride if step > 0 else -stride, size=extent, dtype=i64)
    places = n.emit("add", along, first)
    within = n.emit("max", n.emit("min", places, last), zero)  # after the last one too
    return n.head(within, count)


def places_by(n: Call, start: Value, end: Value, step: Value, extent: Expr) -> Value:
    """The indices, i64[count], that the slice `start:end:step` selects from a dimension of `extent`, where all three
    are i64 scalars that each call computes; `step` is negative or positive, but not 0."""
    number, zero, one = n.symbols([extent], i64, ()), n.constant(0, i64), n.constant(1, i64)
    last = n.emit("sub", number, one)
    following = n.emit("gt", step, zero)
    low = n.emit("select", following, zero, n.constant(-1, i64))
    high = n.emit("select", following, number, last)

    def clamped(bound: Value, least: Value) -> Value:
        b = n.emit("select", n.emit("lt", bound, zero), n.emit("add", bound, number), bound)
        return n.emit("max", n.emit("min", b, high), least)

    first, stop = clamped(start, n.emit("min", zero, high)), clamped(end, low)
    outer = n.constant(LONGEST, i64)
    stride = n.emit("max", n.emit("min", step, outer), n.constant(-LONGEST, i64))
    length = n.emit("max", n.emit("abs", stride), one)
    span = n.emit("sub", stop, first)
    span = n.emit("max", n.emit("select", following, span, n.emit("sub", zero, span)), zero)
    count = n.emit("truncdiv", n.emit("add", span, n.emit("sub", length, one)), length)
    along = n.emit("range", start=0, step=1, size=extent, dtype=i64)
    places = n.emit("add", n.emit("mul", along, stride), first)
    return n.head(n.emit("max", n.emit("min", places, last), zero), count)


LONGEST = 1 << 31
"""Larger steps are clamped to this one, which leaves any dimension at once."""


@rule("Compress")
def compress(n: Call) -> Value:
    """Compress: the slices along `axis` (or elements of the flattened input) for which the condition is true."""
    x, axis = n.value(0), n.integer("axis", None)
    if axis is None:
        x, axis = n.reshape(x, (x.type.size,)), 0
    axis = axis_of(axis, x.type.rank)
    extent, known = x.shape[axis], n.known(1)
    if known is not None and known.dtype != object:
        result = np.flatnonzero(known)
        at_least(extent, const(int(result[-1]) + 1 if result.size else 0), "the condition is longer than the dimension")
        return n.emit("gather", x, n.constant(result, i64), axis=axis)
    condition = n.value(1)
    if condition.type.rank != 1 or condition.dtype is not boolean:
        raise ModelError("the condition of Compress must be a list of bool", got=condition.type)
    if not prove(call("le", condition.shape[0], extent)):
        raise ShapeError("the condition may be longer than the dimension", expected=extent, got=condition.shape[0])
    chosen = places(n, condition)
    return n.emit("gather", x, n.reshape(chosen, (chosen.shape[0],)), axis=axis)


@rule("Unique")
def unique(n: Call) -> list[Value]:
    """Distinct elements or slices. Sorting makes equal elements neighbours, which are then compared; slices, and
    elements that shall stay in their order, are compared pairwise instead."""
    x, axis, ordered = n.value(0), n.integer("axis", None), bool(n.integer("sorted", 1))
    if axis is None:
        x, axis = n.reshape(x, (x.type.size,)), 0
    axis = axis_of(axis, x.type.rank)
    front = n.transpose(x, [axis, *(k for k in range(x.type.rank) if k != axis)])
    extent = front.shape[0]
    if front.type.rank == 1:
        key = n.cast(front, u8) if front.dtype is boolean else front
        result = n.emit_all("unique_sorted", *n.emit_all("topk", key, axis=0, k=extent, largest=False))
        result = result if ordered else _as_met(n, *result)
    else:
        result = n.emit_all("unique_rows", n.reshape(front, (extent, product(front.shape[1:]))), sorted=ordered)
    first, inverse, counts, count = result
    places = n.head(first, count)
    return [n.emit("gather", x, places, axis=axis), places, inverse, n.slice(counts, 0, 0, places.shape[0])]


def _as_met(n: Call, first: Value, inverse: Value, counts: Value, count: Value) -> tuple[Value, ...]:
    """Unique's results (first positions, inverse, counts, number) reordered from sorted values to the order of first
    occurrence; entries past `count` are unused."""
    extent = first.shape[0]
    along = n.emit("range", start=0, step=1, size=extent, dtype=i64)
    after = n.emit("add", along, n.symbols([extent], i64, ()))
    key = n.emit("select", n.emit("lt", along, count), first, after)
    order = n.emit_all("topk", key, axis=0, k=extent, largest=False)[1]
    place = n.emit_all("topk", order, axis=0, k=extent, largest=False)[1]
    moved = (n.emit("gather", rows, order, axis=0) for rows in (first, counts))
    return next(moved), n.emit("gather", place, inverse, axis=0), next(moved), count


@rule("NonMaxSuppression")
def non_max_suppression(n: Call) -> Value:
    """Boxes of each class that do not overlap a box of higher score too much: rows of (batch, class, box)."""
    limit = n.reshape(n.cast(n.value(2), i64), ()) if n.is_data(2) else None
    most: Any = 0 if not n.has(2) else ALL_BOXES
    if limit is None and n.has(2):
        most = n.number(2, "the number of boxes of NonMaxSuppression")
    overlap = n.reshape(_overlap(n), ()) if n.has(3) else n.constant(0.0, f32)
    least = n.reshape(n.value(4), ()) if n.has(4) else None
    center = bool(n.integer("center_point_box", 0))
    boxes = as_int(n.shape(0)[1]) if n.rank(0) == 3 else None
    most = max(int(most), 0) if boxes is None else min(max(int(most), 0), boxes)
    operands = (n.value(0), n.value(1), overlap, least, *([] if limit is None else [limit]))
    rows, count = n.emit_all("suppress", *operands, most=most, center=center)
    return n.cast(n.head(rows, count), i64)


def _overlap(n: Call) -> Value:
    """NonMaxSuppression's input `iou_threshold`: the largest intersection over union that selected boxes may have, from
    0 to 1, which is checked."""
    known, what = n.known(3), "the overlap is not from 0 to 1"
    if known is None:
        return n.within(n.value(3), 0, 1, what, of=n.value(3))
    if not all(0 <= float(v) <= 1 for v in known.reshape(-1)):
        raise ShapeError(what, got=known.tolist())
    return n.value(3)


ALL_BOXES = 1 << 31
"""The limit on boxes if the node states none: more than any model has."""
