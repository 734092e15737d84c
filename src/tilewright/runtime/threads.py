"""The thread pool, as native code: one per process, shared by all models, with no worker until one is needed.

A *region* is one parallel call: the caller is thread 0, workers are 1..n-1, and all of them call the same function. One
region runs at a time. A caller that finds the pool busy runs its function alone, as thread 0 of 1: with several callers
the cores are busy anyway, and no call waits after a slower model.

`epoch` announces a region. It holds a counter and, in its low byte, the number of threads, so that a worker learns
both at once and those who take no part need not read the job. A worker spins some tens of microseconds for the next
epoch and then sleeps on a futex of its own. Workers do not survive a fork: the child forgets them and starts others
when it needs them.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from functools import cache
from typing import Any

from tilewright.native.assembler import I32, I64, PTR, VOID, Function, Module, Value
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.runtime.layout import Struct, function
from tilewright.support.errors import TargetError

MAX_THREADS = 128
"""The most threads of a call."""
SPINS_BEFORE_YIELD = 100
"""Reads of a word before a spinning thread yields its core."""
SPINS_BEFORE_SLEEP = 300
"""Reads of a word before a worker sleeps. One takes 20 to 40 ns; after the first hundred each yields the core, which
takes a fraction of a microsecond if no other thread is ready. Where threads outnumber cores, the thread waited for may
be queued after the waiting one: with 2000 spins before the first yield, barriers on a machine overcommitted four times
took five times as long."""
WEB_SPINS_BEFORE_YIELD = 5000
"""Reads of a word before a WebAssembly thread yields its core: without a pause instruction a read takes 1 to 2 ns, and
yielding is a sleep of some 50 µs."""
WEB_SPINS_BEFORE_SLEEP = 5010
"""Reads of a word before a WebAssembly worker sleeps: it has yielded its core for half a millisecond then."""

# Each group has a cache line (or two) of its own: workers poll `epoch`, and writing `done` must not disturb them.
_EPOCH = Struct("epoch")
_JOB = Struct("function*", "slots*", "dims*", "lock", "workers", "stop", offset=128)
_DONE = Struct("done", offset=256)
_BARRIER = Struct("count", "phase", offset=384)
_WORKERS = 512
"""The offset of the workers in the pool, in bytes."""
_WORKER = Struct("asleep", "seen", "handle*")
_WORKER_SIZE = 128
"""Bytes of a worker: two cache lines, as cores fetch lines in pairs."""
_POOL_SIZE = _WORKERS + MAX_THREADS * _WORKER_SIZE
"""Bytes of the pool."""

FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE = 128, 129
SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}


def _pool(f: Function) -> Value:
    return f.symbol("tw_pool")


def _worker(f: Function, index: Value) -> Value:
    return _pool(f) + (index * _WORKER_SIZE + _WORKERS)


def _is_web(f: Function) -> bool:
    return f.module.is_web


def _spins_before_yield(f: Function) -> int:
    return WEB_SPINS_BEFORE_YIELD if _is_web(f) else SPINS_BEFORE_YIELD


def _spins_before_sleep(f: Function) -> int:
    return WEB_SPINS_BEFORE_SLEEP if _is_web(f) else SPINS_BEFORE_SLEEP


def futex(f: Function, word: Value, operation: int, value: Value | int, timeout: Value | None = None) -> None:
    """Emit a system call (futex) with the number `operation`, which sleeps while a word equals `value`, for at most
    `timeout` (the address of a struct timespec; None: without end), or wakes `value` threads."""
    if _is_web(f) and isinstance(value, int):
        if operation == FUTEX_WAIT_PRIVATE:
            f.call(I32, "llvm.wasm.memory.atomic.wait32", word, (I32, value), (I64, -1))
        else:
            f.call(I32, "llvm.wasm.memory.atomic.notify", word, (I32, value))
        return
    number = SYS_FUTEX[f.module.triple.split("-")[0]]
    null = f.value(0, PTR)
    f.call(I64, "syscall", (I64, number), word, (I64, operation), f.value(value, I64), timeout or null, null, (I64, 0))


def _spin_while(f: Function, pointer: Value, value: Value, type: str) -> None:
    """Emit a loop that waits while the word at `pointer`, of LLVM's integer type `type`, equals `value`, and yields the
    processor from time to time."""
    spins = f.var(I64, 0)
    with f.loop() as loop:
        loop.leave_if(f.load(type, pointer, order="acquire").ne(value))
        f.pause()
        spins.add(1)
        with f.when(spins.get() > _spins_before_yield(f)):
            f.call(I32, "sched_yield")


def _barrier(m: Module) -> None:
    # The last to arrive resets the count and turns the phase; the others wait for the phase to turn.
    with m.function("tw_barrier", VOID, [("barrier", PTR), ("nthreads", I64)]) as (f, (barrier, nthreads)):
        with f.when(nthreads <= 1):
            f.ret()
        base = barrier + (-_BARRIER.count)
        phase = f.load(I64, base, _BARRIER.phase, order="acquire")
        arrived = f.add_atomic(barrier, 1)
        with f.when(arrived.eq(nthreads - 1)):
            f.put(0, I64, barrier, order="monotonic")
            f.store(phase + 1, base, _BARRIER.phase, order="release")
            f.ret()
        _spin_while(f, base + _BARRIER.phase, phase, I64)
        f.ret()


def _run_job(f: Function, tid: Value, nthreads: Value) -> None:
    pool = _pool(f)
    job, slots, dims = (f.load(PTR, pool, at) for at in (_JOB.function, _JOB.slots, _JOB.dims))
    f.call(VOID, job, slots, dims, tid, nthreads, pool + _BARRIER.count)


def _worker_main(m: Module) -> None:
    with m.function("tw_worker", PTR, [("arg", PTR)], local=not m.is_web) as (f, (arg,)):
        index = arg.cast(I64)
        pool, me = _pool(f), _worker(f, index)
        seen = f.var(I32, me[_WORKER.seen].cast(I32))
        asleep = me + _WORKER.asleep
        with f.loop() as forever:
            spins = f.var(I64, 0)
            spins.set(0)
            with f.loop() as spinning:
                spinning.leave_if(f.load(I32, pool, order="acquire").ne(seen.get()))
                f.pause()
                spins.add(1)
                with f.when(spins.get() > _spins_before_yield(f)):
                    f.call(I32, "sched_yield")
                with f.when(spins.get() >= _spins_before_sleep(f)):
                    # Announce, look once more, sleep: the dispatcher changes the epoch first and then looks here.
                    f.put(1, I32, asleep, order="seq_cst")
                    with f.when(f.load(I32, pool, order="seq_cst").eq(seen.get())):
                        futex(f, asleep, FUTEX_WAIT_PRIVATE, 1)
                    f.put(0, I32, asleep, order="seq_cst")
                    spins.set(_spins_before_sleep(f) - 1)
            now = f.load(I32, pool, order="acquire")
            seen.set(now)
            forever.leave_if(f.load(I64, pool, _JOB.stop, order="acquire").ne(0))
            nthreads = (now & 255).cast(I64)
            with f.when(index < nthreads):
                _run_job(f, index, nthreads)
                f.add_atomic(pool + _DONE.done, 1)
        f.ret(0, PTR)


def _wake(f: Function, index: Value) -> None:
    asleep = _worker(f, index) + _WORKER.asleep
    with f.when(f.load(I32, asleep, order="seq_cst").ne(0)):
        f.put(0, I32, asleep, order="seq_cst")
        futex(f, asleep, FUTEX_WAKE_PRIVATE, 1)


def _next_epoch(f: Function, nthreads: Value) -> None:
    pool = _pool(f)
    counter = (f.load(I32, pool) & ~255) + 256
    f.store(counter | nthreads.cast(I32), pool, order="seq_cst")


def _start_workers(f: Function, wanted: Value) -> None:
    """Emit code that starts workers until `wanted` run, or the system refuses more."""
    pool = _pool(f)
    with f.loop() as loop:
        index = pool[_JOB.workers] + 1
        loop.leave_if(index > wanted)
        me = _worker(f, index)
        me[_WORKER.seen] = f.load(I32, pool).cast(I64)
        me[_WORKER.asleep] = 0
        failed = f.call(
            I32, "pthread_create", me + _WORKER.handle, f.value(0, PTR), f.symbol("tw_worker"), index.cast(PTR)
        )
        loop.leave_if(failed.ne(0))
        pool[_JOB.workers] = index


def _parallel(m: Module) -> None:
    params = [("fn", PTR), ("slots", PTR), ("dims", PTR), ("nthreads", I64)]
    with m.function("tw_parallel", VOID, params) as (f, (fn, slots, dims, nthreads)):
        pool = _pool(f)
        threads = f.var(I64, 1)
        lock = pool + _JOB.lock
        with f.when(nthreads > 1), f.when(f.swap_if(lock, 0, 1)):
            threads.set(nthreads)
            if not _is_web(f):
                _start_workers(f, nthreads - 1)
            available = pool[_JOB.workers] + 1
            with f.when(available < nthreads):
                threads.set(available)
            with f.when(threads.get() <= 1):
                f.put(0, I64, lock, order="release")
        n = threads.get()
        with f.when(n <= 1):
            f.call(VOID, fn, slots, dims, (I64, 0), (I64, 1), f.value(0, PTR))
            f.ret()
        for value, at in ((fn, _JOB.function), (slots, _JOB.slots), (dims, _JOB.dims)):
            pool[at] = value
        for at in (_DONE.done, _BARRIER.count):
            pool[at] = 0
        _next_epoch(f, n)
        with f.each(n - 1) as i:
            _wake(f, i + 1)
        _run_job(f, f.value(0, I64), n)
        spins = f.var(I64, 0)
        with f.loop() as loop:
            loop.leave_if(f.load(I64, pool, _DONE.done, order="acquire") >= n - 1)
            f.pause()
            spins.add(1)
            with f.when(spins.get() > _spins_before_yield(f)):
                f.call(I32, "sched_yield")
        f.put(0, I64, lock, order="release")
        f.ret()


def _control(m: Module) -> None:
    with m.function("tw_pool_workers", I64, []) as (f, _):
        f.ret(_pool(f)[_JOB.workers])
    with m.function("tw_pool_forget", VOID, []) as (f, _):
        for at in (_JOB.workers, _JOB.lock, _BARRIER.count):
            _pool(f)[at] = 0
        f.ret()
    with m.function("tw_pool_stop", I64, []) as (f, _):
        # Ends the workers; gives 0 if a region is running, which then keeps them.
        pool = _pool(f)
        with f.when(f.swap_if(pool + _JOB.lock, 0, 1).eq(0)):
            f.ret(0)
        f.put(1, I64, pool, _JOB.stop, order="seq_cst")
        _next_epoch(f, f.value(0, I64))
        workers = pool[_JOB.workers]
        with f.each(workers) as i:
            _wake(f, i + 1)
        with f.each(workers) as i:
            f.call(I32, "pthread_join", _worker(f, i + 1)[_WORKER.handle], f.value(0, PTR))
        for at in (_JOB.workers, _JOB.stop):
            pool[at] = 0
        f.put(0, I64, pool, _JOB.lock, order="seq_cst")
        f.ret(1)


def _started(m: Module) -> None:
    """Define `tw_pool_started`: record that workers 1 to `count`, which the host has started, exist."""
    with m.function("tw_pool_started", VOID, [("count", I64)]) as (f, (count,)):
        _pool(f)[_JOB.workers] = count
        f.ret()


def pool_text() -> str:
    """The pool's LLVM text for this machine."""
    return pool_text_of(host_triple())


def pool_text_of(triple: str) -> str:
    """The pool's LLVM text for a machine with Linux, of an architecture in SYS_FUTEX, or for WebAssembly.

    On WebAssembly each worker is an instance of the module in a thread of its host, which calls `tw_worker` with the
    worker's number, and reports the number of workers to `tw_pool_started`. Workers sleep by `memory.atomic.wait32`,
    and yield by the imported function `sched_yield`.
    """
    m = Module(triple)
    m.variable("tw_pool", _POOL_SIZE)
    for part in (_barrier, _worker_main, _parallel, _started if m.is_web else _control):
        part(m)
    return m.text()


def _serial_text() -> str:
    """LLVM text of the functions of a thread pool for machines without one: a parallel region runs on its caller, and a
    barrier does nothing."""
    m = Module(host_triple())
    with m.function("tw_barrier", VOID, [("barrier", PTR), ("nthreads", I64)]) as (f, _):
        f.ret()
    params = [("fn", PTR), ("slots", PTR), ("dims", PTR), ("nthreads", I64)]
    with m.function("tw_parallel", VOID, params) as (f, (fn, slots, dims, _)):
        f.call(VOID, fn, slots, dims, (I64, 0), (I64, 1), f.value(0, PTR))
        f.ret()
    return m.text()


def supported() -> bool:
    """Whether this system has a pool."""
    return sys.platform == "linux" and host_triple().split("-")[0] in SYS_FUTEX


def pool_code() -> bytes:
    """The pool's object code, or that of the serial functions where no pool is supported."""
    return compile_text(pool_text if supported() else _serial_text)


class Pool:
    """The thread pool of this process."""

    def __init__(self) -> None:
        if not supported():
            self._library = Library({"serial": pool_code()}, ["tw_barrier", "tw_parallel"])
        else:
            names = ["tw_barrier", "tw_parallel", "tw_pool_workers", "tw_pool_forget", "tw_pool_stop"]
            self._library = Library({"pool": pool_code()}, names)
            self._workers = function(self._library["tw_pool_workers"], ctypes.c_int64)
            self._stop = function(self._library["tw_pool_stop"], ctypes.c_int64)
            os.register_at_fork(after_in_child=function(self._library["tw_pool_forget"], None))
            atexit.register(self.stop)
        self._library.keep_forever()
        self.barrier: int = self._library["tw_barrier"]
        self.parallel: int = self._library["tw_parallel"]

    @property
    def workers(self) -> int:
        """The number of workers that are running."""
        return int(self._workers()) if supported() else 0

    def stop(self) -> bool:
        """End the workers unless a region is running; the next region starts them again."""
        return not supported() or bool(self._stop())


@cache
def pool() -> Pool:
    """The pool, linked at first use."""
    return Pool()


def check_threads(threads: Any) -> int:
    """A valid number of threads. Raises TargetError if this machine cannot have so many."""
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= MAX_THREADS:
        raise TargetError("not a number of threads", expected=f"1 to {MAX_THREADS}", got=repr(threads))
    if threads > 1 and not supported():
        raise TargetError("there is no thread pool for this system yet", expected="threads=1", got=threads)
    return threads
