"""The first `count` elements in order: search a bound that at least `count` keys, but few more, do not exceed, then
rank these.

    while low < high and more than `most` keys are no more than high:      most: half as many again as `count`
        middle = between low and high
        high = middle if at least `count` keys are no more than middle else low = middle + 1
    best = keys that are no more than high                    in their original order
    rank[i] = how many of the best come before the i-th      all pairs, `LANES` at once

A step of the search is a pass over the keys in vectors, without a branch. The middle is first that of the float values,
which halves the candidates if values are spread evenly; from step `BY_VALUE` on it is that of the keys, which takes at
most as many steps as a key has bits for any values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

from tilewright.ir.dtype import DType, f32, f64, i32, i64, u64
from tilewright.ir.expr import Buffer, Expr, Op, as_int, call, cast, ceildiv, const, maximum, minimum, select
from tilewright.ir.loops import PrimFunc
from tilewright.ops.loopnest import Cell, Nest
from tilewright.ops.sorting import at_axis, key_of, key_type
from tilewright.support.classes import dataclass

LANES = 16
"""The number of elements that are counted or ranked in one vector."""
BY_VALUE = 8
"""The number of initial steps that halve the range of float values."""
SPARSE = 2
"""From this many vectors of keys for each selected element on, vectors without a selected key are skipped."""


def bounds(x: Buffer, values: Buffer, indices: Buffer, axis: int, largest: bool) -> PrimFunc:
    """The loop program that finds the first elements of `x` along `axis`, the largest or the smallest, for known extent
    and count: it searches for a bound on their keys, collects the elements within the bound, and ranks them."""
    rest = [d for k, d in enumerate(x.shape) if k != axis]
    extent, count = as_int(x.shape[axis]), as_int(values.shape[axis])
    assert extent is not None and count is not None and 0 < count <= extent
    key, most = key_type(x.dtype), _whole(min(extent, count + count // 2))
    nest = Nest("topk", [x, values, indices])
    with nest.loops("i", rest, parallel=True) as point, nest.allocate("keys", key, (_whole(extent),)) as keys:
        with nest.loop("lane", LANES, kind="vectorized") as lane:
            nest.store(keys, (keys.shape[0] - LANES + lane,), _last(key))
        with nest.loop("k", extent, kind="vectorized" if axis == len(rest) else "serial") as k:
            nest.store(keys, (k,), key_of(x[at_axis(point, axis, k)], largest))

        def put(rank: Expr, place: Expr) -> None:
            with nest.when(rank < count), nest.let("to", cast(rank, i64)) as to, nest.let("from", place) as origin:
                nest.store(values, at_axis(point, axis, to), x[at_axis(point, axis, origin)])
                nest.store(indices, at_axis(point, axis, to), origin)

        if most >= extent:
            for rank, candidate in _ranks(nest, keys, const(extent)):
                put(rank, candidate)
        else:
            with (
                nest.allocate("best", key, (most + LANES,)) as best,
                nest.allocate("places", i32, (most + LANES,)) as places,
                nest.local("low", key) as low,
                nest.local("high", key) as high,
                nest.local("below", i32) as below,
                nest.local("held", i32) as held,
                nest.local("picked", i32) as picked,
            ):
                bound = _Bound(nest, keys, extent, count, most, low, high, below, held)
                bound.begin()
                with nest.loop("step", BY_VALUE + key.bits) as step, nest.when(bound.open()):
                    bound.narrow(_middle(x, low.value, high.value, step, largest))
                bound.pick(best, places, picked)
                for rank, candidate in _ranks(nest, best, cast(picked.value, i64)):
                    put(rank, cast(places[candidate], i64))
    return nest.finish()


def _whole(n: int) -> int:
    """`n` rounded up to a multiple of `LANES`, the elements of a vector."""
    return -(-n // LANES) * LANES


def _last(key: DType) -> Expr:
    """The largest key of a type, which comes after all others."""
    return const((1 << key.bits) - 1, key)


def _middle(x: Buffer, low: Expr, high: Expr, step: Expr, largest: bool) -> Expr:
    """The key at which step `step` of the search for the largest (or smallest) elements of `x` divides the range from
    `low` to below `high`."""
    key = low.dtype
    between = low + call("shr", high - low, const(1, key))
    if not x.dtype.is_float:
        return between
    mean = _value_of(low, largest) * 0.5 + _value_of(high, largest) * 0.5
    by_value = maximum(minimum(key_of(mean, largest), high - const(1, key)), low)
    return select(step < BY_VALUE, by_value, between)


def _value_of(key: Expr, largest: bool) -> Expr:
    """The float whose sorting key is `key`, in the order `largest`: the inverse of `key_of`."""
    ones, top = _last(key.dtype), const(1 << (key.dtype.bits - 1), key.dtype)
    transposed = call("bitxor", key, ones) if largest else key
    bits = select(call("ge", transposed, top), call("bitxor", transposed, top), call("bitxor", transposed, ones))
    return Op("bitcast", (bits,), f64 if key.dtype is u64 else f32)


@dataclass(frozen=True, slots=True)
class _Bound:
    """The search, by code in `nest`, for a key that at least `count` and at most `most` of the `extent` keys in `keys`
    do not exceed. The key lies from `low` to `high`; `below` counts the keys less than `low`, `held` those that do not
    exceed `high`."""

    nest: Nest
    keys: Buffer
    extent: int
    count: int
    most: int
    low: Cell
    high: Cell
    below: Cell
    held: Cell

    def begin(self) -> None:
        """Emit the start of the search: `low` and `high` become the least and the greatest key."""
        nest, keys = self.nest, self.keys
        key, chunks = keys.dtype, as_int(keys.shape[0]) or 0
        with nest.allocate("least", key, (LANES,)) as least, nest.allocate("most", key, (LANES,)) as most:
            with nest.loop("lane", LANES, kind="vectorized") as lane:
                nest.store(least, (lane,), _last(key))
                nest.store(most, (lane,), const(0, key))
            with nest.loop("chunk", chunks // LANES) as chunk, nest.loop("lane", LANES, kind="vectorized") as lane:
                k = chunk * LANES + lane
                nest.store(least, (lane,), minimum(least[lane], keys[k]))
                nest.store(most, (lane,), maximum(most[lane], select(k < self.extent, keys[k], const(0, key))))
            self.low.set(_last(key))
            self.high.set(const(0, key))
            with nest.loop("lane", LANES, kind="vectorized") as lane:
                self.low.set(minimum(self.low.value, least[lane]))
            with nest.loop("lane", LANES, kind="vectorized") as lane:
                self.high.set(maximum(self.high.value, most[lane]))
        self.below.set(0)
        self.held.set(self.extent)

    def open(self) -> Expr:
        """The condition that the search is not finished: more than `most` keys do not exceed `high`, and `low` is less
        than `high`."""
        return (self.held.value > self.most) & (self.low.value < self.high.value)

    def narrow(self, middle: Expr) -> None:
        """Emit one step of the search, which counts the keys that do not exceed `middle` and halves the range."""
        nest, keys = self.nest, self.keys
        with (
            nest.let("middle", middle) as bound,
            nest.allocate("counts", i32, (LANES,)) as counts,
            nest.local("here", i32) as here,
        ):
            with nest.loop("lane", LANES, kind="vectorized") as lane:
                nest.store(counts, (lane,), 0)
            with nest.loop("chunk", keys.shape[0] // LANES) as chunk:
                with nest.loop("lane", LANES, kind="vectorized") as lane:
                    within = call("le", keys[chunk * LANES + lane], bound)
                    nest.store(counts, (lane,), counts[lane] + select(within, const(1, i32), const(0, i32)))
            here.set(0)
            with nest.loop("lane", LANES, kind="vectorized") as lane:
                here.set(here.value + counts[lane])
            with nest.let("enough", here.value >= self.count) as enough:
                self.high.set(select(enough, bound, self.high.value))
                self.held.set(select(enough, here.value, self.held.value))
                self.low.set(select(enough, self.low.value, bound + const(1, keys.dtype)))
                self.below.set(select(enough, self.below.value, here.value))

    def pick(self, best: Buffer, places: Buffer, picked: Cell) -> None:
        """Emit the collection of the keys that do not exceed the bound into `best`, with their positions in `places`
        and their number in `picked`. If the search ended at one key that occurs too often, only as many equal keys are
        taken as are needed."""
        nest = self.nest
        with nest.loop("k", best.shape[0] // LANES) as k, nest.loop("lane", LANES, kind="vectorized") as lane:
            nest.store(best, (k * LANES + lane,), _last(self.keys.dtype))
        picked.set(0)
        with nest.let("bound", self.high.value) as bound:
            with nest.when(self.held.value <= self.most):
                self.pass_over(best, places, picked, bound, lambda key: call("le", key, bound))
            with nest.when(self.held.value > self.most), nest.local("missing", i32) as missing:
                missing.set(self.count - self.below.value)

                def take_one(key: Expr) -> Expr:
                    return call("lt", key, bound) | (call("eq", key, bound) & (missing.value > 0))

                self.pass_over(best, places, picked, bound, take_one, missing)
        nest.store(best, (cast(picked.value, i64),), _last(self.keys.dtype))

    def pass_over(
        self,
        best: Buffer,
        places: Buffer,
        picked: Cell,
        bound: Expr,
        selected: Callable[[Expr], Expr],
        missing: Cell | None = None,
    ) -> None:
        """Emit a pass that appends the keys for which `selected` is true to `best`, and their indices to `places`, from
        `picked` on, without branches (each is written, and overwritten if not selected). If most vectors have no key up
        to `bound`, those are skipped."""
        nest, keys, sparse = self.nest, self.keys, self.extent >= SPARSE * LANES * self.most
        one, none = const(1, i32), const(0, i32)
        with nest.loop("chunk", keys.shape[0] // LANES) as chunk, nest.local("some", i32) as some:
            if sparse:
                some.set(0)
                with nest.loop("lane", LANES, kind="vectorized") as lane:
                    within = call("le", keys[chunk * LANES + lane], bound)
                    some.set(maximum(some.value, select(within, one, none)))
            with nest.when(some.value > 0) if sparse else nullcontext():
                with (
                    nest.loop("lane", LANES) as lane,
                    nest.let("place", chunk * LANES + lane) as place,
                    nest.let("key", keys[place]) as key,
                    nest.let("to", cast(picked.value, i64)) as to,
                ):
                    nest.store(best, (to,), key)
                    nest.store(places, (to,), cast(place, i32))
                    picked.set(picked.value + select(selected(key), one, none))
                    if missing is not None:
                        missing.set(missing.value - select(call("eq", key, bound), one, none))


def _ranks(nest: Nest, keys: Buffer, count: Expr) -> Iterator[tuple[Expr, Expr]]:
    """Emit loops over the first `count` keys, and yield for each its rank among them and its index. Keys that fill up
    the last vector come last; equal keys are ranked by index."""
    with (
        nest.loop("strip", ceildiv(count, LANES)) as strip,
        nest.allocate("ranks", i32, (LANES,)) as ranks,
        nest.let("first", strip * LANES) as first,
    ):
        with nest.loop("lane", LANES, kind="vectorized") as lane:
            nest.store(ranks, (lane,), 0)

        def compare(begin: Expr, several: Expr | int, before: Callable[[Expr, Expr, Expr, Expr], Expr]) -> None:
            with nest.loop("other", several, copies=4) as other, nest.loop("lane", LANES, kind="vectorized") as lane:
                precedes = before(keys[begin + other], keys[first + lane], other, lane)
                nest.store(ranks, (lane,), ranks[lane] + select(precedes, const(1, i32), const(0, i32)))

        compare(const(0), first, lambda a, b, *_: call("le", a, b))
        compare(first, LANES, lambda a, b, i, j: call("lt", a, b) | (call("eq", a, b) & (i < j)))
        compare(first + LANES, maximum(count - first - LANES, 0), lambda a, b, *_: call("lt", a, b))
        with nest.loop("lane", LANES) as lane:
            yield ranks[lane], first + lane
