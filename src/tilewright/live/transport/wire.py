"""Frames on a connection: a checked length, a kind, a tag over all of it, and deadlines on every byte.

    0    bytes of the body (u32)
    4    kind (u8)
    5    tag (16)
    21   the body

The tag is BLAKE2b, keyed with a key of this session and direction, over the frame's number, its length and kind, and
the BLAKE2b digest of the body. So an attacker without the secret cannot forge, change, omit, repeat or replay a frame.
The digest of the body is separate from the tag so that a chunk of weights for many nodes is digested once. A length is
compared with the reader's limit before memory is allocated.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from hashlib import blake2b
from hmac import compare_digest

from tilewright.support.errors import TransportError

CHUNK = 256 << 10
"""Bytes of weights or code in one frame; the last one of a transfer may hold fewer."""

_HEAD = struct.Struct("<IB16s")
_TAGGED = struct.Struct("<QIB32s")


class Kind(IntEnum):
    """The kind of a frame; comments say which side sends it: C, the node that fetches, or S, the server."""

    OPEN = 1  # C: the name that this connection is about
    WELCOME = 2  # S: that name is served here
    REFUSED = 3  # S: why not, as text
    WANT = 4  # C: the newest weights after these, please
    NOTHING = 5  # S: none came within the time
    OFFER = 6  # S: code or weights follow
    DATA = 7  # S: one chunk
    END = 8  # S: all chunks are sent; their common digest
    CALL = 9  # C: a message to a service follows (`calls.py`)
    ANSWER = 10  # S: the answer follows


class LostError(TransportError):
    """The connection broke, or the peer fell silent. A retry may help, and resumes the transfer."""


class HostileError(TransportError):
    """The peer violates the protocol: damaged, forged or foreign frames, or impossible lengths."""


class RefusedError(TransportError):
    """The peer refuses the request, or this side must not accept what the peer offers. A retry does not help unless one
    of them is changed."""


def digest(data: bytes | bytearray | memoryview) -> bytes:
    """The BLAKE2b digest of `data`, 32 bytes."""
    return blake2b(data, digest_size=32).digest()


class Channel:
    """A connected socket that speaks in frames. It is used by one thread; `close` may come from any.

    Args:
        sock: connected; its timeout is set here.
        peer: the other side, for messages.
        timeout: seconds that one frame may take, and that the peer may be silent while it is its turn.
    """

    def __init__(self, sock: socket.socket, peer: str, timeout: float) -> None:
        self.peer = peer
        self.sent = 0
        self.received = 0
        self._sock = sock
        self._timeout = timeout
        self._send_key = self._receive_key = b""
        self._send_count = self._receive_count = 0
        with contextlib.suppress(OSError):  # not a TCP socket, or one that has broken already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start_tls(self, context: ssl.SSLContext, host: str | None = None) -> None:
        """Use TLS from here on, as the server, or as a client of `host`. Raises RefusedError if the handshake fails."""
        try:
            self._sock.settimeout(self._timeout)
            self._sock = context.wrap_socket(self._sock, server_side=host is None, server_hostname=host)
        except TimeoutError:
            raise LostError("the peer is silent or too slow", where=self.peer) from None
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", None) or error.reason or error
            raise RefusedError(f"TLS fails: {reason}", where=self.peer) from None
        except OSError as error:
            raise LostError(f"the connection broke: {error.strerror or error}", where=self.peer) from None

    def secure(self, send_key: bytes, receive_key: bytes) -> None:
        """Set the keys of the tags that frames carry in the two directions from here on; frames are numbered from 0."""
        self._send_key, self._receive_key = send_key, receive_key
        self._send_count = self._receive_count = 0

    # -- frames ------------------------------------------------------------------------------------------------------

    def send(self, kind: Kind, body: bytes | memoryview = b"", body_digest: bytes | None = None) -> None:
        """Send one frame. `body_digest` saves digesting a body whose digest is known."""
        tag = self._tag(self._send_key, self._send_count, kind, len(body), body_digest or digest(body))
        self._send_count += 1
        self.write(_HEAD.pack(len(body), kind, tag), body)

    def receive(self, limits: Mapping[Kind, int], wait: float = 0.0) -> tuple[Kind, bytes]:
        """The next frame.

        Args:
            limits: the kinds that are allowed now, with the most bytes of each.
            wait: seconds that the peer may take before it begins, beyond the timeout.
        """
        length, kind, tag = self._head(limits, wait)
        body = bytearray(length)
        self.read(memoryview(body))
        self._check(kind, length, tag, digest(body), self._receive_count)
        self._receive_count += 1
        return kind, bytes(body)

    def read_into(self, kind: Kind, memory: memoryview) -> Callable[[bytes], None]:
        """Read a frame of this kind and exactly this size into memory.

        The contents must not be used until the returned function has accepted their digest: it raises HostileError if
        the tag does not match. So frames can be digested while the next ones arrive.
        """
        length, _, tag = self._head({kind: len(memory)}, 0.0)
        if length != len(memory):
            raise HostileError("a frame has the wrong length", where=self.peer, expected=len(memory), got=length)
        self.read(memory)
        count = self._receive_count
        self._receive_count += 1
        return lambda body_digest: self._check(kind, length, tag, body_digest, count)

    def _head(self, limits: Mapping[Kind, int], wait: float) -> tuple[int, Kind, bytes]:
        head = bytearray(_HEAD.size)
        self.read(memoryview(head), wait)
        length, number, tag = _HEAD.unpack(head)
        allowed = {int(kind): (kind, limit) for kind, limit in limits.items()}
        if number not in allowed:
            names = " or ".join(kind.name for kind in limits)
            raise HostileError("a frame of the wrong kind", where=self.peer, expected=names, got=number)
        kind, limit = allowed[number]
        if length > limit:
            raise HostileError("a frame is too long", where=self.peer, expected=f"{kind.name} <= {limit}", got=length)
        return length, kind, tag

    def _check(self, kind: Kind, length: int, tag: bytes, body_digest: bytes, count: int) -> None:
        wanted = self._tag(self._receive_key, count, kind, length, body_digest)
        if not compare_digest(tag, wanted):
            raise HostileError("a frame is forged, damaged or out of turn", where=self.peer, got=kind.name)

    @staticmethod
    def _tag(key: bytes, count: int, kind: Kind, length: int, body_digest: bytes) -> bytes:
        return blake2b(_TAGGED.pack(count, length, kind, body_digest), digest_size=16, key=key).digest()

    # -- bytes -------------------------------------------------------------------------------------------------------

    def write(self, *parts: bytes | memoryview) -> None:
        """Send the bytes `parts`, one after another. Raises LostError if the connection breaks, or the peer does not
        accept them within the channel's timeout."""
        left = [memoryview(part) for part in parts if len(part)]
        if isinstance(self._sock, ssl.SSLSocket) and len(left) > 1:
            left = [memoryview(b"".join(left))]  # small parts would be a packet each
        deadline = time.monotonic() + self._timeout
        with _lost(self.peer):
            while left:
                self._until(deadline)
                count = self._sock.send(left[0]) if len(left) == 1 else self._sock.sendmsg(left)
                self.sent += count
                while left and count >= len(left[0]):
                    count -= len(left.pop(0))
                if left:
                    left[0] = left[0][count:]

    def read(self, memory: memoryview, wait: float = 0.0) -> None:
        """Fill `memory` with the next bytes. Raises LostError if the peer closes, or takes longer than the channel's
        timeout; `wait`: extra seconds for the first byte."""
        deadline = time.monotonic() + self._timeout + wait
        at = 0
        with _lost(self.peer):
            while at < len(memory):
                self._until(deadline)
                count = self._sock.recv_into(memory[at:])
                if count == 0:
                    raise LostError("the peer closed the connection", where=self.peer)
                if at == 0:
                    deadline = min(deadline, time.monotonic() + self._timeout)
                at += count
                self.received += count

    def idle(self) -> bool:
        """Whether the peer is connected and has sent nothing, as far as can be told without waiting."""
        try:
            self._sock.settimeout(0)
            # What is read here is out of turn, so that nothing is lost by reading it.
            self._sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def _until(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)

    def close(self) -> None:
        """End the connection. May be called on any thread: one that is reading or writing gets a LostError."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def forget(self) -> None:
        """In the child of a fork: close this process's descriptor; the connection stays open in the parent."""
        self._sock.close()


@contextlib.contextmanager
def _lost(peer: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise LostError("the peer is silent or too slow", where=peer) from None
    except OSError as error:
        raise LostError(f"the connection broke: {error.strerror or error}", where=peer) from None
