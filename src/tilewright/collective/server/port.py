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
"""A function that answers a message; its other arguments are the worker's number (None for a reader), and a function
that tells whether the peer has gone."""
IDLE_SECONDS = 86400.0
"""Seconds that a worker may compute between two messages."""


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """The service at a port for one worker, or for all readers.

    Attributes:
        limit: the most bytes of a message.
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
        """Does nothing, as the server itself ends its services."""

    def forget(self) -> None:
        """Does nothing in the child of a fork."""


def open_services(port: Port, name: str, workers: int, limit: int, answered: Answer) -> Callable[[], None]:
    """Offer services at `port` that begin with `name`: one for each of `workers` workers, and one for all readers. They
    answer messages of at most `limit` bytes by `answered`. Returns a function that removes them."""
    services = [Service(connection(name, w), w, limit, answered) for w in (*range(workers), None)]
    for service in services:
        port.add(service)

    def end() -> None:
        for service in services:
            port.remove(service.name)

    return end


__all__ = ["Port", "Service", "open_services"]
