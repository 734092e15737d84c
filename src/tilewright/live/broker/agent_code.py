"""Native code of an agent's call: write the inputs to its slot, send the request, sleep, read the outputs."""

from __future__ import annotations

from tilewright.live.broker.signals import ALL, EINTR, ETIMEDOUT, copy, now
from tilewright.live.broker.structs import (
    BELL,
    BUSY,
    CLIENT,
    COPY,
    DETACHED,
    DONE,
    HEADER,
    IDLE,
    INTERRUPTED,
    LOST,
    PAUSE_NS,
    READY,
    READY_AT,
    SLOT,
    TICK_NS,
    TIMED_OUT,
)  # fmt: skip
from tilewright.native.assembler import I1, I32, I64, PTR, VOID, Function, Module, Value
from tilewright.runtime.call import LAYOUT, MODEL, OK

_F_OFD_GETLK, _F_UNLCK = 36, 2


def _post(m: Module) -> None:
    """Define `tw_post(client, rows)`: mark the slot, which has the inputs, as a ready request, and wake the server if
    it sleeps and as many requests as it waits for are ready."""
    with m.function("tw_post", VOID, [("client", PTR), ("rows", I64)], local=True) as (f, (client, rows)):
        header, slot = client[CLIENT.header], client[CLIENT.slot]
        slot[SLOT.rows] = rows
        f.put(READY, I32, slot, SLOT.state, order="seq_cst")
        word = header + (client[CLIENT.word] * 8 + READY_AT)
        before = f.modify("or", word, client[CLIENT.bit])
        with f.when(before.eq(0)):
            header[BELL.first_ns] = now(f)
        with f.when(f.load(I32, header, BELL.asleep, order="seq_cst").ne(0)):
            with f.when(f.call(I64, "tw_ready", header) >= header[BELL.wake_at]):
                with f.when(f.swap_if(header + BELL.asleep, 1, 0, I32)):
                    f.add_atomic(header + BELL.bell, 1, I32)
                    f.call(VOID, "tw_wake", header + BELL.bell, (I64, 1), (I64, ALL))
        f.ret()


def _cancel(f: Function, slot: Value, outcome: int) -> None:
    with f.when(f.swap_if(slot + SLOT.state, READY, IDLE, I32)):
        f.ret(outcome)


def _served(m: Module) -> None:
    """Define `tw_served(client)`: whether a process serves the ring, that is, holds the lock on its first byte."""
    with m.function("tw_served", I1, [("client", PTR)], local=True) as (f, (client,)):
        wanted = client[CLIENT.lock]
        lock = f.space(32)
        copy(f, lock, wanted, f.value(32, I64))
        ring = client[CLIENT.ring].cast(I32)
        failed = f.call(I32, "fcntl", ring, (I32, _F_OFD_GETLK), lock)
        with f.when(failed.ne(0)):
            f.ret(0, I1)
        f.ret((f.load(I32, lock) & 0xFFFF).ne(_F_UNLCK))


def _await(m: Module) -> None:
    """Define `tw_await(client)`: sleep until the answer is there, and return the call's status. If that fails, withdraw
    the request unless it is being computed."""
    with m.function("tw_await", I64, [("client", PTR)], local=True) as (f, (client,)):
        header, slot = client[CLIENT.header], client[CLIENT.slot]
        answer, mask = client[CLIENT.answer], client[CLIENT.mask]
        start = now(f)
        deadline = start + client[CLIENT.timeout_ns]
        tick = f.var(I64, start + TICK_NS)
        with f.loop():
            turn = f.load(I32, answer, order="seq_cst")
            f.put(1, I32, slot, SLOT.sleeping, order="seq_cst")
            with f.when(f.load(I32, slot, SLOT.state, order="seq_cst").eq(DONE)):
                f.put(0, I32, slot, SLOT.sleeping)
                f.ret(slot[SLOT.status])
            ended = f.call(I64, "tw_sleep", answer, turn.cast(I64), tick.get(), mask)
            time = now(f)
            up = f.var(I1, ended.eq(EINTR))
            with f.when(time >= start + PAUSE_NS):
                up.set(1)
            with f.when(up.get()):
                _cancel(f, slot, INTERRUPTED)
            with f.when(ended.eq(ETIMEDOUT)):
                tick.set(time + TICK_NS)
                lost = f.var(I1, f.load(I32, header, HEADER.closed, order="seq_cst").ne(0))
                with f.when(f.call(I1, "tw_served", client).eq(0)):
                    lost.set(1)
                # What was answered just before the end counts.
                with f.when(f.load(I32, slot, SLOT.state, order="seq_cst").ne(DONE)):
                    with f.when(lost.get()):
                        _cancel(f, slot, LOST)
                        f.ret(LOST)
                    with f.when(time >= deadline):
                        f.ret(TIMED_OUT)


def _exchange(m: Module) -> None:
    """Define the agent's `tw_execute`, which sends a request and waits for its answer; `model.run` holds the address of
    the agent's struct CLIENT."""
    with m.function("tw_exchange", I64, [("model", PTR), ("layout", PTR), ("io", PTR)]) as (f, (model, layout, io)):
        client = model[MODEL.run]
        rows = layout[LAYOUT.dims]
        with f.when(f.swap_if(client + CLIENT.busy, 0, 1).eq(0)):
            f.ret(BUSY)
        status = f.var(I64, DETACHED)
        slot = client[CLIENT.slot]
        with f.when(slot.ne(0)), f.when(rows <= client[CLIENT.rows]):
            status.set(LOST)
            with f.when(f.load(I32, slot, SLOT.state, order="acquire").eq(IDLE)):
                status.set(f.call(I64, "tw_request", client, io, rows))
        f.put(0, I64, client, CLIENT.busy, order="release")
        f.ret(status.get())
    params = [("client", PTR), ("io", PTR), ("rows", I64)]
    with m.function("tw_request", I64, params, local=True) as (f, (client, io, rows)):
        slot, table = client[CLIENT.slot], client[CLIENT.table]
        inputs, outputs = client[CLIENT.inputs], client[CLIENT.outputs]

        def place(k: Value) -> tuple[Value, Value]:
            entry = table + k * COPY.size
            return slot + entry[COPY.offset], entry[COPY.row_bytes] * rows

        with f.each(inputs) as k:
            at, nbytes = place(k)
            copy(f, at, f.load(PTR, io, k * 8), nbytes)
        f.call(VOID, "tw_post", client, rows)
        outcome = f.call(I64, "tw_await", client)
        with f.when(f.load(I32, slot, SLOT.state, order="acquire").eq(DONE)):
            with f.when(outcome.eq(OK)):
                with f.each(outputs) as k:
                    at, nbytes = place(inputs + k)
                    copy(f, f.load(PTR, io, (inputs + k) * 8), at, nbytes)
                io[(inputs + outputs) * 8] = slot[SLOT.version]
            f.put(IDLE, I32, slot, SLOT.state, order="release")
        f.ret(outcome)


def define_agent(m: Module) -> None:
    """Define the functions by which an agent sends a request to its broker and waits for the answer."""
    for part in (_post, _served, _await, _exchange):
        part(m)
