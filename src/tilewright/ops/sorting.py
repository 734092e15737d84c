"""Loops that put the elements along an axis in order: by their ranks, or by insertion into a sorted list.

All ways give the same: the first ones in order, NaN as the largest, 0 and -0 alike, equal ones by index. `x` is what is
sorted, `values` and `indices` are the outputs, which may be shorter along `axis`. (By digits: `sorting_digits.py`.)
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import DType, f32, f64, i32, i64, u32, u64
from tilewright.ir.expr import Buffer, Expr, Op, as_int, call, cast, const, maximum, select
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import accumulator
from tilewright.ops.loopnest import Nest

LANES = 16
"""Elements whose ranks are counted side by side."""

CHUNK = 16
"""Elements that are compared with the worst of the best so far at once; most chunks have nothing to offer."""


def at_axis(point: Sequence[Expr], axis: int, index: Expr) -> tuple[Expr, ...]:
    """The point of all other dimensions with `index` on the axis."""
    return (*point[:axis], index, *point[axis:])


def key_type(t: DType) -> DType:
    """The unsigned integers that stand for elements of a type."""
    return u64 if t.bits == 64 else u32


def key_of(x: Expr, largest: bool) -> Expr:
    """An unsigned integer that is smaller the earlier an element comes. Floats: magnitude and sign become one number
    (the bits of negative ones turned over), all NaN are one, and so are both zeros."""
    key = key_type(x.dtype)
    ones, top = const((1 << key.bits) - 1, key), const(1 << (key.bits - 1), key)
    if x.dtype.is_float:
        wide = cast(x, f64 if key is u64 else f32)
        wide = select(call("eq", wide, const(0.0, wide.dtype)), const(0.0, wide.dtype), wide)
        bits: Expr = Op("bitcast", (wide,), key)
        turned = select(call("ge", bits, top), call("bitxor", bits, ones), call("bitxor", bits, top))
        value = select(call("isnan", wide), ones, turned)
    elif x.dtype.kind == "int":
        value = call("bitxor", Op("bitcast", (cast(x, i64 if key is u64 else i32),), key), top)
    else:
        value = cast(x, key)
    return call("bitxor", value, ones) if largest else value


def ranking(x: Buffer, values: Buffer, indices: Buffer, axis: int, largest: bool) -> PrimFunc:
    """Each element's rank is how many come before it: all pairs are compared, `LANES` at once, without a branch.

    for i: for j: rank[i] += keys[j] < keys[i] or (j < i and keys[j] == keys[i])
    for i: if rank[i] < count: values[rank[i]] = x[i]
    """
    rest = [d for k, d in enumerate(x.shape) if k != axis]
    extent, count = as_int(x.shape[axis]) or 0, values.shape[axis]
    key, padded = key_type(x.dtype), -(-extent // LANES) * LANES
    nest = Nest("topk", [x, values, indices])
    with (
        nest.loops("i", rest, parallel=True) as point,
        nest.allocate("keys", key, (max(padded, 1),)) as keys,
        nest.allocate("ranks", i32, (max(padded, 1),)) as ranks,
    ):
        with nest.loop("k", extent) as k:
            nest.store(keys, (k,), key_of(x[at_axis(point, axis, k)], largest))
        with nest.loop("strip", padded // LANES) as strip, nest.allocate("rank", i32, (LANES,)) as rank:
            with nest.loop("lane", LANES, kind="vectorized") as lane:
                nest.store(rank, (lane,), 0)
            with nest.loop("other", extent) as other, nest.loop("lane", LANES, kind="vectorized") as lane:
                mine, index = keys[strip * LANES + lane], cast(strip * LANES + lane, i32)
                tie = call("eq", keys[other], mine) & (cast(other, i32) < index)
                before = call("lt", keys[other], mine) | tie
                nest.store(rank, (lane,), rank[lane] + select(before, const(1, i32), const(0, i32)))
            with nest.loop("lane", LANES, kind="vectorized") as lane:
                nest.store(ranks, (strip * LANES + lane,), rank[lane])
        with nest.loop("k", extent) as k, nest.let("to", cast(ranks[k], i64)) as to, nest.when(to < count):
            nest.store(values, at_axis(point, axis, to), x[at_axis(point, axis, k)])
            nest.store(indices, at_axis(point, axis, to), k)
    return nest.finish()


def _better(a: Expr, b: Expr, largest: bool) -> Expr:
    """Whether value `a` comes before value `b`."""
    a, b = (cast(e, accumulator(e.dtype)) for e in (a, b))
    if not a.dtype.is_float:
        return a > b if largest else a < b
    nan_a, nan_b = call("isnan", a), call("isnan", b)
    return (nan_a & ~nan_b) | (a > b) if largest else (nan_b & ~nan_a) | (a < b)


def before(a: Expr, ia: Expr, b: Expr, ib: Expr, largest: bool) -> Expr:
    """Whether element `a` at `ia` comes before `b` at `ib`."""
    tie = call("eq", a, b)
    if a.dtype.is_float:
        tie = tie | (call("isnan", a) & call("isnan", b))
    return _better(a, b, largest) | (tie & (ia < ib))


def insertion(x: Buffer, values: Buffer, indices: Buffer, axis: int, largest: bool) -> PrimFunc:
    """Insertion into the sorted list of the best so far, which stands in the outputs: the first elements fill it, of
    the others whole chunks are skipped that have nothing better than its end."""
    rest = [d for k, d in enumerate(x.shape) if k != axis]
    extent, count = x.shape[axis], values.shape[axis]
    nest = Nest("topk", [x, values, indices])
    with nest.loops("i", rest, parallel=True) as point:

        def insert(index: Expr, ranks: Expr) -> None:
            """Put element `index` where it belongs among the first `ranks`; the last one of a full list falls out."""
            with nest.let("value", x[at_axis(point, axis, index)]) as value, nest.local("place", i64) as place:
                place.set(ranks - 1)
                with nest.loop("up", ranks - 1) as up:
                    to = ranks - 1 - up
                    above, below = at_axis(point, axis, to - 1), at_axis(point, axis, to)
                    with nest.when(before(value, index, values[above], indices[above], largest)):
                        nest.store(values, below, values[above])
                        nest.store(indices, below, indices[above])
                        place.set(to - 1)
                nest.store(values, at_axis(point, axis, place.value), value)
                nest.store(indices, at_axis(point, axis, place.value), index)

        with nest.loop("first", count) as first:
            insert(first, first + 1)
        with nest.when(count > 0), nest.loop("chunk", (extent - count + (CHUNK - 1)) // CHUNK) as chunk:
            start = count + chunk * CHUNK
            with nest.local("some", i32) as some:
                some.set(0)
                worst = values[at_axis(point, axis, count - 1)]
                with nest.loop("lane", CHUNK, kind="vectorized") as lane:
                    with nest.when(start + lane < extent):
                        better = _better(x[at_axis(point, axis, start + lane)], worst, largest)
                        some.set(maximum(some.value, select(better, const(1, i32), const(0, i32))))
                with nest.when(some.value > 0), nest.loop("j", CHUNK) as j:
                    with nest.when(start + j < extent):
                        with nest.when(_better(x[at_axis(point, axis, start + j)], worst, largest)):
                            insert(start + j, count)
    return nest.finish()
