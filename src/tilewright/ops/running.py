"""Cumulative operators with more state than a sum: running extremes with their positions, running log-sum-exps; and
searches in sorted rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, call, cast, const, maximum, minimum, select
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import accumulator, axis_of, check_kind, present, same_dim, same_dtype, scalar, static, wide
from tilewright.ops.loopnest import Nest, buffers
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError

Out = tuple[TensorType, ...]


def _at(point: Sequence[Expr], axis: int, index: Expr) -> tuple[Expr, ...]:
    return (*point[:axis], index, *point[axis:])


# --- running extremes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunningExtremeAttrs(Attrs):
    """Attributes of a running maximum (`largest`) or minimum: element k of the result is that of elements 0 to k along
    `axis`."""

    axis: int
    largest: bool


def _extreme_infer(types: Types, attrs: RunningExtremeAttrs) -> Out:
    """The type rule of `running_extreme`: x to the extreme of the elements up to each one, and its position, the last
    one among equal extremes. From the first NaN on the extreme is NaN."""
    t = present(types[0])
    check_kind(t.dtype, ("float", "int", "uint", "bool"))
    axis_of(attrs.axis, t.rank)
    return t, TensorType(i64, t.shape)


def _extreme_loops(types: Types, attrs: RunningExtremeAttrs, out: Out) -> PrimFunc:
    (x,), (values, places) = buffers(types, out)
    assert x is not None
    axis, acc = attrs.axis % len(x.shape), accumulator(x.dtype)
    rest = [d for k, d in enumerate(x.shape) if k != axis]
    compare = "ge" if attrs.largest else "le"
    nest = Nest("running_extreme", [x, values, places])
    with nest.loops("i", rest, parallel=True) as point:
        with nest.local("best", acc) as best, nest.local("place", i64) as place:
            with nest.when(x.shape[axis] > 0):
                best.set(cast(x[_at(point, axis, const(0))], acc))
                place.set(0)
            with nest.loop("k", x.shape[axis]) as k:
                with nest.let("value", cast(x[_at(point, axis, k)], acc)) as value:
                    better = call(compare, value, best.value)
                    if acc.is_float:
                        better = (better & ~call("isnan", best.value)) | call("isnan", value)
                    with nest.when(better):
                        best.set(value)
                        place.set(k)
                nest.store(values, _at(point, axis, k), cast(best.value, x.dtype))
                nest.store(places, _at(point, axis, k), place.value)
    return nest.finish()


def _extreme_numpy(arrays: Sequence[Any], attrs: RunningExtremeAttrs) -> tuple[Any, ...]:
    array = np.asarray(arrays[0])
    x = np.moveaxis(wide(array), attrs.axis, 0)
    values, places = np.array(x), np.zeros(x.shape, np.int64)
    for k in range(1, len(x)):
        with np.errstate(invalid="ignore"):
            better = x[k] >= values[k - 1] if attrs.largest else x[k] <= values[k - 1]
        unknown = np.isnan(x[k]) if np.issubdtype(x.dtype, np.floating) else np.zeros_like(better)
        better = better | unknown
        values[k] = np.where(better, x[k], values[k - 1])
        places[k] = np.where(better, k, places[k - 1])
    return np.moveaxis(values, 0, attrs.axis).astype(array.dtype), np.ascontiguousarray(
        np.moveaxis(places, 0, attrs.axis)
    )


register(OpDef("running_extreme", "opaque", RunningExtremeAttrs, _extreme_infer, _extreme_numpy, loops=_extreme_loops))


# --- running log-sum-exp --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CumulativeLogsumexpAttrs(Attrs):
    """Attributes of `cumulative_logsumexp`: the dimension `axis` along which elements are accumulated."""

    axis: int


def _logsumexp_infer(types: Types, attrs: CumulativeLogsumexpAttrs) -> Out:
    """The type rule of `cumulative_logsumexp`: x to the log of the sum of e^x over each element and those before it, of
    x's type."""
    t = present(types[0])
    check_kind(t.dtype, ("float",))
    axis_of(attrs.axis, t.rank)
    return (t,)


def _logsumexp_loops(types: Types, attrs: CumulativeLogsumexpAttrs, out: Out) -> PrimFunc:
    """The loop program of `cumulative_logsumexp`, which adds elements one by one: log(e^a + e^b) = max + log1p(e^(min -
    max)); if both are the same infinity, that is the result."""
    (x,), (y,) = buffers(types, out)
    assert x is not None
    axis, acc = attrs.axis % len(x.shape), accumulator(x.dtype)
    rest = [d for k, d in enumerate(x.shape) if k != axis]
    nest = Nest("cumulative_logsumexp", [x, y])
    with nest.loops("i", rest, parallel=True) as point, nest.local("total", acc) as total:
        total.set(scalar(-np.inf, acc))
        with nest.loop("k", x.shape[axis]) as k:
            with nest.let("value", cast(x[_at(point, axis, k)], acc)) as value:
                high, low = maximum(value, total.value), minimum(value, total.value)
                equal = call("eq", high, low) & call("isinf", high)
                total.set(select(equal, high, high + call("log1p", call("exp", low - high))))
            nest.store(y, _at(point, axis, k), cast(total.value, x.dtype))
    return nest.finish()


def _logsumexp_numpy(arrays: Sequence[Any], attrs: CumulativeLogsumexpAttrs) -> tuple[Any, ...]:
    array = np.asarray(arrays[0])
    with np.errstate(all="ignore"):
        return (np.logaddexp.accumulate(wide(array), axis=attrs.axis).astype(array.dtype),)


register(
    OpDef(
        "cumulative_logsumexp",
        "opaque",
        CumulativeLogsumexpAttrs,
        _logsumexp_infer,
        _logsumexp_numpy,
        loops=_logsumexp_loops,
    )
)


# --- places in sorted rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SearchSortedAttrs(Attrs):
    """Attributes of `search_sorted`, which counts the elements that are less than a value: with `right`, those equal to
    it are counted too."""

    right: bool


def _search_infer(types: Types, attrs: SearchSortedAttrs) -> Out:
    """The type rule of `search_sorted`: rows [n] or [..., n] in ascending order and values [..., m] to the number of
    elements of its row that are below each value, i64."""
    rows, values = present(types[0]), present(types[1])
    same_dtype([rows, values])
    static(rows.shape[-1] if rows.rank else 1, "the length of a sorted row")
    shared = rows.rank == 1
    if rows.rank < 1 or not (shared or rows.rank == values.rank):
        raise ShapeError("rows and values differ in rank", expected=rows, got=values)
    if not shared and not all(same_dim(a, b) for a, b in zip(rows.shape[:-1], values.shape[:-1], strict=True)):
        raise ShapeError("rows and values differ in shape", expected=rows, got=values)
    return (TensorType(i64, values.shape),)


def _search_loops(types: Types, attrs: SearchSortedAttrs, out: Out) -> PrimFunc:
    """The loop program of `search_sorted`: a binary search in steps of powers of two, from the largest power below the
    row's length."""
    (rows, values), (places,) = buffers(types, out)
    assert rows is not None and values is not None
    length, acc = static(rows.shape[-1], "the length of a sorted row"), accumulator(rows.dtype)
    nest = Nest("search_sorted", [rows, values, places])
    with nest.loops("i", values.shape, parallel=True) as point, nest.local("place", i64) as place:
        lead = point[:-1] if len(rows.shape) > 1 else ()
        place.set(0)
        with nest.let("value", cast(values[point], acc)) as value:
            for step in (1 << k for k in reversed(range(length.bit_length()))):
                with nest.when(place.value + step <= length):
                    element = cast(rows[(*lead, place.value + (step - 1))], acc)
                    # Turned round, so that all elements are below NaN.
                    below = ~call("gt" if attrs.right else "ge", element, value)
                    with nest.when(below):
                        place.set(place.value + step)
        nest.store(places, point, place.value)
    return nest.finish()


def _search_numpy(arrays: Sequence[Any], attrs: SearchSortedAttrs) -> tuple[Any, ...]:
    rows, values = (wide(a) for a in arrays)
    side: Literal["left", "right"] = "right" if attrs.right else "left"
    if rows.ndim == 1:
        places: Any = np.searchsorted(rows, values, side)
    else:
        flat, arguments = rows.reshape(-1, rows.shape[-1]), values.reshape(-1, values.shape[-1])
        results = [np.searchsorted(r, v, side) for r, v in zip(flat, arguments, strict=True)]
        places = np.array(results, np.int64).reshape(values.shape)
    if np.issubdtype(values.dtype, np.floating):
        places = np.where(np.isnan(values), rows.shape[-1], places)
    return (np.asarray(places, np.int64),)


register(OpDef("search_sorted", "opaque", SearchSortedAttrs, _search_infer, _search_numpy, loops=_search_loops))
