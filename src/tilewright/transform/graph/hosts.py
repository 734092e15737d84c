"""Temporaries that stand in another value's memory while that is not in use there.

    gradients = concat(g0, g1, ..., g9) as a view        g9 is computed first, g0 last: before g0 is computed, an
                                                  ->      activation that the way back reads before stands in its part

A value that is put together in place has all of its memory from its first part on. Such a host takes guests: values that
die before those parts are written that they stand in, or are born after these were last read. Then the host's memory is
in use from its first guest on. Hosts are taken where the fullest step needs clearly less memory with them.
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
WORTH = 16
"""A host must save one part in so many of the fullest step's bytes."""
FULL = 0.7
"""Guests are live at a step with at least this share of the fullest step's bytes: where memory is free, values keep the
places that they have, near to each other."""


def with_guests(
    calls: Sequence[Call], leading: int, where: Mapping[Value, Place], storage: Storage
) -> Mapping[Value, Place]:
    """Where all values stand, guests with their hosts; `where` itself if nobody has guests. Sizes must be known, and the
    calls in one order: else there are none.

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
    """Memory of a value, or of several that are written over each other: bytes, and the first and last step of use."""

    first: int
    last: int
    nbytes: int
    movable: bool = True
    values: list[Value] = field(default_factory=list)


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
            block = blocks.setdefault(k, _Block(t.first, t.last, 0))
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
        """Bytes in use at each step, without guests' own, their host's from the first of them to the last."""
        inside = set(guests)
        change = [0] * (self.steps + 1)
        for k, block in self.blocks.items():
            if k in inside:
                continue
            lives = [block, *(self.blocks[g] for g in inside)] if k == host else [block]
            change[min(b.first for b in lives)] += block.nbytes
            change[max(b.last for b in lives) + 1] -= block.nbytes
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
        ]
        found = min(
            (self.placed(host, order) for order in self.orders(candidates)),
            key=lambda places: max(self.live(places, host)),
        )
        if not found or max(self.live(found, host)) > most - most // WORTH:
            return {}
        (value,) = self.blocks[host].values[:1]
        result = {v: Place(value, const(at // v.dtype.itemsize)) for g, at in found.items() for v in self.blocks[g].values}
        lives = [self.blocks[host], *(self.blocks.pop(g) for g in found)]
        self.blocks[host].first, self.blocks[host].last = min(b.first for b in lives), max(b.last for b in lives)
        for g in found:
            self.uses.pop(g, None)
        return result

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
        """Guests with their first byte in the host, each in the smallest gap that holds it while it lives."""
        uses, found = list(self.uses[host]), dict[int, int]()
        for k in order:
            b = self.blocks[k]
            at = _gap([u for u in uses if u.first <= b.last and b.first <= u.last], b.nbytes, self.blocks[host].nbytes)
            if at is not None:
                found[k] = at
                uses.append(_Use(at, at + b.nbytes, b.first, b.last))
        return found


def _place(value: Value, where: Mapping[Value, Place]) -> tuple[Value, Expr]:
    """The value in whose memory one stands, and the element of it at which it begins."""
    offset: Expr = const(0)
    while value in where:
        offset, value = offset + where[value].offset, where[value].base
    return value, offset


def _segments(touched: Sequence[_Use]) -> list[_Use]:
    """Between all ends of what is touched, the first and the last step that touch it; neighbours that are alike as one."""
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


def _gap(taken: Sequence[_Use], size: int, room: int) -> int | None:
    """Where the smallest gap between what is taken begins that holds `size` bytes at a multiple of the alignment."""
    end, best, least = 0, None, room + 1
    for begin, stop in (*sorted((u.begin, u.end) for u in taken), (room, room)):
        start = -(-end // ALIGNMENT) * ALIGNMENT
        if size <= begin - start < least:
            best, least = start, begin - start
        end = max(end, stop)
    return best


__all__ = ["with_guests"]
