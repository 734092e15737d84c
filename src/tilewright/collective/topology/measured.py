"""Measures the links of this machine: messages between two processes through shared memory and loopback TCP, and the
speed of additions."""

from __future__ import annotations

import multiprocessing
import secrets
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tilewright.collective.group import join
from tilewright.collective.reductions import reduce_into
from tilewright.collective.topology.model import Model, fit
from tilewright.support.errors import CollectiveError

SIZES = (64, 1 << 12, 1 << 16, 1 << 20, 1 << 22)
"""Bytes of the timed messages."""
SECONDS = 30.0
"""Seconds that a measurement waits for the other process."""


def models() -> dict[str, Model]:
    """A model for each kind of link on this machine; takes about a second."""
    added = additions()
    links: dict[str, Callable[[Any], list[tuple[int, float]]]] = {"shared memory": _shared, "loopback TCP": _tcp}
    return {name: fit(link(multiprocessing.get_context("fork")), added) for name, link in links.items()}


def additions() -> list[tuple[int, float]]:
    """Pairs of bytes and seconds for adding f32 arrays, as all-reductions do."""
    times = []
    for nbytes in SIZES[2:]:
        a, b = np.ones(nbytes // 4, np.float32), np.ones(nbytes // 4, np.float32)
        times.append((nbytes, _best(partial(reduce_into, a, [a, b], "f32", "sum"), 7)))
    return times


def _shared(context: Any) -> list[tuple[int, float]]:
    name = f"net-{secrets.token_hex(8)}"

    def other() -> None:
        with join(name, 1, 2, timeout=SECONDS) as group:
            for nbytes in SIZES:
                buffer = np.empty(nbytes, np.uint8)
                for _ in range(_times(nbytes)):
                    group.receive(buffer, 0)
                    group.send(buffer, 0)

    process = context.Process(target=other, daemon=True)
    process.start()
    with join(name, 0, 2, timeout=SECONDS) as group:

        def exchange(buffer: Any) -> None:
            group.send(buffer, 1)
            group.receive(buffer, 1)

        return _pings(process, exchange)


def _tcp(context: Any) -> list[tuple[int, float]]:
    mine, theirs = _connected()

    def other() -> None:
        mine.close()
        for nbytes in SIZES:
            buffer = memoryview(bytearray(nbytes))
            for _ in range(_times(nbytes)):
                _fill(theirs, buffer)
                theirs.sendall(buffer)

    process = context.Process(target=other, daemon=True)
    process.start()
    theirs.close()

    def exchange(buffer: Any) -> None:
        view = memoryview(buffer)
        mine.sendall(view)
        _fill(mine, view)

    with mine:
        return _pings(process, exchange)


def _connected() -> tuple[socket.socket, socket.socket]:
    """The two ends of a new TCP connection of the machine to itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname(), SECONDS)
        other, address = server.accept()
        if address != one.getsockname():
            raise CollectiveError("another process has connected", where="loopback TCP", got=address)
    for end in (one, other):
        end.settimeout(SECONDS)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


def _fill(end: socket.socket, view: memoryview) -> None:
    at = 0
    while at < len(view):
        count = end.recv_into(view[at:])
        if not count:
            raise CollectiveError("the other process has died", where="loopback TCP")
        at += count


def _pings(process: Any, exchange: Callable[[Any], None]) -> list[tuple[int, float]]:
    """For messages of each size in `SIZES`: (bytes, seconds), where the seconds are half of the shortest round trip by
    `exchange`. Ends `process`, the partner."""
    try:
        results = []
        for nbytes in SIZES:
            buffer = np.zeros(nbytes, np.uint8)
            results.append((nbytes, _best(partial(exchange, buffer), _times(nbytes)) / 2))
        return results
    finally:
        process.join(1)
        process.kill()
        process.join()


def _times(nbytes: int) -> int:
    return 200 if nbytes <= 1 << 12 else 20


def _best(function: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
