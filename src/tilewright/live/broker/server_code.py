"""The loop that serves batches: collect, claim, gather, run, scatter, answer."""

from __future__ import annotations

from tilewright.live.broker.signals import ALL, copy, least, lowest_bit, most, now
from tilewright.live.broker.structs import (
    ANSWER_SIZE,
    ANSWERS_AT,
    BELL,
    CLAIM,
    CLAIMED,
    COPY,
    DONE,
    FAILED,
    GROUP_SLOTS,
    GROUPS,
    IDLE_NS,
    IN_FLIGHT,
    LANE,
    READY,
    READY_AT,
    SERVER,
    SLOT,
    WORDS,
)  # fmt: skip
from tilewright.native.assembler import I1, I32, I64, PTR, VOID, Function, Module, Value
from tilewright.runtime.call import MODEL, OK, SUPERSEDED

_EVERY = (1 << 31) - 1
"""The number of sleepers to wake: all."""
_RETRIES = 1000
"""Attempts of a call whose memory has to be enlarged first."""


def _collector_lock(m: Module) -> None:
    """Define a lock that lets one lane at a time collect requests. Its values: 0 free, 1 locked, 2 locked with
    waiters."""
    with m.function("tw_collector_take", VOID, [("lock", PTR)], local=True) as (f, (lock,)):
        with f.when(f.swap_if(lock, 0, 1, I32)):
            f.ret()
        with f.loop() as loop:
            loop.leave_if(f.modify("xchg", lock, 2, I32).eq(0))
            f.call(I64, "tw_sleep", lock, (I64, 2), now(f) + IDLE_NS, (I64, ALL))
        f.ret()
    with m.function("tw_collector_give", VOID, [("lock", PTR)], local=True) as (f, (lock,)):
        with f.when(f.modify("xchg", lock, 0, I32).eq(2)):
            f.call(VOID, "tw_wake", lock, (I64, 1), (I64, ALL))
        f.ret()


def _target(m: Module) -> None:
    """Define `tw_target`: the number of ready requests with which a batch begins. It is the smallest of a lane's share
    of the active agents, of the agents that can send one now, and of the requests that fill a batch.

    `seen` has the time of each agent's last answer, or IN_FLIGHT. An agent that has sent none for some multiples of the
    wait is not active (it steps a long episode), and is not waited for.
    """
    with m.function("tw_target", I64, [("server", PTR), ("time", I64)], local=True) as (f, (server, time)):
        seen, active = server[SERVER.seen], f.var(I64, 0)
        wait_ns = server[SERVER.max_wait_ns] * 4 + server[SERVER.batch_ns]
        with f.each(server[SERVER.slot_count]) as k:
            with f.when(seen[k * 8] >= time - wait_ns):
                active.add(1)
        lanes = server[SERVER.lanes]
        share = (active.get() + lanes - 1) // lanes
        awake = active.get() - f.load(I64, server, SERVER.inflight, order="monotonic")
        # `max_batch` counts rows: as many requests as would fill it if they were like the last ones.
        room = server[SERVER.max_batch] * server[SERVER.last_requests]
        fill = room // server[SERVER.last_rows]
        f.ret(most(f, least(f, least(f, share, fill), awake), 1))


def _gather_time(m: Module) -> None:
    """Define `tw_collect`, which sleeps until a batch can begin: enough requests are ready, or the first one has waited
    for the longest permitted time. Returns 0 if the server is to stop."""
    with m.function("tw_collect", I1, [("server", PTR)], local=True) as (f, (server,)):
        header = server[SERVER.header]
        max_wait = server[SERVER.max_wait_ns]
        began = now(f)
        with f.loop():
            with f.when(f.load(I64, server, SERVER.stop, order="seq_cst").ne(0)):
                f.ret(0, I1)
            time = now(f)
            target = f.call(I64, "tw_target", server, time)
            count = f.call(I64, "tw_ready", header)
            with f.when(count >= target):
                f.ret(1, I1)
            # An agent that is about to ask is waited for as well; after that, the first request shall wake us.
            until, wake_at = f.var(I64, began + max_wait), f.var(I64, target)
            with f.when(count.eq(0)), f.when(time >= until.get()):
                until.set(time + IDLE_NS)
                wake_at.set(1)
            with f.when(count > 0):
                first = header[BELL.first_ns]
                until.set(least(f, most(f, first, time - max_wait), time) + max_wait)
                with f.when(time >= until.get()):
                    f.ret(1, I1)
            bell = f.load(I32, header, BELL.bell, order="seq_cst")
            header[BELL.wake_at] = wake_at.get()
            f.put(1, I32, header, BELL.asleep, order="seq_cst")
            with f.when(f.call(I64, "tw_ready", header) < wake_at.get()):
                f.call(I64, "tw_sleep", header + BELL.bell, bell.cast(I64), until.get(), (I64, ALL))
            f.put(0, I32, header, BELL.asleep, order="seq_cst")


def _claim(m: Module) -> None:
    """Define the claiming of ready requests for a batch, as far as it has space, beginning after the last slot of the
    batch before it."""
    with m.function("tw_claim_slot", I1, [("lane", PTR), ("index", I64)], local=True) as (f, (lane, index)):
        # Gives 0 if the batch has no room for it.
        server = lane[LANE.server]
        slot = server[SERVER.slots] + index * server[SERVER.slot_size]
        requests, first = lane[LANE.requests], lane[LANE.rows]
        with f.when(f.swap_if(slot + SLOT.state, READY, CLAIMED, I32)):
            rows = f.load(I64, slot, SLOT.rows, order="monotonic")
            fits = f.var(I1, rows >= 1)
            with f.when(rows > server[SERVER.max_rows]):
                fits.set(0)
            with f.when(fits.get().eq(0)):
                slot[SLOT.status] = FAILED
                f.put(DONE, I32, slot, SLOT.state, order="seq_cst")
                f.ret(1, I1)
            with f.when(first + rows > server[SERVER.max_batch]):
                f.put(READY, I32, slot, SLOT.state, order="seq_cst")
                f.ret(0, I1)
            entry = lane[LANE.claimed] + requests * CLAIM.size
            for value, at in ((slot.cast(I64), CLAIM.slot), (index, CLAIM.index), (rows, CLAIM.rows)):
                entry[at] = value
            entry[CLAIM.first] = first
            lane[LANE.requests] = requests + 1
            lane[LANE.rows] = first + rows
            server[SERVER.cursor] = index + 1
            server[SERVER.seen][index * 8] = IN_FLIGHT
        f.ret(1, I1)
    with m.function("tw_claim_batch", VOID, [("lane", PTR)], local=True) as (f, (lane,)):
        server = lane[LANE.server]
        ready = server[SERVER.header] + READY_AT
        slots = server[SERVER.slot_count]
        cursor = f.var(I64, server[SERVER.cursor])
        with f.when(cursor.get() >= slots):
            cursor.set(0)
        start, high = cursor.get() >> 6, -1 << (cursor.get() & 63)
        lane[LANE.requests] = lane[LANE.rows] = 0
        with f.each(WORDS + 1) as k:
            # The first word is visited twice: from the cursor on, and at the end what is before it.
            mask = f.var(I64, -1)
            with f.when(k.eq(0)):
                mask.set(high)
            with f.when(k.eq(WORDS)):
                mask.set(~high)
            w = (start + k) & (WORDS - 1)
            word = ready + w * 8
            before = f.modify("and", word, ~mask.get())
            left = f.var(I64, before & mask.get())
            with f.loop() as loop:
                now = left.get()
                loop.leave_if(now.eq(0))
                index = (w << 6) + lowest_bit(f, now)
                with f.when(index < slots), f.when(f.call(I1, "tw_claim_slot", lane, index).eq(0)):
                    f.modify("or", word, now)
                    f.ret()
                left.set(now & (now - 1))
        f.ret()


def _move(m: Module) -> None:
    """Define `tw_gather` and `tw_scatter`, which copy a tensor's rows from the slots to the batch, and back. The batch
    may be an inner dimension."""
    params = [("lane", PTR), ("copy", PTR), ("batch", PTR)]
    for name, gather in (("tw_gather", True), ("tw_scatter", False)):
        with m.function(name, VOID, params, local=True) as (f, (lane, entry, batch)):
            offset, inner = entry[COPY.offset], entry[COPY.inner]
            outer, total = entry[COPY.outer], lane[LANE.rows]
            with f.each(lane[LANE.requests]) as r:
                claim = lane[LANE.claimed] + r * CLAIM.size
                rows, first = claim[CLAIM.rows], claim[CLAIM.first]
                theirs = claim[CLAIM.slot] + offset
                nbytes = rows * inner
                with f.each(outer) as o:
                    a, b = batch + (o * total + first) * inner, theirs + o * nbytes
                    copy(f, *((a, b) if gather else (b, a)), nbytes)
            f.ret()


def _run_batch(m: Module) -> None:
    """Define `tw_run_batch(lane)`: run the model on the lane's claimed requests, and return its status. Afterwards the
    last word of `io` is the version."""
    with m.function("tw_run_batch", I64, [("lane", PTR)], local=True) as (f, (lane,)):
        server = lane[LANE.server]
        inputs, outputs = server[SERVER.inputs], server[SERVER.outputs]
        table, io = server[SERVER.table], lane[LANE.io]
        alone = lane[LANE.requests].eq(1)
        # One request needs no copies: the model reads and writes its slot.
        slot = lane[LANE.claimed][CLAIM.slot]
        with f.each(inputs + outputs) as k:
            entry = table + k * COPY.size
            batch = f.var(PTR, slot + entry[COPY.offset])
            with f.when(alone.eq(0)):
                batch.set(f.load(PTR, lane[LANE.buffers], k * 8))
                with f.when(k < inputs):
                    f.call(VOID, "tw_gather", lane, entry, batch.get())
            io[k * 8] = batch.get()
        model, tries = server[SERVER.model], f.var(I64, 0)
        dims = f.space(16)
        with f.loop() as loop:
            dims[0] = lane[LANE.rows]
            status = f.call(I64, "tw_call", model, io, dims)
            with f.when(status.eq(SUPERSEDED)):
                f.ret(SUPERSEDED)
            with f.when(status.ne(OK)):
                tries.add(1)
                with f.when(tries.get() > _RETRIES):
                    f.ret(FAILED)
                f.call(I64, model[MODEL.ensure], model, dims)
            loop.leave_if(status.eq(OK))
        with f.when(alone.eq(0)):
            with f.each(outputs) as k:
                entry = table + (inputs + k) * COPY.size
                f.call(VOID, "tw_scatter", lane, entry, f.load(PTR, io, (inputs + k) * 8))
        f.ret(OK)


def _answer(m: Module) -> None:
    """Define `tw_answer(lane, status)`: mark the lane's requests as done and wake their agents, by one system call for
    every 32 slots."""
    with m.function("tw_answer", VOID, [("lane", PTR), ("status", I64)], local=True) as (f, (lane, status)):
        server = lane[LANE.server]
        arguments = server[SERVER.inputs] + server[SERVER.outputs]
        version = lane[LANE.io][arguments * 8]
        answers = server[SERVER.header] + ANSWERS_AT
        masks, time, seen = f.space(8 * GROUPS), now(f), server[SERVER.seen]
        with f.each(GROUPS) as g:
            masks[g * 8] = 0
        with f.each(lane[LANE.requests]) as r:
            claim = lane[LANE.claimed] + r * CLAIM.size
            slot, index = claim[CLAIM.slot], claim[CLAIM.index]
            seen[index * 8] = time
            slot[SLOT.version] = version
            slot[SLOT.status] = status
            f.put(DONE, I32, slot, SLOT.state, order="seq_cst")
            with f.when(f.load(I32, slot, SLOT.sleeping, order="seq_cst").ne(0)):
                at = (index >> 5) * 8
                bit = 1 << (index & (GROUP_SLOTS - 1))
                masks[at] |= bit
        f.modify("sub", server + SERVER.inflight, lane[LANE.requests])
        with f.each(GROUPS) as g:
            mask = masks[g * 8]
            with f.when(mask.ne(0)):
                word = answers + g * ANSWER_SIZE
                f.add_atomic(word, 1, I32)
                f.call(VOID, "tw_wake", word, (I64, _EVERY), mask)
        f.ret()


def _give_back(m: Module) -> None:
    """Define `tw_give_back`, which makes the claimed requests ready again, for the next server."""
    with m.function("tw_give_back", VOID, [("lane", PTR)], local=True) as (f, (lane,)):
        server = lane[LANE.server]
        ready = server[SERVER.header] + READY_AT
        with f.each(lane[LANE.requests]) as r:
            claim = lane[LANE.claimed] + r * CLAIM.size
            index = claim[CLAIM.index]
            f.put(READY, I32, claim[CLAIM.slot], SLOT.state, order="seq_cst")
            f.modify("or", ready + (index >> 6) * 8, 1 << (index & 63))
        f.modify("sub", server + SERVER.inflight, lane[LANE.requests])
        f.ret()


def _count(f: Function, lane: Value, start: Value) -> None:
    requests, rows = lane[LANE.requests], lane[LANE.rows]
    lane[LANE.batches] += 1
    lane[LANE.all_requests] += requests
    lane[LANE.all_rows] += rows
    took = now(f) - start
    lane[LANE.busy_ns] += took
    lane[LANE.server][SERVER.batch_ns] = took


def _serve(m: Module) -> None:
    """Define `tw_serve(lane)`: collect, run, answer, until the server shall stop (OK) or the weights have moved
    (SUPERSEDED). It uses no Python objects."""
    with m.function("tw_serve", I64, [("lane", PTR)]) as (f, (lane,)):
        server = lane[LANE.server]
        lock = server + SERVER.collector
        with f.loop() as loop:
            f.call(VOID, "tw_collector_take", lock)
            goes_on = f.call(I1, "tw_collect", server)
            with f.when(goes_on):
                f.call(VOID, "tw_claim_batch", lane)
                with f.when(lane[LANE.requests] > 0):
                    f.modify("add", server + SERVER.inflight, lane[LANE.requests])
                    server[SERVER.last_requests] = lane[LANE.requests]
                    server[SERVER.last_rows] = lane[LANE.rows]
            f.call(VOID, "tw_collector_give", lock)
            loop.leave_if(goes_on.eq(0))
            with f.when(lane[LANE.requests] > 0):
                start = now(f)
                status = f.call(I64, "tw_run_batch", lane)
                with f.when(status.eq(SUPERSEDED)):
                    f.call(VOID, "tw_give_back", lane)
                    f.ret(SUPERSEDED)
                _count(f, lane, start)
                f.call(VOID, "tw_answer", lane, status)
        f.ret(OK)
    with m.function("tw_stop", VOID, [("server", PTR)]) as (f, (server,)):
        header = server[SERVER.header]
        f.put(1, I64, server, SERVER.stop, order="seq_cst")
        f.put(0, I32, header, BELL.asleep, order="seq_cst")
        f.add_atomic(header + BELL.bell, 1, I32)
        f.call(VOID, "tw_wake", header + BELL.bell, (I64, _EVERY), (I64, ALL))
        f.ret()


def define_server(m: Module) -> None:
    """Add to the module `m`, which has `tw_call`, the functions of a broker's loop: collect requests, run a batch,
    answer."""
    for part in (
        _collector_lock, _target, _gather_time, _claim, _move, _run_batch, _answer, _give_back, _serve,
    ):  # fmt: skip
        part(m)
