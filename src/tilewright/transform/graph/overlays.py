"""Overlays: temporaries that are placed in parts of another value's memory while those are not in use.

    gradients = concat(g0, g1, ..., g9) as a view        g9 is computed first, g0 last: before g0 is computed, an
                                                  ->      activation that the gradient reads before stands in its part

A value whose parts are written in place occupies all of its memory from its first part on. Such a host takes overlays:
values that die before the parts under them are written, or are born after those were last read. The host's memory is
then in use from its first overlay on. A value becomes a host if the fullest step then needs clearly less memory.

Sizes are compared at the largest values of symbols. An overlay begins where a part of its host or another overlay ends,
or ends where one begins, and must provably not overlap any other memory in use meanwhile, for all values of the
symbols.

Outputs named in `outputs` are hosts too: their memory exists from the first step on, whenever they are written. The new
parameters of a learning step are written last, or at the end of their stage. No overlay may follow once an output is
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from itertools import accumulate, pairwise

from tilewright.arith import prove, prove_equal, simplify
from tilewright.arith.overflow import exact
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.graph import Value
from tilewright.ir.rewrite import substitute, variables
from tilewright.runtime.arena import ALIGNMENT, roots
from tilewright.support.classes import dataclass
from tilewright.transform.call import Call, KernelCall
from tilewright.transform.graph.memory import Place, Storage
from tilewright.transform.work import polynomial

MIN_HOST_BYTES = 1 << 20
"""The least size in bytes of a host, a memory block in whose unused parts other values (overlays) are placed."""
WORTH = 32
"""Placing overlays in a host must save at least this fraction (1 / WORTH) of the largest number of bytes in use at one
time."""
TRIES = 100
"""The largest number of further orders in which the search tries to place overlays, after the first ones."""
FULLEST = 16
"""The number of steps with the most bytes in use whose bytes are compared, one after the other: several steps may be
equally full."""
LARGEST = 64
"""The value assumed in estimates for symbols without a largest or likely value."""
FULL = 0.8
"""A value can be placed in another one's memory only if, at some step of its life, the bytes in use are at least this
share of their maximum over all steps; other values keep their own memory."""


def with_overlays(
    calls: Sequence[Call], leading: int, where: Mapping[Value, Place], storage: Storage, outputs: range = range(0)
) -> Mapping[Value, Place]:
    """The places of all values, with overlays in their hosts; `where` itself if there are no overlays. There are none
    if data decides sizes, or if calls have no fixed order.

    Args:
        leading: how many slots are not temporaries'.
        storage: the temporaries of these calls, each in memory of its own.
        outputs: the slots of outputs that take overlays.
    """
    ordinary = all(isinstance(c, KernelCall) and c.branch is None for c in calls)
    if not ordinary or storage.bounds:
        return where
    overlaying = _Overlays.of(calls, leading, where, storage, outputs)
    result = dict[Value, Place]()
    for host in sorted(overlaying.hosts(), key=lambda h: (h >= 0, -overlaying.blocks[h].nbytes, h)):
        more = overlaying.occupy(host)
        result |= more
        while more and host < 0:  # other steps are the fullest ones then
            more = overlaying.occupy(host)
            result |= more
    return {**where, **result} if result else where


@dataclass(slots=True)
class _Block:
    """A piece of memory for a value, or for several that are written over each other: `nbytes` bytes (`size`: as an
    expression of the symbols), in use from step `first` to step `last`. `until` is the last step of the first value.
    `provided` memory belongs to an output and does not count."""

    first: int
    last: int
    nbytes: int
    until: int
    movable: bool = True
    provided: bool = False
    values: list[Value] = field(default_factory=list)
    size: Expr | None = None

    @property
    def bytes(self) -> Expr:
        return const(self.nbytes) if self.size is None else self.size

    @property
    def width(self) -> int:
        """The bytes of an element, by which places are counted."""
        return self.values[0].dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Use:
    """Bytes `begin` to `end` of a block are in use from step `first` to step `last`."""

    begin: int
    end: int
    first: int
    last: int


@dataclass(slots=True)
class _Overlays:
    """The memory blocks of a program, by the number of their first temporary (negative for outputs).

    uses  for outputs and blocks of which several calls write parts: when which part is in use, by overlays too
    ends  the ends of these parts as expressions of the symbols, if their order is known for all values
    """

    steps: int
    blocks: dict[int, _Block]
    uses: dict[int, list[_Use]]
    ends: dict[int, dict[int, Expr]] = field(default_factory=dict)
    number: _Comparable = field(default_factory=lambda: _Comparable())

    @classmethod
    def of(
        cls,
        calls: Sequence[Call],
        leading: int,
        where: Mapping[Value, Place],
        storage: Storage,
        outputs: range = range(0),
    ) -> _Overlays:
        whose, number = roots(storage.temps), _Comparable()
        blocks: dict[int, _Block] = {}
        for k, t, size in zip(whose, storage.temps, storage.sizes, strict=True):
            block = blocks.setdefault(k, _Block(t.first, t.last, 0, t.last))
            block.first, block.last = min(block.first, t.first), max(block.last, t.last)
            nbytes, sizes = number(size), (block.bytes, size)
            small, large = sizes if nbytes > block.nbytes else reversed(sizes)
            block.nbytes, block.size = max(nbytes, block.nbytes), large
            block.movable &= not t.per_thread and _at_most(small, large)
        touched: dict[int, list[_Use]] = {}
        ends: dict[int, dict[int, list[Expr]]] = {}
        known = set[Value]()
        for i, call in enumerate(calls):
            for value in call.args:
                slot = storage.slots[value] - leading
                if slot < 0 and slot + leading not in outputs:
                    continue
                base, offset = _place(value, where)
                width = value.dtype.itemsize
                begin, end = simplify(offset * width), simplify((offset + value.type.size) * width)
                home = whose[slot] if slot >= 0 else slot
                if slot < 0 and slot not in blocks:
                    room = simplify(base.type.size * base.dtype.itemsize)
                    until = len(calls) - 1
                    blocks[slot] = _Block(0, until, number(room), until, provided=True, size=room)
                touched.setdefault(home, []).append(_Use(number(begin), number(end), i, i))
                for e in (begin, end):
                    ends.setdefault(home, {}).setdefault(number(e), []).append(e)
                if base not in known:
                    known.add(base)
                    blocks[home].values.append(base)
        ordered = {k: result for k, at in ends.items() if blocks[k].movable and (result := _in_order(at)) is not None}
        uses = {k: _segments(touched[k]) for k in ordered}
        for k in uses:
            if blocks[k].provided:  # what is written of an output stays
                uses[k] = [replace(u, last=len(calls) - 1) for u in uses[k]]
        return cls(len(calls), blocks, uses, ordered, number)

    def hosts(self) -> Iterator[int]:
        """The numbers of blocks that can be hosts: they are large, and some part is in use for fewer steps than the
        block."""
        for k, uses in self.uses.items():
            block = self.blocks[k]
            if block.nbytes >= MIN_HOST_BYTES and any((u.first, u.last) != (block.first, block.last) for u in uses):
                yield k

    def live(self, overlays: Iterable[int] = (), host: int | None = None) -> list[int]:
        """The bytes in use at each step, if the blocks `overlays` lie in block `host`, which is then in use from their
        first step on."""
        inside = set(overlays)
        change = [0] * (self.steps + 1)
        for k, block in self.blocks.items():
            if k in inside or block.provided:
                continue
            lives = [block, *(self.blocks[g] for g in inside)] if k == host else [block]
            change[min(b.first for b in lives)] += block.nbytes
            change[block.last + 1] -= block.nbytes
        return list(accumulate(change[:-1]))

    def occupy(self, host: int) -> dict[Value, Place]:
        """Choose overlays for a host, move them into its block, and return their places; {} if that saves too little
        memory."""
        if host not in self.blocks:
            return {}
        live = self.live()
        most = max(live)
        full = list(accumulate((n >= FULL * most for n in live), initial=0))
        candidates = [
            k
            for k, b in self.blocks.items()
            if k != host and b.values and b.movable and not b.provided and b.nbytes and full[b.last + 1] > full[b.first]
            if b.last <= self.blocks[host].until and b.width == self.blocks[host].width
        ]
        match = self.search(host, candidates)
        if not match or max(self.live(match, host)) > most - most // WORTH:
            return {}
        (value,) = self.blocks[host].values[:1]
        result = {
            v: Place(value, simplify(at // v.dtype.itemsize)) for g, at in match.items() for v in self.blocks[g].values
        }
        for g, at in match.items():
            overlay, begin = self.blocks.pop(g), self.number(at)
            self.blocks[host].first = min(self.blocks[host].first, overlay.first)
            self.uses.pop(g, None)
            self.uses[host].append(_Use(begin, begin + overlay.nbytes, overlay.first, overlay.last))
            own = {begin: at, begin + overlay.nbytes: simplify(at + overlay.bytes)}
            self.ends[host] = own | self.ends.get(host, {})
        return result

    def search(self, host: int, candidates: Sequence[int]) -> dict[int, Expr]:
        """The places of overlays, some of `candidates`, in a host, chosen to keep the bytes of the fullest step low.
        From the best of several orders on, the values that are live at the fullest step and have no place in the host
        are moved to the front of the order, as long as that helps."""

        def fullest(places: Mapping[int, Expr]) -> list[int]:
            return sorted(self.live(places, host), reverse=True)[:FULLEST]

        tried = [(order, self.placed(host, order)) for order in self.orders(candidates)]
        order, best = min(tried, key=lambda one: fullest(one[1]))
        left = TRIES
        while left > 0:
            live = self.live(best, host)
            step, known = live.index(max(live)), fullest(best)
            outside = (k for k in order if k not in best and self.blocks[k].first <= step <= self.blocks[k].last)
            for k in sorted(outside, key=lambda k: (-self.blocks[k].nbytes, k))[:left]:
                left -= 1
                moved = [k, *(other for other in order if other != k)]
                result = self.placed(host, moved)
                if fullest(result) < known:
                    order, best = moved, result
                    break
            else:
                break
        return best

    def orders(self, candidates: Sequence[int]) -> list[list[int]]:
        """Orders in which overlays are placed: the largest first, the longest-lived first, those that die last
        first."""
        at = self.blocks
        keys = (
            lambda k: (-at[k].nbytes * (at[k].last - at[k].first + 1), k),
            lambda k: (-at[k].nbytes, k),
            lambda k: (-at[k].last, -at[k].nbytes, k),
        )
        return [sorted(candidates, key=key) for key in keys]

    def placed(self, host: int, order: Sequence[int]) -> dict[int, Expr]:
        """Place overlays, in this order, in gaps of the host that are free while they live. Of several gaps, each
        overlay gets the one that the host itself needs soonest, which leaves the others to longer-lived overlays.
        Returns the first byte of each overlay that has a place."""
        own, room, result = self.uses[host], self.blocks[host].nbytes, dict[int, Expr]()
        selected, ends = list(own), {0: const(0), room: self.blocks[host].bytes, **self.ends.get(host, {})}
        numbers = all(as_int(e) is not None for e in ends.values())

        def needed(overlay: _Block, at: int) -> int:
            later = (u.first for u in own if u.first > overlay.last and u.begin < at + overlay.nbytes and at < u.end)
            return min(later, default=self.steps)

        for k in order:
            b = self.blocks[k]
            others = [u for u in selected if u.first <= b.last and b.first <= u.last]
            gaps = sorted(set(_ends(others, b.nbytes, room)), key=lambda at: (needed(b, at), at))
            for at in gaps:
                place = const(at) if numbers and as_int(b.bytes) else _beside(b, at, others, ends)
                if place is not None:
                    result[k] = place
                    selected.append(_Use(at, at + b.nbytes, b.first, b.last))
                    ends = {at: place, at + b.nbytes: simplify(place + b.bytes), **ends}
                    break
        return result


class _Comparable:
    """The numbers by which sizes are compared: at the largest values of symbols, or their largest likely ones."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[Var, int] = {}

    def __call__(self, size: Expr) -> int:
        for s in variables(size):
            if s not in self.values:
                most = s.hi if s.hi is not None else max(s.likely, default=max(s.lo or 1, LARGEST))
                self.values[s] = max(1, most // s.multiple) * s.multiple
        result = exact(size, self.values)
        assert result is not None, "a size is a number where its symbols are"
        return result


def _in_order(ends: Mapping[int, Sequence[Expr]]) -> dict[int, Expr] | None:
    """The ends of parts as expressions, by their values in bytes at the largest sizes; None if their order depends on
    the values of symbols."""
    for same in ends.values():
        if not all(_equal(same[0], e) for e in dict.fromkeys(same)):
            return None
    result = {n: ends[n][0] for n in sorted(ends)}
    return result if all(_at_most(a, b) for a, b in pairwise(result.values())) else None


def _beside(overlay: _Block, at: int, others: Sequence[_Use], ends: Mapping[int, Expr]) -> Expr | None:
    """The first byte of an overlay as an expression of the symbols, for an overlay at byte `at` of a host, if it
    provably lies inside the host and overlaps none of `others`; None otherwise."""
    after, size, room = ends.get(at + overlay.nbytes), overlay.bytes, ends[max(ends)]
    for place in (ends.get(at), None if after is None else simplify(after - size)):
        if place is None or not prove_equal(place % ALIGNMENT, const(0)):
            continue
        own = {at: place, at + overlay.nbytes: simplify(place + size)}
        if not all(_equal(ends.get(n, e), e) for n, e in own.items()):
            continue
        separate = all(
            _at_most(ends[u.end], place) if u.end <= at else _at_most(place + size, ends[u.begin]) for u in others
        )
        if (
            separate
            and _at_most(const(0), place)
            and _at_most(place + size, room)
            and _is_polynomial(place, overlay.width)
        ):
            return place
    return None


def _is_polynomial(place: Expr, width: int) -> bool:
    """Whether the offset `place` is a polynomial of sizes in pieces of `width` bytes, so that a step can state it
    (`transform/graph/memory.py`)."""
    return polynomial(simplify(simplify(place // width) * width)) is not None


def _equal(a: Expr, b: Expr) -> bool:
    return a is b or (_at_most(a, b) and _at_most(b, a))


@lru_cache(maxsize=4096)
def _at_most(a: Expr, b: Expr) -> bool:
    """Whether `a <= b` for any values of the symbols."""
    difference = b - a
    parts: dict[Var, Expr] = {}
    for s in variables(difference):
        if s.multiple > 1:
            # In terms of how many times the multiple it is, halves of it have no remainder.
            lo, hi = (None if n is None else n // s.multiple for n in (s.lo and s.lo + s.multiple - 1, s.hi))
            parts[s] = Var(s.name, s.dtype, lo, hi) * s.multiple
    return prove(simplify(substitute(difference, parts)) >= 0)


def _place(value: Value, where: Mapping[Value, Place]) -> tuple[Value, Expr]:
    """(owner, offset): the value whose memory holds `value`, and the element of it at which `value` begins."""
    offset: Expr = const(0)
    while value in where:
        offset, value = offset + where[value].offset, where[value].base
    return value, offset


def _segments(touched: Sequence[_Use]) -> list[_Use]:
    """The parts of a block that calls touch, split at all of their ends. Each part is in use from the first to the last
    step that touches it; neighbouring parts with equal steps are joined."""
    results: list[_Use] = []
    for begin, end in pairwise(sorted({x for u in touched for x in (u.begin, u.end)})):
        steps = [u.first for u in touched if u.begin < end and begin < u.end]
        if not steps:
            continue
        use = _Use(begin, end, min(steps), max(steps))
        if results and (results[-1].end, results[-1].first, results[-1].last) == (begin, use.first, use.last):
            use = _Use(results.pop().begin, end, use.first, use.last)
        results.append(use)
    return results


def _ends(selected: Sequence[_Use], size: int, room: int) -> Iterator[int]:
    """The first and the last aligned place for `size` bytes in each gap that the parts `selected` leave in `room`
    bytes."""
    end = 0
    for begin, stop in (*sorted((u.begin, u.end) for u in selected), (room, room)):
        first, last = -(-end // ALIGNMENT) * ALIGNMENT, (begin - size) // ALIGNMENT * ALIGNMENT
        if first <= last:
            yield from {first, last}
        end = max(end, stop)


__all__ = ["MIN_HOST_BYTES", "with_overlays"]
