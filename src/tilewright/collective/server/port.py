"""Workers and readers of other machines: a server's answers at a port of the weight transport."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.collective.server.frames import Frame, encode
from tilewright.collective.server.link import connection
from tilewright.collective.server.shard import Array
from tilewright.live.transport.calls import receive_message, send_message
from tilewright.live.transport.server import Server as Port
from tilewright.live.transport.wire import Channel, Kind
from tilewright.support.classes import dataclass

Answer = Callable[[Array, int | None, Callable[[], bool]], Frame]
"""A message, the worker's number or None for a reader, and whether the peer has gone, to an answer."""
IDLE_SECONDS = 86400.0
"""How long a worker may compute between two messages."""


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """One worker's connection, or the readers', as the port serves it.

    Attributes:
        limit: bytes that a message may have.
    """

    name: str
    worker: int | None
    limit: int
    answered: Answer

    def answer(self, channel: Channel) -> None:
        """Answer the next message of a connection."""
        message = receive_message(channel, Kind.CALL, self.limit, IDLE_SECONDS)
        frame = self.answered(message, self.worker, lambda: not channel.idle())
        send_message(channel, Kind.ANSWER, encode(frame))

    def close(self) -> None:
        """Nothing: the server ends by itself."""

    def forget(self) -> None:
        """Nothing, in the child of a fork."""


def open_services(port: Port, name: str, workers: int, limit: int, answered: Answer) -> Callable[[], None]:
    """Serve all workers of a server, and its readers, at a port; gives the function that ends it."""
    services = [Service(connection(name, w), w, limit, answered) for w in (*range(workers), None)]
    for service in services:
        port.add(service)

    def end() -> None:
        for service in services:
            port.remove(service.name)

    return end


__all__ = ["Port", "Service", "open_services"]
