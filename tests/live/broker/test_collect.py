"""When a batch starts: how many requests it waits for, and for how long."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tilewright.live.broker import server_code
from tilewright.live.broker.signals import define_ready, define_sleeping
from tilewright.live.broker.structs import ANSWERS_AT, BELL, IN_FLIGHT, READY_AT, SERVER
from tilewright.native.assembler import I1, I64, PTR, Module
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.runtime.layout import Memory

HOUR = 3600 * 10**9


class Server:
    """The native code that collects, on a server that the test describes."""

    def __init__(self) -> None:
        m = Module(host_triple())
        for part in (define_sleeping, define_ready, server_code._target, server_code._gather_time):
            part(m)
        with m.function("target", I64, [("server", PTR), ("time", I64)]) as (f, values):
            f.ret(f.call(I64, "tw_target", *values))
        with m.function("collect", I64, [("server", PTR)]) as (f, values):
            f.ret(f.call(I1, "tw_collect", *values).cast(I64))
        self._linked = Library({"collect": compile_text(m.text(), cache=False)}, ["target", "collect"])
        word, pointer = ctypes.c_int64, ctypes.c_void_p
        self._target: Callable[..., int] = ctypes.CFUNCTYPE(word, pointer, word)(self._linked["target"])
        self._collect: Callable[..., int] = ctypes.CFUNCTYPE(word, pointer)(self._linked["collect"])
        self.words, self.header = Memory(SERVER.size), Memory(ANSWERS_AT)

    def set(self, seen: list[int], **fields: int) -> None:
        self.seen = Memory(8 * len(seen))
        self.seen.write(0, seen)
        self.words.words[:] = self.header.words[:] = 0
        usual = {"max_wait_ns": HOUR, "lanes": 1, "max_batch": 100, "last_requests": 1, "last_rows": 1}
        places = {"seen": self.seen.address, "slot_count": len(seen), "header": self.header.address}
        for name, value in (usual | places | fields).items():
            self.words[getattr(SERVER, name)] = value

    def target(self, now: int) -> int:
        return self._target(self.words.address, now)

    def collect(self) -> int:
        """Whether a batch starts; an error if it does not say so at once, which would be in half an hour."""
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(self._collect(self.words.address)), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "it sleeps"
        return int(results[0])


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


def test_what_number_of_requests_start_a_batch(server: Server) -> None:
    """Each lane's share of the agents that are at it, all that can ask, or what fills a batch; one at least."""
    choose = random.Random(0)
    for _ in range(500):
        now, wait, batch = 10**12, choose.randrange(1000), choose.randrange(1000)
        ends = now - (4 * wait + batch)
        seen = [choose.choice([0, ends - 1, ends, ends + 1, now, IN_FLIGHT]) for _ in range(choose.randrange(1, 20))]
        lanes, most, requests = choose.randrange(1, 5), choose.randrange(1, 30), choose.randrange(1, 9)
        rows, inflight = requests * choose.randrange(1, 5), choose.randrange(6)
        server.set(
            seen, max_wait_ns=wait, batch_ns=batch, lanes=lanes, inflight=inflight, max_batch=most,
            last_requests=requests, last_rows=rows,
        )  # fmt: skip
        active = sum(s >= ends for s in seen)
        wanted = max(1, min(-(-active // lanes), active - inflight, most * requests // rows))
        assert server.target(now) == wanted


def test_a_batch_starts_when_all_have_asked_or_one_has_waited_long_enough(server: Server) -> None:
    now = time.monotonic_ns()
    wait = now // 3  # which the machine has been up for
    for ready, since, starts in ((0b11, now, 1), (0b1, now - 2 * wait, 1), (0b10, 0, 1)):
        server.set([now, now], max_wait_ns=wait)
        server.header[READY_AT] = ready
        server.header[BELL.first_ns] = since
        assert server.collect() == starts
    server.set([now, now], stop=1)
    server.header[READY_AT] = 0b11
    assert server.collect() == 0
