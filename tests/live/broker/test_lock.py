"""The lock by which one lane at a time collects: a waiting lane is woken, and never two have it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import numpy as np
import pytest

from tests.live.broker.lab import wait_until
from tilewright.live.broker import server_code
from tilewright.live.broker.signals import define_sleeping
from tilewright.native.assembler import PTR, VOID, Module
from tilewright.native.link import Library, compile_text, host_triple

FREE, HELD, AWAITED = 0, 1, 2


class Lock:
    """The native lock. Who is not woken sleeps for an hour."""

    def __init__(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server_code, "IDLE_NS", 3600 * 10**9)
            m = Module(host_triple())
            define_sleeping(m)
            server_code._collector_lock(m)
        for name in ("take", "give"):
            with m.function(name, VOID, [("lock", PTR)]) as (f, (lock,)):
                f.call(VOID, f"tw_collector_{name}", lock)
                f.ret()
        self._linked = Library({"lock": compile_text(m.text(), cache=False)}, ["take", "give"])
        self._word = np.zeros(16, np.int32)
        self.take, self.give = self._function("take"), self._function("give")

    def _function(self, name: str) -> Callable[[], None]:
        called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._linked[name])
        return lambda: called(self._word.ctypes.data)

    @property
    def state(self) -> int:
        return int(self._word[0])


@pytest.fixture(scope="module")
def lock() -> Lock:
    return Lock()


def test_who_waits_is_woken(lock: Lock) -> None:
    for sleepers in (1, 3):
        lock.take()
        assert lock.state == HELD
        threads = [threading.Thread(target=lambda: (lock.take(), lock.give()), daemon=True) for _ in range(sleepers)]
        for thread in threads:
            thread.start()
        wait_until(lambda: lock.state == AWAITED)
        lock.give()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), "it sleeps on"
        assert lock.state == FREE


def test_one_at_a_time(lock: Lock) -> None:
    inside, most, rounds = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, rounds
        for _ in range(200):
            lock.take()
            inside += 1
            most, rounds = max(most, inside), rounds + 1
            inside -= 1
            lock.give()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert (most, rounds, lock.state) == (1, 800, FREE)
