"""Sorting by digits: the first ones along an axis, in as many passes as their keys have bytes that differ.

Each pass counts how often each digit occurs, which says where its elements begin, and moves all elements there; equal
ones stay in order. If only the first elements are wanted, an initial pass over the top `SELECTED` bits of the keys
discards elements that cannot be among them.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arith import prove_equal
from tilewright.ir.dtype import i32, i64
from tilewright.ir.expr import Buffer, Expr, as_int, call, cast, const
from tilewright.ir.loops import PrimFunc
from tilewright.ops.loopnest import Cell, Nest
from tilewright.ops.sorting import at_axis, key_bits, key_of, key_type
from tilewright.support.classes import dataclass

DIGIT = 8
"""The number of bits of a digit: counters for 8 bits fit the first-level cache, and the output positions lie in no more
pages than a core's TLB holds."""
SELECTED = 12
"""The number of high bits of a key by which an initial pass discards elements: sign, exponent and three mantissa bits
of an f32."""
ZEROED = 64
"""The number of counters that one vectorized loop sets to zero."""


def digits(x: Buffer, values: Buffer, indices: Buffer, axis: int, largest: bool) -> PrimFunc:
    """The loop program that sorts `x` along `axis`, the largest or the smallest first, by radix sort of the keys'
    digits; only elements that can be among the first are sorted."""
    rest = [d for k, d in enumerate(x.shape) if k != axis]
    extent, count = x.shape[axis], values.shape[axis]
    key = key_type(x.dtype)
    place = i64 if as_int(extent) is None else i32
    whole = prove_equal(extent, count)
    nest = Nest("topk", [x, values, indices])
    counters = 1 << (DIGIT if whole else SELECTED)
    with (
        nest.loops("i", rest, parallel=True) as point,
        nest.allocate("keys", key, (2, extent)) as keys,
        nest.allocate("places", place, (2, extent)) as places,
        nest.allocate("counts", i64, (counters,)) as counts,
        nest.local("length", i64) as length,
        nest.local("side", i64) as side,
    ):
        sorter = _Sorter(nest, keys, places, counts, length, side, key_bits(x.dtype))
        with nest.loop("k", extent) as k:
            nest.store(keys, (0, k), key_of(x[at_axis(point, axis, k)], largest))
            nest.store(places, (0, k), cast(k, place))
        side.set(0)
        length.set(extent)
        if not whole:
            sorter.select(extent, count)
        with nest.when(length.value > 1), nest.loop("digit", -(-sorter.bits // DIGIT)) as digit:
            sorter.move(cast(digit * DIGIT, key))
        with nest.loop("k", count) as k, nest.let("origin", cast(places[side.value, k], i64)) as origin:
            nest.store(values, at_axis(point, axis, k), x[at_axis(point, axis, origin)])
            nest.store(indices, at_axis(point, axis, k), origin)
    return nest.finish()


@dataclass(frozen=True, slots=True)
class _Sorter:
    """A radix sort by code in `nest`. `keys` and `places` hold two copies, [2, extent], of the keys and of their
    original positions, from one of which to the other a pass moves them; `side`, 0 or 1, says which copy is current,
    `length` how many elements it has. `counts` are the counters of the digits' values, `bits` the number of bits of a
    key."""

    nest: Nest
    keys: Buffer
    places: Buffer
    counts: Buffer
    length: Cell
    side: Cell
    bits: int

    def move(self, shift: Expr) -> None:
        """Emit one pass, which moves all elements to the other copy in the order of the digit that begins at bit
        `shift`. It is skipped if all digits are equal."""
        nest, keys, places, counts, key = self.nest, self.keys, self.places, self.counts, self.keys.dtype
        self.clear(1 << DIGIT)
        with nest.let("source", self.side.value) as source, nest.let("many", self.length.value) as several:

            def digit(k: Expr) -> Expr:
                shifted = call("shr", keys[source, k], shift)
                return cast(call("bitand", shifted, const((1 << DIGIT) - 1, key)), i64)

            self.count(several, digit)
            with nest.when(call("ne", counts[digit(const(0))], several)):
                with nest.local("total", i64) as total:
                    total.set(0)
                    with nest.loop("d", 1 << DIGIT) as d, nest.let("here", counts[d]) as here:
                        nest.store(counts, (d,), total.value)
                        total.set(total.value + here)
                with nest.loop("k", several) as k, nest.let("d", digit(k)) as d, nest.let("to", counts[d]) as to:
                    nest.store(keys, (1 - source, to), keys[source, k])
                    nest.store(places, (1 - source, to), places[source, k])
                    nest.store(counts, (d,), to + 1)
                self.side.set(1 - source)

    def select(self, extent: Expr, count: Expr) -> None:
        """Emit a pass over `extent` elements that discards the ones whose top digit is beyond the top digit of the
        `count`-th one."""
        nest, keys, places, counts, key = self.nest, self.keys, self.places, self.counts, self.keys.dtype

        def top(k: Expr) -> Expr:
            return cast(call("shr", keys[0, k], const(max(self.bits - SELECTED, 0), key)), i64)

        self.clear(1 << SELECTED)
        self.count(extent, top)
        with nest.local("total", i64) as total, nest.local("last", i64) as last:
            total.set(0)
            last.set(0)
            with nest.loop("d", 1 << SELECTED) as d:
                with nest.when(total.value < count):
                    last.set(d)
                total.set(total.value + counts[d])
            self.length.set(0)
            with nest.loop("k", extent) as k, nest.when(top(k) <= last.value), nest.let("to", self.length.value) as to:
                nest.store(keys, (0, to), keys[0, k])
                nest.store(places, (0, to), places[0, k])
                self.length.set(to + 1)

    def clear(self, counters: int) -> None:
        with self.nest.loop("c", counters // ZEROED) as c:
            with self.nest.loop("lane", ZEROED, kind="vectorized") as lane:
                self.nest.store(self.counts, (c * ZEROED + lane,), 0)

    def count(self, several: Expr, digit: Callable[[Expr], Expr]) -> None:
        with self.nest.loop("k", several) as k, self.nest.let("d", digit(k)) as d:
            self.nest.store(self.counts, (d,), self.counts[d] + 1)
