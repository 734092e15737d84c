"""Connections to servers: through shared memory on one machine, over TCP to another."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from tilewright.collective.group import Group, join
from tilewright.collective.server.frames import Frame, decode, encode
from tilewright.collective.server.shard import Array
from tilewright.live.transport.address import Address, parse_address
from tilewright.live.transport.calls import Caller
from tilewright.live.transport.wire import HostileError
from tilewright.support.classes import dataclass
from tilewright.support.errors import CollectiveError, TransportError

JOIN_SECONDS = 2.0
"""Seconds that one attempt to connect to a server on this machine may take."""


@dataclass(frozen=True, slots=True)
class Access:
    """How a client connects to servers of weights.

    Attributes:
        directory: where those on this machine are found; None: the default.
        secret, tls: for servers on other machines (docs/transport.md).
        limit: the most bytes of an answer from these.
    """

    directory: str | os.PathLike[str] | None = None
    secret: str | bytes | None = None
    tls: ssl.SSLContext | None = None
    limit: int = 1 << 30


class Link(Protocol):
    """A connection, whose peer answers each message."""

    def call(self, message: Array, seconds: float) -> Array: ...

    def close(self) -> None: ...


class Shared:
    """A connection to a server on this machine, through shared memory."""

    def __init__(self, name: str, seconds: float, access: Access) -> None:
        self._group: Group = join(name, 1, 2, timeout=seconds, directory=access.directory)

    def call(self, message: Array, seconds: float) -> Array:
        self._group.timeout = seconds
        self._group.send(message, 0)
        return self._group.message(0)

    def close(self) -> None:
        self._group.close()


class Remote:
    """A connection to a server on another machine, over TCP."""

    def __init__(self, address: Address, seconds: float, access: Access) -> None:
        timeout = min(10.0, seconds)
        self._caller = Caller(address, secret=access.secret, tls=access.tls, timeout=timeout, limit=access.limit)

    def call(self, message: Array, seconds: float) -> Array:
        return self._caller.call(message, seconds)

    def close(self) -> None:
        self._caller.close()


class Links:
    """The connections of a worker, or of a reader, to its servers. One thread may use it at a time.

    Args:
        names: of servers of this machine, or addresses (`tcp://host:port/name`).
        worker: its number; None: a reader.
        timeout: seconds to wait for an answer, including the restart of a server.
    """

    def __init__(self, names: Sequence[str], worker: int | None, timeout: float, access: Access) -> None:
        self.names = names
        self.worker = worker
        self.timeout = timeout
        self._access = access
        self._links: list[Link | None] = [None] * len(names)

    def call(self, server: int, frame: Frame, where: str = "") -> Frame:
        """Send the message `frame` to server number `server` and return its answer. If the server dies, wait for its
        restart and repeat the message. `where` names the call in errors."""
        deadline = time.monotonic() + self.timeout
        data = np.frombuffer(encode(frame), np.uint8)
        where = f"{where or who(self.worker)}: {frame.kind}"
        while True:
            try:
                link = self._link(server, deadline)
                answer = decode(link.call(data, max(0.1, deadline - time.monotonic())))
                break
            except (CollectiveError, TransportError) as error:
                self._drop(server)
                if isinstance(error, HostileError) or time.monotonic() > deadline:
                    what = f"server {self.names[server]!r} does not answer"
                    raise CollectiveError(what, where=where, got=str(error)) from None
                time.sleep(0.01)
        if answer.kind == "error":
            raise CollectiveError("the server refuses", where=who(self.worker), got=answer.facts.get("text"))
        return answer

    def _link(self, server: int, deadline: float) -> Link:
        link = self._links[server]
        if link is None:
            left = max(0.1, deadline - time.monotonic())
            name = self.names[server]
            if name.startswith("tcp:"):
                address = parse_address(name)
                link = Remote(replace(address, name=connection(address.name, self.worker)), left, self._access)
            else:
                link = Shared(connection(name, self.worker), min(left, JOIN_SECONDS), self._access)
            self._links[server] = link
        return link

    def _drop(self, server: int) -> None:
        link, self._links[server] = self._links[server], None
        if link is not None:
            link.close()

    def close(self) -> None:
        """Close the connections to all servers."""
        for server in range(len(self._links)):
            self._drop(server)


def connection(name: str, worker: int | None) -> str:
    """The name of the connection between the server `name` and one of its workers (None: its readers)."""
    return f"server-{name}-{'reader' if worker is None else worker}"


def who(worker: int | None) -> str:
    """The worker, or reader if None, in words for an error."""
    return "a reader" if worker is None else f"worker {worker}"


__all__ = ["Access", "Links", "connection"]
