"""The memory planner: live intervals and sizes to offsets in one arena, close to the largest sum of live bytes.

This is offline dynamic storage allocation, which is NP-hard; on programs' intervals simple orders come within a few
percent. Blocks are placed best-fit in several orders; the best order is improved by moving blocks that reach the top to
its front, and then by random moves, and the search stops as soon as the lower bound is met.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from random import Random

from tilewright.runtime.specs import TempSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error

ALIGNMENT = 64
"""The alignment of blocks in the arena in bytes: a cache line."""
_SEARCH_STEPS = 1000
"""The most orders of blocks that the search tries."""
_SEARCH_BUDGET = 1_000_000
"""The most pairs of blocks that the search compares in all."""
_FRONT = 24
"""Moved blocks go to one of so many first positions of an order, since the blocks that are placed first matter most."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A temporary of `nbytes` bytes, live from step `first` to `last` inclusive. `alias` is the number of an earlier
    interval whose memory it continues to use."""

    first: int
    last: int
    nbytes: int
    alias: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The offsets of blocks in an arena, and the arena's size.

    Attributes:
        live: the largest sum of live bytes at a step, before rounding to the alignment.
    """

    offsets: tuple[int, ...]
    arena: int
    live: int

    @property
    def ratio(self) -> float:
        """The arena's size divided by the lower bound; 1.0 is perfect."""
        return self.arena / self.live if self.live else 1.0


@dataclass(slots=True)
class Block:
    """A piece of memory, of one or more intervals that alias, live from step `first` to `last` inclusive."""

    first: int
    last: int
    nbytes: int


def temp_intervals(temps: Sequence[TempSpec], sizes: Sequence[int], threads: int) -> list[Interval]:
    """The temporaries `temps` of a program as intervals for `plan`. `sizes` are their bytes for one thread, multiplied
    by `threads` where each thread has its own."""
    return [
        Interval(t.first, t.last, size * (threads if t.per_thread else 1), t.alias)
        for t, size in zip(temps, sizes, strict=True)
    ]


def plan(intervals: Sequence[Interval]) -> Plan:
    """Place blocks so that no two that are live at the same step overlap, each at a multiple of 64 bytes.

    A block with an `alias` shares its memory: together they are live from the first to the last step of either, which
    is exact for an operation in place (one ends where the other begins).
    """
    for k, x in enumerate(intervals):
        if x.first > x.last or x.nbytes < 0 or (x.alias is not None and not 0 <= x.alias < k):
            raise Error("not a block that can be placed", where=f"block {k}", got=str(x))
    whose = roots(intervals)
    blocks: dict[int, Block] = {}
    for k, x in enumerate(intervals):
        size = -(-x.nbytes // ALIGNMENT) * ALIGNMENT
        block = blocks.setdefault(whose[k], Block(x.first, x.last, size))
        block.first, block.last = min(block.first, x.first), max(block.last, x.last)
        block.nbytes = max(block.nbytes, size)
    live = _largest_sum(_live_blocks(intervals, whose))
    keys = [k for k, b in blocks.items() if b.nbytes]
    offsets, arena = _search([blocks[k] for k in keys])
    at = dict(zip(keys, offsets, strict=True))
    at |= _where_others_stand(blocks, at, arena)
    return Plan(tuple(at[r] for r in whose), arena, live)


def _where_others_stand(blocks: dict[int, Block], at: dict[int, int], arena: int) -> dict[int, int]:
    """Offsets for the `blocks` that are empty at these sizes; `at` has the offsets of the other blocks. A block with
    the same lifetime as one that is not empty gets the offset of that one: at other sizes it is such a block that has
    elements, as with workspaces of different versions of a kernel. The remaining blocks are put above all others
    (`arena`), so that they move no other block (`places.py`)."""
    places: dict[tuple[int, int], list[int]] = {}
    for k, offset in at.items():
        places.setdefault((blocks[k].first, blocks[k].last), []).append(offset)
    result: dict[int, int] = {}
    for k, b in blocks.items():
        if k not in at:
            own = places.setdefault((b.first, b.last), [])
            result[k] = own.pop(0) if own else arena
    return result


def roots(intervals: Sequence[Interval | TempSpec]) -> list[int]:
    """For each interval the number of the interval at the start of its chain of aliases."""
    results: list[int] = []
    for k, x in enumerate(intervals):
        results.append(k if x.alias is None else results[x.alias])
    return results


def least_bytes(intervals: Sequence[Interval]) -> int:
    """The largest sum of bytes that are live at one step, a lower bound of every arena."""
    return _largest_sum(_live_blocks(intervals, roots(intervals)))


def _live_blocks(intervals: Sequence[Interval], whose: Sequence[int]) -> Iterable[Block]:
    """The memories of all intervals as blocks; `whose[k]` is the number of the memory that interval k uses. A memory of
    several intervals has one block for each range of steps in which the same intervals are live, and a block is as
    large as the largest of these."""
    groups: dict[int, list[Interval]] = {}
    for k, x in enumerate(intervals):
        groups.setdefault(whose[k], []).append(x)
    for group in groups.values():
        if len(group) == 1:
            yield Block(group[0].first, group[0].last, group[0].nbytes)
            continue
        points = sorted({x.first for x in group} | {x.last + 1 for x in group})
        for start, end in pairwise(points):
            most = max((x.nbytes for x in group if x.first <= start <= x.last), default=0)
            yield Block(start, end - 1, most)


def _largest_sum(blocks: Iterable[Block]) -> int:
    change: dict[int, int] = {}
    for b in blocks:
        change[b.first] = change.get(b.first, 0) + b.nbytes
        change[b.last + 1] = change.get(b.last + 1, 0) - b.nbytes
    now = most = 0
    for step in sorted(change):
        now += change[step]
        most = max(most, now)
    return most


def _search(blocks: list[Block]) -> tuple[list[int], int]:
    if not blocks:
        return [], 0
    goal = _largest_sum(blocks)
    conflicts = conflicts_of(blocks)
    n = range(len(blocks))
    orders = [
        sorted(n, key=lambda k: (-blocks[k].nbytes, blocks[k].first)),
        sorted(n, key=lambda k: (-blocks[k].nbytes * (blocks[k].last - blocks[k].first + 1), blocks[k].first)),
        sorted(n, key=lambda k: (blocks[k].first - blocks[k].last, -blocks[k].nbytes)),
        sorted(n, key=lambda k: (blocks[k].first, -blocks[k].nbytes)),
        _by_pressure(blocks),
    ]
    best: tuple[list[int], int] = [], 0
    best_order: list[int] = []
    for order in orders:
        offsets, top = _place(order, blocks, conflicts)
        if not best_order or top < best[1]:
            best, best_order = (offsets, top), order
        if best[1] <= goal:
            return best
    best, best_order = _raise_the_top(best, best_order, blocks, conflicts, goal)
    return _wander(best, best_order, blocks, conflicts, goal)


def _by_pressure(blocks: list[Block]) -> list[int]:
    """The numbers of all blocks, ordered by memory pressure: first the blocks that are live at the step with the most
    live bytes, then the blocks at the next step by that measure, and so on; within a step the largest first."""
    steps = sorted({b.first for b in blocks})
    spans = [(bisect_left(steps, b.first), bisect_right(steps, b.last)) for b in blocks]
    change = [0] * (len(steps) + 1)
    for b, (begin, end) in zip(blocks, spans, strict=True):
        change[begin] += b.nbytes
        change[end] -= b.nbytes
    load = list(accumulate(change[:-1]))
    rank = [0] * len(steps)
    for position, step in enumerate(sorted(range(len(steps)), key=lambda step: -load[step])):
        rank[step] = position
    best = _least_of_ranges(rank, spans)
    return sorted(range(len(blocks)), key=lambda k: (best[k], -blocks[k].nbytes))


def _least_of_ranges(values: list[int], ranges: Iterable[tuple[int, int]]) -> list[int]:
    """The least of `values[begin:end]` for each range, none of which is empty: a table of the minimum of each run of 2,
    4, 8, ... values answers each query by two overlapping runs."""
    levels = [values]
    while 2 ** len(levels) <= len(values):
        below, half = levels[-1], 2 ** (len(levels) - 1)
        levels.append([min(pair) for pair in zip(below, below[half:], strict=False)])
    return [
        min(level[begin], level[end - 2**k])
        for begin, end in ranges
        for k in ((end - begin).bit_length() - 1,)
        for level in (levels[k],)
    ]


def conflicts_of(blocks: Sequence[Block]) -> list[list[int]]:
    """For each block, the others that are live at some step of its life."""
    result: list[list[int]] = [[] for _ in blocks]
    active: list[tuple[int, int]] = []
    for k in sorted(range(len(blocks)), key=lambda k: blocks[k].first):
        active = [a for a in active if a[0] >= blocks[k].first]
        for _, other in active:
            result[k].append(other)
            result[other].append(k)
        insort(active, (blocks[k].last, k))
    return result


def _place(order: Sequence[int], blocks: list[Block], conflicts: list[list[int]]) -> tuple[list[int], int]:
    """(offsets by block, arena size) by best fit: in this order each block goes into the smallest gap that is large
    enough between the blocks placed before it that conflict with it, else on top of these."""
    offsets = [-1] * len(blocks)
    top = 0
    for k in order:
        size = blocks[k].nbytes
        occupied = sorted((offsets[o], offsets[o] + blocks[o].nbytes) for o in conflicts[k] if offsets[o] >= 0)
        end, best, best_gap = 0, -1, 1 << 62
        for start, stop in occupied:
            if size <= start - end < best_gap:
                best, best_gap = end, start - end
            end = max(end, stop)
        offsets[k] = best if best >= 0 else end
        top = max(top, offsets[k] + size)
    return offsets, top


def _raise_the_top(
    best: tuple[list[int], int], order: list[int], blocks: list[Block], conflicts: list[list[int]], goal: int
) -> tuple[tuple[list[int], int], list[int]]:
    """(an improved placement, its order of blocks) from `best`, (offsets, size of the arena), which `order` led to.
    Repeatedly the block that reaches the top of the arena moves to the front of the order, and all are placed again,
    until that stops helping or the arena is no larger than `goal` bytes. `conflicts`: for each block the blocks that
    are live at the same time."""
    current, seen = order, {tuple(order)}
    latest = best
    for _ in range(_steps(conflicts)):
        offsets = latest[0]
        highest = max(range(len(blocks)), key=lambda k: (offsets[k] + blocks[k].nbytes, blocks[k].nbytes))
        current = [highest, *(k for k in current if k != highest)]
        if tuple(current) in seen:
            break
        seen.add(tuple(current))
        latest = _place(current, blocks, conflicts)
        if latest[1] < best[1]:
            best, order = latest, current
        if best[1] <= goal:
            break
    return best, order


def _wander(
    best: tuple[list[int], int], order: list[int], blocks: list[Block], conflicts: list[list[int]], goal: int
) -> tuple[list[int], int]:
    """An improved placement, (offsets, size of the arena), from `best`, which `order` led to, by local search:
    repeatedly the highest block, or one that is live at the same time (`conflicts`), moves to a random early position
    of the order, which is retained if the arena does not grow. The search ends within a hundredth of `goal` bytes. The
    seed is fixed, so that plans are reproducible."""
    random = Random(len(order))
    for _ in range(_steps(conflicts)):
        if best[1] <= goal + goal // 100:
            break
        # Only blocks that meet the highest one can bring it down.
        highest = max(range(len(blocks)), key=lambda k: best[0][k] + blocks[k].nbytes)
        block = random.choice([highest, *conflicts[highest]])
        current = [k for k in order if k != block]
        current.insert(random.randrange(min(len(current) + 1, _FRONT)), block)
        latest = _place(current, blocks, conflicts)
        if latest[1] <= best[1]:
            best, order = latest, current
    return best


def _steps(conflicts: list[list[int]]) -> int:
    """How many placements a search may try, so that it takes a few milliseconds for blocks with these conflicts."""
    return min(_SEARCH_STEPS, max(4, _SEARCH_BUDGET // (sum(map(len, conflicts)) + len(conflicts))))
