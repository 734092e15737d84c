"""The cost of threads on this machine: a barrier among them, and handing them a call."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import partial

from tilewright.native.assembler import I64, PTR, VOID, Module
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.runtime.layout import function
from tilewright.runtime.threads import pool, supported

_BARRIERS = 100
"""The number of barriers in one round of the measurement."""
_REGIONS = 100
"""The number of parallel regions in one round of the measurement."""
_ROUNDS = 201
"""The number of rounds: many short ones, so that some are undisturbed even on a shared machine."""


def barrier_seconds(threads: int) -> float:
    """Seconds of one barrier among `threads` threads that all wait for it, best of several rounds; 0.0 for one
    thread or where there is no thread pool."""
    if threads <= 1 or not supported():
        return 0.0
    shared = pool()
    library = Library({"probe": compile_text(_text(_BARRIERS))}, ["probe"], {"tw_barrier": shared.barrier})
    parallel = function(shared.parallel, None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    several = _best(lambda: parallel(library["probe"], None, None, threads))
    return several / _BARRIERS


def handover_seconds(threads: int) -> float:
    """Seconds by which an empty parallel region takes longer with `threads` threads than with one; the best of several
    rounds of many regions, so that workers still spin when the next begins; 0.0 as for `barrier_seconds`."""
    if threads <= 1 or not supported():
        return 0.0
    library = Library({"probe": compile_text(_regions_text(_REGIONS))}, ["regions"], {"tw_parallel": pool().parallel})
    regions = function(library["regions"], None, ctypes.c_int64)
    one, several = (_best(partial(regions, n)) for n in (1, threads))
    return max(several - one, 0.0) / _REGIONS


def _best(call: Callable[[], None]) -> float:
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _regions_text(count: int) -> str:
    """The LLVM text of `void regions(i64 nthreads)`, which runs `count` empty parallel regions."""
    m = Module(host_triple())
    params = [("slots", PTR), ("dims", PTR), ("tid", I64), ("nthreads", I64), ("barrier", PTR)]
    with m.function("nothing", VOID, params, local=True) as (f, _):
        f.ret()
    with m.function("regions", VOID, [("nthreads", I64)]) as (f, (nthreads,)):
        null = f.value(0, PTR)
        with f.each(f.value(count, I64)):
            f.call(VOID, "tw_parallel", f.symbol("nothing"), null, null, nthreads)
        f.ret()
    return m.text()


def _text(count: int) -> str:
    """The LLVM text of `void probe(ptr slots, ptr dims, i64 tid, i64 nthreads, ptr barrier)`, which passes `count`
    barriers."""
    m = Module(host_triple())
    params = [("slots", PTR), ("dims", PTR), ("tid", I64), ("nthreads", I64), ("barrier", PTR)]
    with m.function("probe", VOID, params) as (f, (_slots, _dims, _tid, nthreads, barrier)):
        with f.each(f.value(count, I64)):
            f.call(VOID, "tw_barrier", barrier, nthreads)
        f.ret()
    return m.text()
