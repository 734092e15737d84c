"""Temporaries that stand in another value's memory while that is not in use there.

    gradients = concat(g0, g1, ..., g9) as a view        g9 is computed first, g0 last: before g0 is computed, an
                                                  ->      activation that the way back reads before stands in its part

A value that is put together in place has all of its memory from its first part on. Such a host takes guests: values
that die before those parts are written that they stand in, or are born after these were last read. Then the host's
memory is in use from its first guest on. Hosts are taken where the fullest step needs clearly less memory with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import Value
from tilewright.runtime.arena import ALIGNMENT, roots
from tilewright.transform.call import Call, KernelCall
from tilewright.transform.graph.memory import Place, Storage

LEAST = 1 << 20
"""Bytes that a host has at least."""
WORTH = 32
"""A host must save one part in so many of the fullest step's bytes."""
TRIES = 100
"""Orders of guests that are tried at most beside the first ones."""
FULLEST = 16
"""Fullest steps by whose bytes places of guests are compared, one after the other: several may be as full."""
FULL = 0.8
"""Guests are live at a step with at least this share of the fullest step's bytes: where memory is free, values keep the
places that they have, near to each other."""


def with_guests(
    calls: Sequence[Call], leading: int, where: Mapping[Value, Place], storage: Storage
) -> Mapping[Value, Place]:
    """Where all values stand, guests with their hosts; `where` itself if nobody has guests. There are none where sizes
    are symbols, or calls have no fixed order.

    Args:
        leading: how many slots are not temporaries'.
        storage: the temporaries of these calls with everybody in memory of his own.
    """
    plain = all(isinstance(c, KernelCall) and c.strand is None for c in calls)
    if not plain or any(t.nbytes is None for t in storage.temps):
        return where
    lodging = _Lodging.of(calls, leading, where, storage)
    found = dict[Value, Place]()
    for host in sorted(lodging.hosts(), key=lambda h: (-lodging.blocks[h].nbytes, h)):
        found |= lodging.lodge(host)
    return {**where, **found} if found else where


@dataclass(slots=True)
class _Block:
    """Memory of a value, or of several that are written over each other: bytes, and the first and last step of use;
    `until` is the first value's last step."""

    first: int
    last: int
    nbytes: int
    until: int
    movable: bool = True
    values: list[Value] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Bytes of an element: places count elements."""
        return self.values[0].dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Use:
    """Bytes `begin` to `end` of a block are in use from step `first` to step `last`."""

    begin: int
    end: int
    first: int
    last: int


@dataclass(slots=True)
class _Lodging:
    """Blocks by the number of their first temporary; of those that several calls write parts of, when which part is in
    use."""

    steps: int
    blocks: dict[int, _Block]
    uses: dict[int, list[_Use]]

    @classmethod
    def of(cls, calls: Sequence[Call], leading: int, where: Mapping[Value, Place], storage: Storage) -> _Lodging:
        whose = roots(storage.temps)
        blocks: dict[int, _Block] = {}
        for k, t in zip(whose, storage.temps, strict=True):
            block = blocks.setdefault(k, _Block(t.first, t.last, 0, t.last))
            block.first, block.last = min(block.first, t.first), max(block.last, t.last)
            block.nbytes = max(block.nbytes, t.nbytes or 0)
            block.movable &= not t.per_thread
        touched: dict[int, list[_Use]] = {}
        known = set[Value]()
        for i, call in enumerate(calls):
            for value in call.args:
                slot = storage.slots[value] - leading
                if slot < 0:
                    continue
                base, offset = _place(value, where)
                begin, size = as_int(offset), as_int(value.type.size)
                assert begin is not None and size is not None, "sizes are known"
                width = value.dtype.itemsize
                touched.setdefault(whose[slot], []).append(_Use(begin * width, (begin + size) * width, i, i))
                if base not in known:
                    known.add(base)
                    blocks[whose[slot]].values.append(base)
        uses = {k: _segments(found) for k, found in touched.items()}
        return cls(len(calls), blocks, uses)

    def hosts(self) -> Iterator[int]:
        """Blocks of one value of which parts are in use later than others, or not so long."""
        for k, uses in self.uses.items():
            block = self.blocks[k]
            if block.nbytes >= LEAST and any((u.first, u.last) != (block.first, block.last) for u in uses):
                yield k

    def live(self, guests: Iterable[int] = (), host: int | None = None) -> list[int]:
        """Bytes in use at each step, without guests' own, but their host's from the first of them on."""
        inside = set(guests)
        change = [0] * (self.steps + 1)
        for k, block in self.blocks.items():
            if k in inside:
                continue
            lives = [block, *(self.blocks[g] for g in inside)] if k == host else [block]
            change[min(b.first for b in lives)] += block.nbytes
            change[block.last + 1] -= block.nbytes
        return list(accumulate(change[:-1]))

    def lodge(self, host: int) -> dict[Value, Place]:
        """Places of the guests of a host, in whose block they are from now on; none where that saves too little."""
        if host not in self.blocks:
            return {}
        live = self.live()
        most = max(live)
        full = list(accumulate((n >= FULL * most for n in live), initial=0))
        candidates = [
            k
            for k, b in self.blocks.items()
            if k != host and b.values and b.movable and b.nbytes and full[b.last + 1] > full[b.first]
            if b.last <= self.blocks[host].until and b.width == self.blocks[host].width
        ]
        found = self.search(host, candidates)
        if not found or max(self.live(found, host)) > most - most // WORTH:
            return {}
        (value,) = self.blocks[host].values[:1]
        result = {
            v: Place(value, const(at // v.dtype.itemsize)) for g, at in found.items() for v in self.blocks[g].values
        }
        for g in found:
            self.blocks[host].first = min(self.blocks[host].first, self.blocks.pop(g).first)
            self.uses.pop(g, None)
        return result

    def search(self, host: int, candidates: Sequence[int]) -> dict[int, int]:
        """Places of guests with which the fullest step needs little: from the best order on, what is live at the
        fullest step and has no place with the host is placed first, as long as that helps."""

        def fullest(places: Mapping[int, int]) -> list[int]:
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
                found = self.placed(host, moved)
                if fullest(found) < known:
                    order, best = moved, found
                    break
            else:
                break
        return best

    def orders(self, candidates: Sequence[int]) -> list[list[int]]:
        """Orders in which guests are placed: the largest first, those that stay longest, those that stay latest."""
        at = self.blocks
        keys = (
            lambda k: (-at[k].nbytes * (at[k].last - at[k].first + 1), k),
            lambda k: (-at[k].nbytes, k),
            lambda k: (-at[k].last, -at[k].nbytes, k),
        )
        return [sorted(candidates, key=key) for key in keys]

    def placed(self, host: int, order: Sequence[int]) -> dict[int, int]:
        """Guests with their first byte in the host, each in one of the gaps that hold it while it lives: there where
        the host itself needs its memory soonest, so that those who stay longer find the rest."""
        own, room, found = self.uses[host], self.blocks[host].nbytes, dict[int, int]()
        taken = list(own)

        def needed(guest: _Block, at: int) -> int:
            later = (u.first for u in own if u.first > guest.last and u.begin < at + guest.nbytes and at < u.end)
            return min(later, default=self.steps)

        for k in order:
            b = self.blocks[k]
            others = [u for u in taken if u.first <= b.last and b.first <= u.last]
            at = min(_ends(others, b.nbytes, room), key=lambda at: (needed(b, at), at), default=None)
            if at is not None:
                found[k] = at
                taken.append(_Use(at, at + b.nbytes, b.first, b.last))
        return found


def _place(value: Value, where: Mapping[Value, Place]) -> tuple[Value, Expr]:
    """The value in whose memory one stands, and the element of it at which it begins."""
    offset: Expr = const(0)
    while value in where:
        offset, value = offset + where[value].offset, where[value].base
    return value, offset


def _segments(touched: Sequence[_Use]) -> list[_Use]:
    """Between all ends of what is touched, the first and the last step that touch it; alike neighbours are one."""
    found: list[_Use] = []
    for begin, end in pairwise(sorted({x for u in touched for x in (u.begin, u.end)})):
        steps = [u.first for u in touched if u.begin < end and begin < u.end]
        if not steps:
            continue
        use = _Use(begin, end, min(steps), max(steps))
        if found and (found[-1].end, found[-1].first, found[-1].last) == (begin, use.first, use.last):
            use = _Use(found.pop().begin, end, use.first, use.last)
        found.append(use)
    return found


def _ends(taken: Sequence[_Use], size: int, room: int) -> Iterator[int]:
    """The first and the last place for `size` bytes, multiples of the alignment, in each gap between what is taken."""
    end = 0
    for begin, stop in (*sorted((u.begin, u.end) for u in taken), (room, room)):
        first, last = -(-end // ALIGNMENT) * ALIGNMENT, (begin - size) // ALIGNMENT * ALIGNMENT
        if first <= last:
            yield from {first, last}
        end = max(end, stop)


__all__ = ["LEAST", "with_guests"]
