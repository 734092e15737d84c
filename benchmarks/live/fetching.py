"""The node's side of the measurements across nodes, in a process of its own."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import tilewright as tw
from tilewright.live.transport.address import parse_address
from tilewright.live.transport.client import TcpSource


def fetch(
    say: Callable[[object], None],
    commands: Callable[[], Iterator[Any]],
    ordinary: int,
    nbytes: int,
    ways: dict[str, str],
    secret: str,
    ca: str,
) -> None:
    """Fetch weights once for each command, {"way": name}: the seconds that it took.

    `ways` are addresses by name; names say whether there is a secret or TLS. "direct" reads as many bytes from a
    socket.
    """
    sock = socket.create_connection(("127.0.0.1", ordinary))
    memory = memoryview(bytearray(nbytes))
    sources = {}
    for way, address in ways.items():
        tls = ssl.create_default_context(cafile=ca) if "TLS" in way else None
        sources[way] = TcpSource(parse_address(address), secret=secret if "secret" in way else None, tls=tls)
    structures = {}
    for way, source in sources.items():
        update = source.newer(None, None, 10.0)
        assert update is not None, "weights are served"
        structures[way] = update.structure
    say({"pid": os.getpid()})
    for command in commands():
        way = command["way"]
        start = time.perf_counter()
        if way == "direct":
            sock.sendall(b"x")
            at = 0
            while at < nbytes:
                at += sock.recv_into(memory[at:])
        else:
            assert sources[way].newer(None, structures[way], 10.0) is not None
        say(time.perf_counter() - start)


def relaying(say: Callable[[object], None], commands: Callable[[], Iterator[Any]], address: str, secret: str) -> None:
    """A node's relay, until something is said."""
    with tw.relay(address, secret=secret) as relay:
        say({"pid": os.getpid(), "ready": relay.wait(0, 60.0)})
        for _ in commands():
            return
