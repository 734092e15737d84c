"""The operator `topk`: the first elements along an axis in order of size; with all of them it is a stable sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Dim
from tilewright.ir.dtype import DType, i64
from tilewright.ir.expr import Expr, as_int, call, cast, const, select
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import accumulator, at_least, axis_of, check_kind, dim, need, number, present, wide
from tilewright.ops.loopnest import buffers
from tilewright.ops.registry import OpDef, Types, register
from tilewright.ops.sorting import at_axis, before, insertion
from tilewright.ops.sorting_bounds import bounds
from tilewright.ops.sorting_digits import digits
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Out = tuple[TensorType, ...]

INSERTED = 64
"""If the number of elements is unknown, the largest `k` for which the first elements are held in a sorted list: most
others fail one comparison."""
MIN_FACTOR = 12
"""If the number of elements is known, the sorted list is used from this factor times the square of `k` on."""
BOUNDED = 256
"""The largest `k` for which a bound is searched, if there are fewer elements than for a sorted list; else digits are
sorted."""
SORTED = 160
"""If all elements are wanted, the largest number of them that is ranked without a search. (The last three: 2026-11-27,
Emerald Rapids with and without AVX-512, `python -m benchmarks.bench_topk`.)"""


@dataclass(frozen=True, slots=True)
class TopkAttrs(Attrs):
    """Attributes of `topk`: the `k` largest elements along the dimension `axis`, in descending order, if `largest`;
    else the `k` smallest ones, in ascending order."""

    axis: int
    k: Dim
    largest: bool


def _topk_infer(types: Types, attrs: TopkAttrs) -> Out:
    """The type rule of `topk`: values and indices of the first `k` elements along `axis` in order (`largest` or
    smallest first); NaN counts as the largest, equal ones are ordered by index."""
    t = present(types[0])
    check_kind(t.dtype, ("float", "int", "uint", "bool"))
    axis = axis_of(attrs.axis, t.rank)
    k, extent = as_int(dim(attrs.k)), as_int(t.shape[axis])
    if k is not None and extent is not None and not 0 <= k <= extent:
        raise ShapeError("k is outside the dimension", expected=f"0 to {extent}", got=k)
    if extent is None or k is None:
        at_least(t.shape[axis], dim(attrs.k), "k may be outside the dimension")
    shape = (*t.shape[:axis], dim(attrs.k), *t.shape[axis + 1 :])
    return TensorType(t.dtype, shape), TensorType(i64, shape)


def _topk_loops(types: Types, attrs: TopkAttrs, out: Out) -> PrimFunc:
    """The loop program of `topk`, by one of three algorithms: insertion, a bound and ranks, or sorting by digits; which
    one, depends on the extent and on k."""
    (x,), (values, indices) = buffers(types, out)
    assert x is not None
    axis = attrs.axis % len(x.shape)
    extent, count = as_int(x.shape[axis]), as_int(out[0].shape[axis])
    return way_of(extent, count)(x, values, indices, axis, attrs.largest)


def way_of(extent: int | None, count: int | None) -> Callable[..., PrimFunc]:
    """The function that builds the loops for the first `count` of `extent` elements; it takes the buffers, the axis and
    `largest`."""
    if extent is None or count is None:
        return insertion if count is not None and count <= INSERTED else digits
    if extent >= MIN_FACTOR * count**2:
        return insertion
    return bounds if count <= (SORTED if count == extent else BOUNDED) else digits


def _topk_compute(inputs: Sequence[Tensor | None], attrs: TopkAttrs, out: Out) -> tuple[Tensor, ...]:
    """The tensor expression of `topk`, by ranks: an element's rank is how many come before it, and position `p` gets
    the element of rank `p`. This compares all pairs, but consists of stages that users can schedule; models use
    `loops`."""
    x = need(inputs[0])
    axis, acc = attrs.axis % x.ndim, accumulator(x.dtype)
    other, source = te.reduce_axis(x.shape[axis], "other"), te.reduce_axis(x.shape[axis], "source")

    def ranked(*point: Expr) -> Any:
        there = x[at_axis((*point[:axis], *point[axis + 1 :]), axis, other.var)]
        precedes = before(cast(there, acc), other.var, cast(x[point], acc), point[axis], attrs.largest)
        return te.sum(cast(precedes, i64), axis=other)

    rank = te.compute(x.shape, ranked, name="rank")

    def chosen(value: Callable[[tuple[Expr, ...]], Expr], t: DType) -> Callable[..., Any]:
        def element(*point: Expr) -> Any:
            at = (*point[:axis], source.var, *point[axis + 1 :])
            return te.max(select(call("eq", rank[at], point[axis]), value(at), const(t.min, t)), axis=source)

        return element

    values = te.compute(out[0].shape, chosen(lambda at: x[at], x.dtype), name="values")
    return values, te.compute(out[1].shape, chosen(lambda at: source.var, i64), name="indices")


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


register(OpDef("topk", "opaque", TopkAttrs, _topk_infer, _topk_numpy, compute=_topk_compute, loops=_topk_loops))
