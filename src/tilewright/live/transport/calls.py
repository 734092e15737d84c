"""Calls of services over a connection: each message, of any length, gets one answer.

    CALL     node     bytes of the message (8); the message follows in DATA, a chunk each
    ANSWER   server   the same

A length is compared with a limit before memory is allocated, and each chunk must arrive within the connection's
timeout.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Mapping

import numpy as np

from tilewright.live.transport.address import Address
from tilewright.live.transport.client import opened
from tilewright.live.transport.session import join, secret_bytes
from tilewright.live.transport.wire import CHUNK, Channel, HostileError, Kind, digest
from tilewright.runtime.interop import Array

_LENGTH = struct.Struct("<Q")


def send_message(channel: Channel, kind: Kind, message: bytes | Array) -> None:
    """Send a message of bytes over the channel, as `kind`: a CALL or an ANSWER."""
    data = memoryview(message if isinstance(message, bytes) else message.data).cast("B")
    channel.send(kind, _LENGTH.pack(len(data)))
    for at in range(0, len(data), CHUNK):
        channel.send(Kind.DATA, data[at : at + CHUNK])


def receive_message(channel: Channel, kind: Kind, limit: int, wait: float = 0.0) -> Array:
    """The next message of this kind.

    Args:
        limit: bytes that it may have.
        wait: seconds that the peer may take before it begins, beyond the connection's timeout.

    Raises HostileError for another frame or a longer message, LostError where the connection ends.
    """
    limits: Mapping[Kind, int] = {kind: _LENGTH.size}
    _, body = channel.receive(limits, wait)
    if len(body) != _LENGTH.size:
        raise HostileError("a message without a length", where=channel.peer, got=len(body))
    (length,) = _LENGTH.unpack(body)
    if length > limit:
        raise HostileError("a message is too long", where=channel.peer, expected=f"at most {limit}", got=length)
    message = np.empty(length, np.uint8)
    view = memoryview(message.data)
    for at in range(0, length, CHUNK):
        chunk = view[at : at + CHUNK]
        channel.read_into(Kind.DATA, chunk)(digest(chunk))
    return message


class Caller:
    """A node's client of a service.

    Args:
        address: of the service.
        secret, tls: as of the server's port.
        timeout: seconds for connecting, and for each frame.
        limit: bytes that an answer may have.
    """

    def __init__(
        self,
        address: Address,
        *,
        secret: str | bytes | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = 10.0,
        limit: int = 1 << 30,
    ) -> None:
        self._channel, _ = opened(address, timeout)
        self._limit = limit
        try:
            if tls is not None:
                self._channel.start_tls(tls, address.host)
            join(self._channel, secret_bytes(secret), address.name)
        except BaseException:
            self._channel.close()
            raise

    def call(self, message: bytes | Array, wait: float) -> Array:
        """Send a message and return its answer, which may begin up to `wait` seconds later. Raises TransportError if
        there is none."""
        send_message(self._channel, Kind.CALL, message)
        return receive_message(self._channel, Kind.ANSWER, self._limit, wait)

    def close(self) -> None:
        """Close the connection to the service; a call that waits for an answer in another thread raises LostError."""
        self._channel.close()
