"""Native code of an engine: the queues of `queues.py` once more, the operations that may run, and the workers' loop.

Everything of an engine changes under one lock, a futex, that is held for some tens of nanoseconds; no Python object is
touched. A native operation is a function `i64 (ptr argument)`, which gives 0 unless it has failed. An operation without
a native function is handed by a worker to Python, which runs it and reports its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.native.assembler import I1, I32, I64, PTR, VOID, Function, Module, Value
from tilewright.native.link import host_triple
from tilewright.runtime.bound import BOUND, NO_EXECUTOR
from tilewright.runtime.layout import Struct
from tilewright.runtime.limits import now
from tilewright.runtime.threads import FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE, futex

ENGINE = Struct("lock", "pushed", "free*", "finished*", "heap*", "count", "room", "recording")
SIGNALS = Struct("bell", "asleep", "ended", "stop", "heard", "waiters", "all", offset=128)
"""The layout of the words by which threads wake each other. Sleeping workers, `asleep` in number, wait for a change of
`bell`. Callers wait for a change of `heard`: `waiters` of them for one operation, `all` for all operations. `ended` is
the number of operations that have ended, and `stop` tells workers to return."""
ENGINE_SIZE = 256

VARIABLE = Struct("head*", "tail*", "readers", "writing", "version", "failure", "deleted")
"""The layout of a variable: `head` and `tail` are those of its queue of waiting entries, `failure` is the failure that
the variable carries."""
VARIABLE_SIZE = 64

OPERATION = Struct(
    "function*", "argument*", "token", "priority", "clears", "reads", "writes",
    "number", "waiting", "failure", "done", "begin", "end", "worker", "next*", "room",
)  # fmt: skip
"""The layout of the record of an operation. `token` is Python's reference to it; a record without one is freed when the
operation has ended. After the record come `room` entries for its variables, those that it only reads first."""
ENTRY = Struct("variable*", "next*", "operation*", "writes")
REQUEST = Struct("function", "argument", "token", "priority", "clears", "reads", "writes", "deletes*")
"""The layout of an operation to be pushed. The addresses of its variables follow, each once, those that it reads first;
`deletes` is the address of one to be deleted, or 0."""

NO_MEMORY, CLOSED, DELETED = 0, 1, 2
"""The results of `tw_engine_push` that are not an address but a reason why there is none."""
SMALL = 8
"""The largest number of variables of an operation whose memory is retained for later operations; memory of larger ones
is freed."""
LOOKS = 100
"""The number of times that a thread looks at a word before it sleeps: some microseconds."""
STATUS_BITS = 16
"""The number of low bits of a failure that hold its status; above them is the number of the operation that failed, plus
one."""


@contextmanager
def _locked(f: Function, engine: Value) -> Iterator[None]:
    f.call(VOID, "tw_engine_lock", engine)
    yield
    f.call(VOID, "tw_engine_unlock", engine)


def _lock(m: Module) -> None:
    """Define the functions of a lock, a word: 0 free, 1 locked, 2 locked with sleeping threads (Drepper, Futexes Are
    Tricky)."""
    with m.function("tw_engine_lock", VOID, [("engine", PTR)], local=True) as (f, (word,)):
        with f.each(LOOKS), f.when(f.load(I32, word, order="monotonic").eq(0)):
            with f.when(f.swap_if(word, 0, 1, I32)):
                f.ret()
            f.pause()
        with f.loop() as taking:
            taking.leave_if(f.modify("xchg", word, 2, I32).eq(0))
            futex(f, word, FUTEX_WAIT_PRIVATE, 2)
        f.ret()
    with m.function("tw_engine_unlock", VOID, [("engine", PTR)], local=True) as (f, (word,)):
        with f.when(f.modify("xchg", word, 0, I32).eq(2)):
            futex(f, word, FUTEX_WAKE_PRIVATE, 1)
        f.ret()


def _each_entry(f: Function, operation: Value) -> Iterator[tuple[Value, Value, Value]]:
    """Within the context, write the body of a loop over the entries of an operation; yields an entry, its variable, and
    whether the operation writes that."""
    with f.each(operation[OPERATION.reads] + operation[OPERATION.writes]) as k:
        entry = operation + (k * ENTRY.size + OPERATION.size)
        yield entry, entry[ENTRY.variable], entry[ENTRY.writes].ne(0)


def _queues(m: Module) -> None:
    """Define `enter` and `leave` of `queues.py` in native code. Operations that become ready form a list linked by
    `next`."""
    with m.function("tw_enter", I64, [("operation", PTR)]) as (f, (operation,)):
        waiting = f.var(I64, 0)
        for entry, variable, writes in _each_entry(f, operation):
            head = variable[VARIABLE.head]
            writing, readers = (variable[at] for at in (VARIABLE.writing, VARIABLE.readers))
            busy = f.var(I64, head.cast(I64) | writing)
            with f.when(writes):
                busy.set(busy.get() | readers)
            queued = f.var(I1, busy.get().ne(0))
            with f.when(queued.get()):
                f.put(0, I64, entry, ENTRY.next)
                with f.when(head.eq(0)):
                    variable[VARIABLE.head] = entry
                with f.when(head.ne(0)):
                    variable[VARIABLE.tail][ENTRY.next] = entry
                variable[VARIABLE.tail] = entry
                waiting.add(1)
            with f.when(queued.get().eq(0)):
                _grant(f, variable, writes)
        operation[OPERATION.waiting] = waiting.get()
        f.ret(waiting.get().eq(0).cast(I64))
    with m.function("tw_leave", PTR, [("operation", PTR)]) as (f, (operation,)):
        chain = f.var(PTR, 0)
        failure = operation[OPERATION.failure]
        for _, variable, writes in _each_entry(f, operation):
            with f.when(writes.eq(0)):
                variable[VARIABLE.readers] -= 1
            with f.when(writes):
                variable[VARIABLE.writing] = 0
                variable[VARIABLE.version] += 1
                variable[VARIABLE.failure] = failure
            with f.loop() as advancing:
                first = variable[VARIABLE.head]
                advancing.leave_if(first.eq(0))
                advancing.leave_if(variable[VARIABLE.writing].ne(0))
                wants = first[ENTRY.writes].ne(0)
                with f.when(wants):
                    advancing.leave_if(variable[VARIABLE.readers].ne(0))
                _grant(f, variable, wants)
                variable[VARIABLE.head] = first[ENTRY.next]
                other = first[ENTRY.operation]
                left = other[OPERATION.waiting] - 1
                other[OPERATION.waiting] = left
                with f.when(left.eq(0)):
                    other[OPERATION.next] = chain.get()
                    chain.set(other)
        f.ret(chain.get())
    with m.function("tw_inherited", I64, [("operation", PTR)]) as (f, (operation,)):
        with f.when(operation[OPERATION.clears].ne(0)):
            f.ret(0)
        for _, variable, _ in _each_entry(f, operation):
            failure = variable[VARIABLE.failure]
            with f.when(failure.ne(0)):
                f.ret(failure)
        f.ret(0)


def _grant(f: Function, variable: Value, writes: Value) -> None:
    with f.when(writes):
        variable[VARIABLE.writing] = 1
    with f.when(writes.eq(0)):
        variable[VARIABLE.readers] += 1


def _heap(m: Module) -> None:
    """Define the functions of the heap of ready operations: the highest priority comes first, among equal ones the
    earliest push."""
    with m.function("tw_before", I1, [("a", PTR), ("b", PTR)], local=True) as (f, (a, b)):
        mine, theirs = (o[OPERATION.priority] for o in (a, b))
        with f.when(mine.ne(theirs)):
            f.ret(mine > theirs, I1)
        f.ret(a[OPERATION.number] < b[OPERATION.number], I1)
    with m.function("tw_put", VOID, [("engine", PTR), ("operation", PTR)], local=True) as (f, (engine, operation)):
        heap, count = engine[ENGINE.heap], engine[ENGINE.count]
        f.store(count + 1, engine, ENGINE.count, order="monotonic")
        at = f.var(I64, count)
        with f.loop() as rising:
            rising.leave_if(at.get().eq(0))
            parent = (at.get() - 1) >> 1
            above = f.load(PTR, heap, parent * 8)
            rising.leave_if(f.call(I1, "tw_before", operation, above).eq(0))
            heap[at.get() * 8] = above
            at.set(parent)
        heap[at.get() * 8] = operation
        f.ret()
    with m.function("tw_first", PTR, [("engine", PTR)], local=True) as (f, (engine,)):
        heap, count = engine[ENGINE.heap], engine[ENGINE.count]
        with f.when(count.eq(0)):
            f.ret(0, PTR)
        rest = count - 1
        f.store(rest, engine, ENGINE.count, order="monotonic")
        top, last = f.load(PTR, heap), f.load(PTR, heap, rest * 8)
        at = f.var(I64, 0)
        with f.loop() as sinking:
            child = f.var(I64, at.get() * 2 + 1)
            sinking.leave_if(child.get() >= rest)
            with f.when(child.get() + 1 < rest):
                left = f.load(PTR, heap, child.get() * 8)
                with f.when(f.call(I1, "tw_before", f.load(PTR, heap, child.get() * 8 + 8), left)):
                    child.add(1)
            below = f.load(PTR, heap, child.get() * 8)
            sinking.leave_if(f.call(I1, "tw_before", below, last).eq(0))
            heap[at.get() * 8] = below
            at.set(child.get())
        heap[at.get() * 8] = last
        f.ret(top)


def _memory(m: Module) -> None:
    """Define the functions that allocate and release heap entries and the memory of operations."""
    with m.function("tw_room", I64, [("engine", PTR)], local=True) as (f, (engine,)):
        live = engine[ENGINE.pushed] - engine[SIGNALS.ended]
        room = engine[ENGINE.room]
        with f.when(live < room):
            f.ret(1)
        larger = room * 2 + 64
        heap = f.call(PTR, "realloc", engine[ENGINE.heap], larger * 8)
        with f.when(heap.eq(0)):
            f.ret(0)
        engine[ENGINE.heap] = heap
        engine[ENGINE.room] = larger
        f.ret(1)
    with m.function("tw_new_operation", PTR, [("engine", PTR), ("count", I64)], local=True) as (f, (engine, count)):
        spare = engine[ENGINE.free]
        with f.when(count <= SMALL), f.when(spare.ne(0)):
            engine[ENGINE.free] = spare[OPERATION.next]
            f.ret(spare)
        room = f.call(I64, "llvm.smax.i64", count, (I64, SMALL))
        new = f.call(PTR, "malloc", room * ENTRY.size + OPERATION.size)
        with f.when(new.ne(0)):
            new[OPERATION.room] = room
        f.ret(new)
    with m.function("tw_drop", VOID, [("engine", PTR), ("operation", PTR)], local=True) as (f, (engine, operation)):
        with f.when(operation[OPERATION.room] > SMALL):
            f.call(VOID, "free", operation)
            f.ret()
        operation[OPERATION.next] = engine[ENGINE.free]
        engine[ENGINE.free] = operation
        f.ret()
    with m.function("tw_engine_drop", I64, [("engine", PTR), ("list", PTR), ("count", I64)]) as (f, values):
        engine, operations, count = values
        with _locked(f, engine), f.each(count) as k:
            f.call(VOID, "tw_drop", engine, f.load(PTR, operations, k * 8))
        f.ret(0)
    with m.function("tw_engine_free", I64, [("engine", PTR)]) as (f, (engine,)):
        f.call(VOID, "free", engine[ENGINE.heap])
        with f.loop() as freeing:
            spare = engine[ENGINE.free]
            freeing.leave_if(spare.eq(0))
            engine[ENGINE.free] = spare[OPERATION.next]
            f.call(VOID, "free", spare)
        f.ret(0)
    with m.function("tw_engine_finished", PTR, [("engine", PTR)]) as (f, (engine,)):
        with _locked(f, engine):
            finished = engine[ENGINE.finished]
            f.put(0, I64, engine, ENGINE.finished)
        f.ret(finished)


def _push(m: Module) -> None:
    with m.function("tw_engine_push", I64, [("engine", PTR), ("request", PTR)]) as (f, (engine, request)):
        reads, writes = request[REQUEST.reads], request[REQUEST.writes]
        variables = request + REQUEST.size

        def refuse(code: int) -> None:
            f.call(VOID, "tw_engine_unlock", engine)
            f.ret(code)

        f.call(VOID, "tw_engine_lock", engine)
        with f.when(engine[SIGNALS.stop].ne(0)):
            refuse(CLOSED)
        with f.each(reads + writes) as k, f.when(f.load(I64, f.load(PTR, variables, k * 8), VARIABLE.deleted).ne(0)):
            refuse(DELETED)
        with f.when(f.call(I64, "tw_room", engine).eq(0)):
            refuse(NO_MEMORY)
        operation = f.call(PTR, "tw_new_operation", engine, reads + writes)
        with f.when(operation.eq(0)):
            refuse(NO_MEMORY)
        deletes = request[REQUEST.deletes]
        with f.when(deletes.ne(0)):
            deletes[VARIABLE.deleted] = 1
        for name in ("function", "argument", "token", "priority", "clears", "reads", "writes"):
            operation[getattr(OPERATION, name)] = request[getattr(REQUEST, name)]
        for at in (OPERATION.failure, OPERATION.done, OPERATION.begin, OPERATION.end):
            operation[at] = 0
        number = engine[ENGINE.pushed]
        operation[OPERATION.number] = number
        f.store(number + 1, engine, ENGINE.pushed, order="release")
        with f.each(reads + writes) as k:
            entry = operation + (k * ENTRY.size + OPERATION.size)
            entry[ENTRY.variable] = f.load(PTR, variables, k * 8)
            entry[ENTRY.operation] = operation
            entry[ENTRY.writes] = (k >= reads).cast(I64)
        ready = f.call(I64, "tw_enter", operation)
        with f.when(ready.ne(0)):
            f.call(VOID, "tw_put", engine, operation)
        f.call(VOID, "tw_engine_unlock", engine)
        f.call(VOID, "tw_engine_call", engine, ready)
        f.ret(operation.cast(I64))
    with m.function("tw_engine_call", VOID, [("engine", PTR), ("count", I64)], local=True) as (f, (engine, count)):
        with f.when(count > 0), f.when(f.load(I64, engine, SIGNALS.asleep, order="seq_cst").ne(0)):
            f.add_atomic(engine + SIGNALS.bell, 1, I32)
            futex(f, engine + SIGNALS.bell, FUTEX_WAKE_PRIVATE, count)
        f.ret()
    with m.function("tw_engine_stop", I64, [("engine", PTR)]) as (f, (engine,)):
        f.put(1, I64, engine, SIGNALS.stop, order="seq_cst")
        f.add_atomic(engine + SIGNALS.bell, 1, I32)
        futex(f, engine + SIGNALS.bell, FUTEX_WAKE_PRIVATE, 1 << 30)
        f.ret(0)
    with m.function("tw_model", I64, [("bound", PTR)]) as (f, (bound,)):
        call = bound[BOUND.call]
        model, io, dims = (f.load(PTR, bound, at) for at in (BOUND.model, BOUND.io, BOUND.dims))
        with f.loop():
            status = f.call(I64, call, model, io, dims)
            bound[BOUND.status] = status
            with f.when(status.ne(NO_EXECUTOR)):
                f.ret(status)
            f.call(I32, "sched_yield")  # as many calls of this program go on as it has memory for
    with m.function("tw_nothing", I64, [("argument", PTR)]) as (f, _):
        f.ret(0)


def _work(m: Module) -> None:
    with m.function("tw_take", PTR, [("engine", PTR), ("sleeps", I64)], local=True) as (f, (engine, sleeps)):
        chosen = f.var(PTR, 0)

        def take() -> None:
            with _locked(f, engine):
                chosen.set(f.call(PTR, "tw_first", engine))

        with f.loop():
            take()
            with f.when(chosen.get().ne(0)):
                f.ret(chosen.get(), PTR)
            with f.when(sleeps.eq(0)):
                f.ret(0, PTR)
            with f.when(f.load(I64, engine, SIGNALS.stop, order="seq_cst").ne(0)):
                f.ret(0, PTR)
            looks = f.var(I64, 0)
            with f.loop() as looking:
                looking.leave_if(f.load(I64, engine, ENGINE.count, order="monotonic").ne(0))
                looking.leave_if(looks.get() >= LOOKS)
                f.pause()
                looks.add(1)
            with f.when(looks.get() >= LOOKS):
                # Announce, look once more, sleep: those who push do so first, and then look who sleeps.
                f.add_atomic(engine + SIGNALS.asleep, 1)
                heard = f.load(I32, engine, SIGNALS.bell, order="seq_cst")
                take()
                with f.when(chosen.get().eq(0)):
                    with f.when(f.load(I64, engine, SIGNALS.stop, order="seq_cst").eq(0)):
                        futex(f, engine + SIGNALS.bell, FUTEX_WAIT_PRIVATE, heard.cast(I64))
                f.add_atomic(engine + SIGNALS.asleep, -1)
                with f.when(chosen.get().ne(0)):
                    f.ret(chosen.get(), PTR)
    params = [("engine", PTR), ("operation", PTR), ("status", I64)]
    with m.function("tw_ended", VOID, params, local=True) as (f, (engine, operation, status)):
        failed = operation[OPERATION.failure]
        with f.when(failed.eq(0)), f.when(status.ne(0)):
            code = (operation[OPERATION.number] + 1) * (1 << STATUS_BITS)
            operation[OPERATION.failure] = code | (status & ((1 << STATUS_BITS) - 1))
        ready = f.var(I64, 0)
        with _locked(f, engine):
            with f.when(engine[ENGINE.recording].ne(0)):
                operation[OPERATION.end] = now(f)
            chain = f.var(PTR, f.call(PTR, "tw_leave", operation))
            with f.loop() as putting:
                one = chain.get()
                putting.leave_if(one.eq(0))
                chain.set(one[OPERATION.next])
                f.call(VOID, "tw_put", engine, one)
                ready.add(1)
            f.put(1, I64, operation, OPERATION.done, order="release")
            with f.when(operation[OPERATION.token].ne(0)):
                operation[OPERATION.next] = engine[ENGINE.finished]
                engine[ENGINE.finished] = operation
            with f.when(operation[OPERATION.token].eq(0)):
                f.call(VOID, "tw_drop", engine, operation)
            f.store(engine[SIGNALS.ended] + 1, engine, SIGNALS.ended, order="seq_cst")
        f.call(VOID, "tw_engine_call", engine, ready.get() - 1)  # this worker takes one itself
        wakes = f.var(I64, f.load(I64, engine, SIGNALS.waiters, order="seq_cst"))
        with f.when(f.call(I1, "tw_is_done", engine, (PTR, 0))):
            wakes.set(wakes.get() | f.load(I64, engine, SIGNALS.all, order="seq_cst"))
        with f.when(wakes.get().ne(0)):
            f.add_atomic(engine + SIGNALS.heard, 1, I32)
            futex(f, engine + SIGNALS.heard, FUTEX_WAKE_PRIVATE, 1 << 30)
        f.ret()
    names = ("engine", "ended", "status", "worker", "slot", "sleeps")
    params = [(n, PTR if n in ("engine", "ended", "slot") else I64) for n in names]
    with m.function("tw_engine_work", I64, params) as (f, (engine, ended, status, worker, slot, sleeps)):
        with f.when(ended.ne(0)):
            f.call(VOID, "tw_ended", engine, ended, status)
        with f.loop():
            operation = f.call(PTR, "tw_take", engine, sleeps)
            with f.when(operation.eq(0)):
                f.ret(0)
            operation[OPERATION.worker] = worker
            failure = f.call(I64, "tw_inherited", operation)
            operation[OPERATION.failure] = failure
            with f.when(engine[ENGINE.recording].ne(0)):
                operation[OPERATION.begin] = now(f)
            function = operation[OPERATION.function]
            result = f.var(I64, 0)
            with f.when(failure.eq(0)):
                with f.when(function.eq(0)):
                    slot[0] = operation
                    slot[8] = operation[OPERATION.token]
                    f.ret(1)
                result.set(f.call(I64, function, operation[OPERATION.argument]))
            f.call(VOID, "tw_ended", engine, operation, result.get())


def _wait(m: Module) -> None:
    with m.function("tw_is_done", I1, [("engine", PTR), ("operation", PTR)], local=True) as (f, (engine, operation)):
        with f.when(operation.ne(0)):
            f.ret(f.load(I64, operation, OPERATION.done, order="acquire").ne(0), I1)
        ended = f.load(I64, engine, SIGNALS.ended, order="seq_cst")
        f.ret(ended.eq(f.load(I64, engine, ENGINE.pushed, order="acquire")), I1)
    params = [("engine", PTR), ("operation", PTR), ("nanoseconds", I64)]
    with m.function("tw_engine_wait", I64, params) as (f, (engine, operation, nanoseconds)):
        with f.each(LOOKS):
            with f.when(f.call(I1, "tw_is_done", engine, operation)):
                f.ret(1)
            f.pause()
        until = now(f) + nanoseconds
        result, rest = f.var(I64, 0), f.space(16)
        counter = f.var(PTR, engine + SIGNALS.waiters)
        with f.when(operation.eq(0)):
            counter.set(engine + SIGNALS.all)
        f.add_atomic(counter.get(), 1)
        with f.loop() as waiting:
            heard = f.load(I32, engine, SIGNALS.heard, order="seq_cst")
            with f.when(f.call(I1, "tw_is_done", engine, operation)):
                result.set(1)
            waiting.leave_if(result.get().ne(0))
            left = until - now(f)
            waiting.leave_if(left <= 0)
            rest[0] = left // 1_000_000_000
            rest[8] = left % 1_000_000_000
            futex(f, engine + SIGNALS.heard, FUTEX_WAIT_PRIVATE, heard.cast(I64), rest)
        f.add_atomic(counter.get(), -1)
        f.ret(result.get())


def engine_text() -> str:
    """The LLVM text of an engine for this machine:

    `tw_engine_push(engine, request)` gives the address of an operation, or why there is none;
    `tw_engine_work(engine, ended, status, worker, slot, sleeps)` says that an operation has ended that Python ran, if
    `ended` is not null, and runs native ones. It gives 1 with an operation for Python in `slot` (its address and its
    token), and 0 when there is none that may run or, if it `sleeps`, when the engine stops;
    `tw_engine_wait(engine, operation, nanoseconds)` waits for an operation, or for all if that is null, for so many
    nanoseconds, and gives whether it has ended;
    `tw_engine_finished(engine)` gives the list of operations with a token that have ended, `tw_engine_drop(engine,
    operations, count)` ends their memory, `tw_engine_free(engine)` the engine's; `tw_engine_stop(engine)` ends workers.
    """
    m = Module(host_triple())
    for part in (_lock, _queues, _heap, _memory, _push, _work, _wait):
        part(m)
    return m.text()


EXPORTS = ("push", "work", "wait", "finished", "drop", "free", "stop")
