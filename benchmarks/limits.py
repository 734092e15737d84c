"""The limits of the machine, as contenders of a race: the operations of a case at peak, its bytes moved and nothing
else.

A shared machine is 1.3 to 2 times slower in one minute than in the next, so a ceiling that was measured at the start
says little later. Here the ceiling takes its turn beside what is measured, in a process of its own, and the share of
the limit is a paired ratio like any other. A call does `1 / scale` times the work of a case, long enough to be timed.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from tilewright.measure.contender import Prepared
from tilewright.measure.probes import MOVE_BYTES, Moves, Probes, Way
from tilewright.support import machine

_FLOPS = 100_000_000
"""Operations of a call on one thread: a millisecond or so."""
_BYTES = 32 << 20
"""Bytes of a call at least, by going over a small buffer again and again: as long."""
_MAX_STREAMS = 4
_DISTANCES = (0, 1024)
"""Bytes that are asked for in advance, in the ways that are tried."""
_TRIALS = 3
_HUGE = 2 << 20
"""Bytes of a large page."""


def compute(flops: int, threads: int) -> Prepared:
    """Independent multiply-adds in registers, on each of `threads` threads."""
    probes = Probes(machine.describe())
    rounds = max(1, _FLOPS // probes.flops)
    call = _together(threads, lambda _: probes.fma(rounds, 0.5, 1.0))
    return Prepared(call, info={"scale": flops / (rounds * probes.flops * threads)})


def moving(read: int, written: int, threads: int) -> Prepared:
    """A call that moves as many bytes as a case has, read and written in its proportions (as near as a few equal
    streams come), in whichever way a short trial finds fastest: streams, prefetching, past the caches or not."""
    result = ways(read, written)
    moves = Moves(machine.describe(), result)
    address, owner = _memory(read + written + MOVE_BYTES * 2 * _MAX_STREAMS * threads)
    trials = [_mover(moves, way, address, read + written, threads) for way in result]
    times = [float("inf")] * len(result)
    for _ in range(_TRIALS):
        for k, (call, passes) in enumerate(trials):
            start = time.perf_counter()
            call()
            times[k] = min(times[k], (time.perf_counter() - start) / passes)
    best = min(range(len(result)), key=times.__getitem__)
    call, passes = trials[best]
    keep = (moves, owner)
    return Prepared(lambda: (call(), keep), info={"scale": 1 / passes, "way": str(result[best])})


def ways(read: int, written: int) -> list[Way]:
    """The ways that are tried for bytes read and bytes written."""
    share = written / max(1, read)
    pairs = [(r, w) for r, w in product(range(1, _MAX_STREAMS + 1), range(_MAX_STREAMS + 1))]
    error = {pair: abs(pair[1] / pair[0] - min(share, _MAX_STREAMS)) for pair in pairs}
    least = min(error.values())
    closest = [pair for pair in pairs if error[pair] == least]
    return [
        Way(r, w, following, past)
        for r, w in closest
        for following in _DISTANCES
        for past in ((False, True) if w else (False,))
    ]


def _mover(moves: Moves, way: Way, address: int, nbytes: int, threads: int) -> tuple[Callable[[], object], int]:
    """A call that moves `nbytes` so many times, and how many."""
    streams = way.reads + way.writes
    rounds = max(1, nbytes // (streams * MOVE_BYTES * threads))
    part = rounds * MOVE_BYTES * threads
    passes = max(1, _BYTES * threads // nbytes)
    move = moves.by_way[way]

    def mine(thread: int) -> object:
        start = address + thread * rounds * MOVE_BYTES
        return move(start, start + way.reads * part, part, rounds, passes)

    return _together(threads, mine), passes


def _memory(nbytes: int) -> tuple[int, mmap.mmap]:
    """An address with so much memory after it and its owner; in large pages where the system has them, each written
    once, for pages that were only read are all the same one."""
    owner = mmap.mmap(-1, nbytes + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    owner.madvise(getattr(mmap, "MADV_HUGEPAGE", mmap.MADV_NORMAL))
    start = ctypes.addressof(ctypes.c_char.from_buffer(owner))
    address = start + -start % _HUGE
    ctypes.memset(address, 1, nbytes)
    return address, owner


def _together(threads: int, work: Callable[[int], object]) -> Callable[[], object]:
    if threads == 1:
        return lambda: work(0)
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(work, range(threads)))
