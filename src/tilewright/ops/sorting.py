"""Loop programs that sort the first elements along an axis by insertion into a sorted list.

All variants give the same result: the first elements in order, NaN as the largest, 0 and -0 as equal, equal ones by
index. `x` is the input, `values` and `indices` are the outputs, which may be shorter along `axis`. (Other variants: by
a bound and ranks, `sorting_bounds.py`; by digits, `sorting_digits.py`.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.dtype import DType, f32, f64, i32, i64, u32, u64
from tilewright.ir.expr import Buffer, Expr, Op, as_int, call, cast, const, maximum, select
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import accumulator
from tilewright.ops.loopnest import Nest
from tilewright.support.classes import dataclass

CHUNK = 16
"""The number of elements of a chunk, all of which are compared at once with the last of the best elements so far; most
chunks have no better one."""

COUNTED = 32
"""From this length of the sorted list on, the insertion position is computed by counting: the first 64 of 8,400 take 13
instead of 30 µs, the first 20 of 16 x 200 24 instead of 17 (2026-11-26, Emerald Rapids, `torch.topk` of random
rows)."""


def at_axis(point: Sequence[Expr], axis: int, index: Expr) -> tuple[Expr, ...]:
    """The index of an element: `point`, which has the indices along all other dimensions, with `index` inserted at
    position `axis`."""
    return (*point[:axis], index, *point[axis:])


def key_type(t: DType) -> DType:
    """The unsigned integer type of the sorting keys for elements of a type."""
    return u64 if t.bits == 64 else u32


def key_bits(t: DType) -> int:
    """The number of low bits in which the sorting keys for elements of type `t` differ."""
    return t.bits if t.bits <= 16 and not t.is_float else key_type(t).bits


def key_of(x: Expr, largest: bool) -> Expr:
    """The sorting key of an element: an unsigned integer that is smaller the earlier the element comes. For floats,
    magnitude and sign are combined to one number (bits of negative ones are inverted); all NaN have one key, and so
    have both zeros."""
    key = key_type(x.dtype)
    bits = key_bits(x.dtype)
    ones, top = const((1 << bits) - 1, key), const(1 << (bits - 1), key)
    if x.dtype.is_float:
        wide = cast(x, f64 if key is u64 else f32)
        wide = select(call("eq", wide, const(0.0, wide.dtype)), const(0.0, wide.dtype), wide)
        word: Expr = Op("bitcast", (wide,), key)
        transposed = select(call("ge", word, top), call("bitxor", word, ones), call("bitxor", word, top))
        value = select(call("isnan", wide), ones, transposed)
    elif x.dtype.kind == "int":
        word = Op("bitcast", (cast(x, i64 if key is u64 else i32),), key)
        value = call("bitand", call("bitxor", word, top), ones)
    else:
        value = cast(x, key)
    return call("bitxor", value, ones) if largest else value


def _better(a: Expr, b: Expr, largest: bool) -> Expr:
    """Whether the value `a` comes before the value `b`: in descending order, NaN first, if `largest`; else in ascending
    order, NaN last."""
    a, b = (cast(e, accumulator(e.dtype)) for e in (a, b))
    if not a.dtype.is_float:
        return a > b if largest else a < b
    nan_a, nan_b = call("isnan", a), call("isnan", b)
    return (nan_a & ~nan_b) | (a > b) if largest else (nan_b & ~nan_a) | (a < b)


def before(a: Expr, ia: Expr, b: Expr, ib: Expr, largest: bool) -> Expr:
    """Whether element `a` at index `ia` comes before `b` at index `ib`; equal elements are ordered by index."""
    tie = call("eq", a, b)
    if a.dtype.is_float:
        tie = tie | (call("isnan", a) & call("isnan", b))
    return _better(a, b, largest) | (tie & (ia < ib))


@dataclass(frozen=True, slots=True)
class _Best:
    """The best elements so far, sorted, with the code in `nest` that inserts others. `values` and `indices` are the
    outputs that hold them and their positions; `at` gives the index there of a rank; `largest` says whether the largest
    elements are the best, or the smallest. Methods use the first `ranks` positions, and drop the last element of a full
    list."""

    nest: Nest
    values: Buffer
    indices: Buffer
    at: Callable[[Expr], tuple[Expr, ...]]
    largest: bool

    def insert_by_steps(self, index: Expr, element: Expr, ranks: Expr) -> None:
        """Insert `element`, whose index is `index`, among the `ranks` best elements, by moving all elements that come
        after it, from the end on, by one position."""
        with self.nest.let("value", element) as value, self.nest.local("place", i64) as place:
            place.set(ranks - 1)
            with self.nest.loop("up", ranks - 1) as up:
                to = ranks - 1 - up
                above = self.at(to - 1)
                with self.nest.when(before(value, index, self.values[above], self.indices[above], self.largest)):
                    self._move(to)
                    place.set(to - 1)
            self._put(place.value, index, value)

    def insert_by_count(self, index: Expr, element: Expr, ranks: Expr) -> None:
        """Insert `element`, whose index is `index`, among the `ranks` best elements, at the position computed by
        counting the elements that it does not precede. Counting vectorizes, and only the elements after it are
        moved."""
        with self.nest.let("value", element) as value, self.nest.local("ahead", i64) as precedes:
            precedes.set(0)
            with self.nest.loop("rank", ranks - 1) as rank:
                better = _better(value, self.values[self.at(rank)], self.largest)
                precedes.set(precedes.value + select(better, const(0, i64), const(1, i64)))
            with self.nest.let("place", precedes.value) as place:
                with self.nest.loop("up", ranks - 1 - place) as up:
                    self._move(ranks - 1 - up)
                self._put(place, index, value)

    def _move(self, to: Expr) -> None:
        above, below = self.at(to - 1), self.at(to)
        self.nest.store(self.values, below, self.values[above])
        self.nest.store(self.indices, below, self.indices[above])

    def _put(self, place: Expr, index: Expr, value: Expr) -> None:
        self.nest.store(self.values, self.at(place), value)
        self.nest.store(self.indices, self.at(place), index)


def insertion(x: Buffer, values: Buffer, indices: Buffer, axis: int, largest: bool) -> PrimFunc:
    """The loop program that writes the largest or smallest elements of `x` along `axis` to `values`, sorted, and their
    positions to `indices`, by insertion. The first elements fill the outputs; then whole chunks are skipped in which no
    element is better than the last."""
    rest = [d for k, d in enumerate(x.shape) if k != axis]
    extent, count = x.shape[axis], values.shape[axis]
    nest = Nest("topk", [x, values, indices])
    with nest.loops("i", rest, parallel=True) as point:
        best = _Best(nest, values, indices, lambda k: at_axis(point, axis, k), largest)
        insert = best.insert_by_count if (as_int(count) or 0) >= COUNTED else best.insert_by_steps

        with nest.loop("first", count) as first:
            insert(first, x[at_axis(point, axis, first)], first + 1)
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
                            insert(start + j, x[at_axis(point, axis, start + j)], count)
    return nest.finish()
