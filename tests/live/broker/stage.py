"""Scenes with processes that are forked and killed: `python -m tests.live.broker.stage SCENE PROGRAM.tw`.

A fresh process plays each scene, so that what is forked has one thread and nothing of pytest. It ends with status 0 if
all was as it should be, and says what was not.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright as tw
from tests.live.broker.lab import is_right, observations, wait_until
from tilewright.live.broker.client import BrokerClient
from tilewright.live.broker.native import broker_code
from tilewright.live.broker.server import Broker
from tilewright.support.errors import BrokerError

NAME = "p"
ROUNDS = 400 if os.environ.get("TILEWRIGHT_FUZZ") else 10


class Cast:
    """Forked processes. Words of `calls` count what each has done; they survive who is killed."""

    def __init__(self, size: int = 256) -> None:
        self._map = mmap.mmap(-1, 8 * size)
        self.calls = np.frombuffer(self._map, np.int64)
        self.pids: dict[int, int] = {}

    def start(self, role: int, body: Callable[[], None]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                body()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        self.pids[role] = pid

    def kill(self, role: int) -> None:
        pid = self.pids.pop(role)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"{role} ended by itself with status {status}"

    def finish(self, role: int) -> None:
        """Wait for the end of one that ends by itself."""
        _, status = os.waitpid(self.pids.pop(role), 0)
        assert status == 0, f"{role} failed"

    def go_on(self, roles: list[int], calls: int = 5) -> None:
        """Wait until each of these has made some more calls."""
        before = {role: int(self.calls[role]) for role in roles}
        wait_until(lambda: all(self.calls[role] >= before[role] + calls for role in roles), 60.0)


def agent(cast: Cast, role: int, calls: int | None = None, **options: Any) -> None:
    """Call and check, for ever or so many times."""
    source = np.random.default_rng(role)
    client = BrokerClient(NAME, timeout=30.0, **options)
    while calls is None or cast.calls[role] < calls:
        arguments = observations(source, int(source.integers(1, 9)))
        if not is_right(client(*arguments), 0, arguments):
            raise AssertionError("a wrong answer")
        cast.calls[role] += 1


def serve(model: Any, **options: Any) -> None:
    Broker(NAME, model, wait=10.0, max_wait=1e-3, **options).serve()


def crowd(model: Any, cast: Cast) -> None:
    """64 processes, each with any number of rows."""
    cast.start(100, lambda: serve(model))
    for role in range(64):
        cast.start(role, lambda role=role: agent(cast, role, 10))
    for role in range(64):
        cast.finish(role)
    # All places are free again.
    clients = [BrokerClient(NAME, timeout=5.0) for _ in range(64)]
    try:
        BrokerClient(NAME)
        raise AssertionError("there were 65 places")
    except BrokerError as error:
        assert "every place is taken" in str(error)
    del clients
    cast.kill(100)


def agents_die(model: Any, cast: Cast) -> None:
    """Agents are killed at any point of a call; the others go on, and new ones take their places."""
    choose = random.Random(1)
    cast.start(100, lambda: serve(model, agents=10))
    for role in range(6):
        cast.start(role, lambda role=role: agent(cast, role))
    for _ in range(ROUNDS):
        cast.go_on(list(range(6)), 2)
        time.sleep(choose.uniform(0, 0.004))
        victims = choose.sample(range(6), choose.randint(1, 3))
        for role in victims:
            cast.kill(role)
        for role in victims:
            cast.start(role, lambda role=role: agent(cast, role))
    cast.go_on(list(range(6)))
    for role in [*range(6), 100]:
        cast.kill(role)


def brokers_die(model: Any, cast: Cast) -> None:
    """Brokers are killed at any point; agents wait for the next one, and no call fails or is wrong."""
    choose = random.Random(2)
    cast.start(100, lambda: serve(model))
    for role in range(6):
        cast.start(role, lambda role=role: agent(cast, role, call_timeout=60.0))
    for k in range(ROUNDS // 2):
        cast.go_on(list(range(6)), 2)
        time.sleep(choose.uniform(0, 0.004))
        cast.kill(100 + k)
        cast.start(101 + k, lambda: serve(model))
    cast.go_on(list(range(6)))
    for role in [*range(6), 100 + ROUNDS // 2]:
        cast.kill(role)


def both_fall_back(model: Any, cast: Cast) -> None:
    """Agents with a fallback go on without a broker, at once, and use the next one."""
    publisher = tw.Publisher(NAME, model)
    cast.start(100, lambda: serve(None))
    for role in range(3):
        cast.start(role, lambda role=role: agent(cast, role, fallback=True))
    cast.go_on([0, 1, 2])
    for k in range(4):
        cast.kill(100 + k)
        cast.go_on([0, 1, 2], 20)
        cast.start(101 + k, lambda: serve(None))
        cast.go_on([0, 1, 2], 20)
    for role in [0, 1, 2, 104]:
        cast.kill(role)
    publisher.close()


def forked(model: Any, cast: Cast) -> None:
    """The child of an attached agent takes a place of its own, and does not keep its parent's."""
    cast.start(100, lambda: serve(model, agents=3))

    def parent() -> None:
        source = np.random.default_rng(0)
        client = BrokerClient(NAME, timeout=30.0)
        arguments = observations(source, 2)
        assert is_right(client(*arguments), 0, arguments)
        child = os.fork()
        role = 1 if child == 0 else 0
        if child:
            cast.calls[10] = child
        while True:
            arguments = observations(source, role + 1)
            assert is_right(client(*arguments), 0, arguments)
            cast.calls[role] += 1

    cast.start(0, parent)
    cast.go_on([0, 1], 50)
    cast.kill(0)
    cast.go_on([1], 50)
    clients = [BrokerClient(NAME, timeout=5.0) for _ in range(2)]  # the dead parent's place is one of them
    os.kill(int(cast.calls[10]), signal.SIGKILL)
    assert all(c.is_attached for c in clients)
    cast.kill(100)


SCENES = {f.__name__: f for f in (crowd, agents_die, brokers_die, both_fall_back, forked)}


def main() -> None:
    cast = Cast()
    broker_code()  # linked once, before the forks
    try:
        SCENES[sys.argv[1]](tw.load(sys.argv[2]), cast)
    finally:
        for pid in cast.pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
