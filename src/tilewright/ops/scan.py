"""Operators along an axis where one element depends on those before: cumulative sums and products, top k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, as_int, call, cast, const, select
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import accumulator, axis_of, check_kind, dim, present, scalar, wide
from tilewright.ops.loopnest import Nest, buffers
from tilewright.ops.registry import Attrs, OpDef, Types, register
from tilewright.support.errors import ShapeError

Out = tuple[TensorType, ...]


def _at(point: Sequence[Expr], axis: int, index: Expr) -> tuple[Expr, ...]:
    """The point of all other dimensions with `index` on the axis."""
    return (*point[:axis], index, *point[axis:])


# --- cumulative -----------------------------------------------------------------------------------------------------


def _cumulative_infer(types: Types, attrs: Attrs) -> Out:
    """`axis`, `exclusive` (without the element itself), `reverse` (from the end)."""
    t = present(types[0])
    check_kind(t.dtype, ("float", "int", "uint"))
    axis_of(attrs["axis"], t.rank)
    return (t,)


def _cumulative(name: str, combine: Callable[[Expr, Expr], Expr], start: int, numpy: Callable[..., Any]) -> None:
    def loops(types: Types, attrs: Attrs, out: Out) -> PrimFunc:
        (x,), (y,) = buffers(types, out)
        assert x is not None
        axis = attrs["axis"] % len(x.shape)
        rest = [d for k, d in enumerate(x.shape) if k != axis]
        extent, acc = x.shape[axis], accumulator(x.dtype)
        nest = Nest(name, [x, y])
        with nest.loops("i", rest, parallel=True) as point, nest.local("total", acc) as total:
            total.set(scalar(start, acc))
            with nest.loop("k", extent) as k:
                at = _at(point, axis, extent - 1 - k if attrs.get("reverse") else k)
                if attrs.get("exclusive"):
                    nest.store(y, at, cast(total.value, x.dtype))
                total.set(combine(total.value, cast(x[at], acc)))
                if not attrs.get("exclusive"):
                    nest.store(y, at, cast(total.value, x.dtype))
        return nest.finish()

    def reference(arrays: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
        given = np.asarray(arrays[0])
        x, axis = wide(given), attrs["axis"]
        if attrs.get("reverse"):
            x = np.flip(x, axis)
        y = numpy(x, axis=axis, dtype=x.dtype)
        if attrs.get("exclusive"):
            first = np.full_like(np.take(y, [0], axis=axis), start)
            y = np.concatenate([first, np.take(y, range(x.shape[axis] - 1), axis=axis)], axis=axis)
        return ((np.flip(y, axis) if attrs.get("reverse") else y).astype(given.dtype),)

    register(OpDef(name, "opaque", _cumulative_infer, reference, loops=loops))


_cumulative("cumsum", lambda a, b: a + b, 0, np.cumsum)
_cumulative("cumprod", lambda a, b: a * b, 1, np.cumprod)


# --- top k ----------------------------------------------------------------------------------------------------------


def _topk_infer(types: Types, attrs: Attrs) -> Out:
    """The `k` first along `axis` in order (`largest` or smallest), NaN counting as the largest; equal ones by index.
    Gives values and indices."""
    t = present(types[0])
    axis = axis_of(attrs["axis"], t.rank)
    k, extent = as_int(dim(attrs["k"])), as_int(t.shape[axis])
    if k is not None and extent is not None and not 0 <= k <= extent:
        raise ShapeError("k is outside the dimension", expected=f"0 to {extent}", got=k)
    shape = (*t.shape[:axis], dim(attrs["k"]), *t.shape[axis + 1 :])
    return TensorType(t.dtype, shape), TensorType(i64, shape)


def _before(a: Expr, ia: Expr, b: Expr, ib: Expr, largest: bool) -> Expr:
    """Whether element `a` at `ia` comes before `b` at `ib`."""
    if a.dtype.is_float:
        nan_a, nan_b = call("isnan", a), call("isnan", b)
        better = (nan_a & ~nan_b) | (a > b) if largest else (nan_b & ~nan_a) | (a < b)
        tie = call("eq", a, b) | (nan_a & nan_b)
    else:
        better, tie = (a > b if largest else a < b), call("eq", a, b)
    return better | (tie & (ia < ib))


def _topk_loops(types: Types, attrs: Attrs, out: Out) -> PrimFunc:
    """Selection: the r-th is the first of those behind the one before it."""
    (x,), (values, indices) = buffers(types, out)
    assert x is not None
    axis, largest = attrs["axis"] % len(x.shape), bool(attrs["largest"])
    rest = [d for k, d in enumerate(x.shape) if k != axis]
    extent = x.shape[axis]
    acc = accumulator(x.dtype)

    def element(point: Sequence[Expr], index: Expr) -> Expr:
        return cast(x[_at(point, axis, index)], acc)

    nest = Nest("topk", [x, values, indices])
    with nest.loops("i", rest, parallel=True) as point, nest.local("last", i64) as last:
        last.set(-1)
        with nest.loop("r", out[0].shape[axis]) as r, nest.local("best", i64) as best:
            best.set(-1)
            with nest.loop("j", extent) as j:
                # Indices are clamped so that a select may be evaluated on both sides.
                newest, chosen = _clamp(last.value), _clamp(best.value)
                behind = (last.value < 0) | _before(element(point, newest), newest, element(point, j), j, largest)
                first = (best.value < 0) | _before(element(point, j), j, element(point, chosen), chosen, largest)
                with nest.when(behind & first):
                    best.set(j)
            nest.store(indices, _at(point, axis, r), best.value)
            nest.store(values, _at(point, axis, r), x[_at(point, axis, _clamp(best.value))])
            last.set(best.value)
    return nest.finish()


def _clamp(index: Expr) -> Expr:
    return select(index < 0, const(0), index)


def _topk_numpy(arrays: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    x = np.asarray(arrays[0])
    axis = attrs["axis"]
    keys = wide(x)
    if attrs["largest"]:
        # A stable ascending sort of the flipped array, flipped back, is a stable descending one.
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(keys, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(keys, axis=axis, kind="stable")
    order = np.take(order, range(attrs["k"]), axis=axis).astype(np.int64)
    return np.take_along_axis(x, order, axis=axis), order


register(OpDef("topk", "opaque", _topk_infer, _topk_numpy, loops=_topk_loops))
